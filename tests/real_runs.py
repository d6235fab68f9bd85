"""Run folders for tests: real runs that train for some tenths of a second, and made runs whose curves are known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zoo.config.yaml_io import yaml_text
from zoo.pipeline import serial_pipeline
from zoo.tools.results.read import Run

SHORT = ('max_env_step=5120', 'policy.eval.eval_freq=1024', 'policy.eval.n_episode=2', 'policy.eval.stop_value=null')


def train_seeds(root: Path, seeds: Sequence[int], config: str = 'cartpole_ppo', *overrides: str) -> Path:
    """Trains a run of 5 rollouts for each seed; returns the folder that holds them."""
    for seed in seeds:
        words = [*SHORT, *overrides, f'seed={seed}', f'logger.root={root}']
        serial_pipeline(config, overrides=[*words, 'logger.tensorboard=false', 'logger.console=off'])
    return root / config


def made_run(
    steps: Sequence[float],
    values: Sequence[float],
    *,
    seed: int = 0,
    name: str = 'made',
    env: str = 'CartPole-v1',
    metric: str = 'eval/return_mean',
    **learn: float,
) -> Run:
    """A run with a known curve, at one env step per second. Args: learn: keys of policy.learn."""
    config = {'exp_name': name, 'seed': seed, 'env': {'id': env}, 'policy': {'type': 'ppo', 'learn': learn}}
    at = np.array(steps, dtype=np.float64)
    return Run(
        Path('runs') / name / str(seed), config, {'env_step': at, 'wall_s': at, metric: np.array(values, dtype=float)}
    )


def write_run(folder: Path, run: Run) -> Path:
    """Writes the config and the log of a run into a new folder."""
    folder.mkdir(parents=True)
    (folder / 'config.yaml').write_text(yaml_text(run.config))
    names = list(run.columns)
    lines = [dict(zip(names, row, strict=True)) for row in zip(*(run.columns[name] for name in names), strict=True)]
    (folder / 'metrics.jsonl').write_text(''.join(f'{json.dumps(line)}\n' for line in lines))
    return folder
