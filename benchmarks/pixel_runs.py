"""The runs of benchmarks/pixels.py."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from zoo.config.section import Config
from zoo.run.config import resolve_config


class Run(NamedTuple):
    """A bundled config with overrides, and its evaluation."""

    config: str
    overrides: tuple[str, ...]
    n_episode: int  # of each evaluation of its last policy
    n_random: int  # episodes of random actions in its game
    published: str  # the return to compare with, and its source
    published_env_step: int
    minutes: float | None = None  # training is stopped after these; None: it ends after its env steps
    note: str = ''


RUNS = {
    'starpilot_ppo': Run(
        'procgen_ppo',
        (
            'env.game=starpilot',
            'max_env_step=1_000_000',
            'policy.eval.eval_freq=1_000_000',
            'checkpoint.freq=100_000',
            'seed=0',
        ),
        100,
        500,
        '32.5 (CleanRL)',
        25_000_000,
    ),
    'starpilot_ppg': Run(
        'procgen_ppg',
        (
            'env.game=starpilot',
            'max_env_step=1_000_000',
            'policy.model.arch=detach',
            'checkpoint.freq=200_000',
            'checkpoint.aux_memory=true',
            'seed=0',
        ),
        100,
        500,
        '34.8 (CleanRL)',
        25_000_000,
        note="arch 'detach', the variant with one network, since the bundled 'dual' needs about twice the "
        'passes through an encoder; in the paper both reach the same (.756 and .757, normalised)',
    ),
    'pong_ppo': Run('pong_ppo', ('seed=0',), 20, 60, '20.4 (CleanRL)', 10_000_000, minutes=60),
}


def command_of(name: str, runs: Path | None = None) -> list[str]:
    """The command line that starts a run."""
    run = RUNS[name]
    root = [] if runs is None else [f'logger.root={runs}']
    return ['zoo', 'train', run.config, *run.overrides, f'exp_name={name}', *root]


def resolved(name: str) -> Config:
    """The whole config of a run."""
    return resolve_config(RUNS[name].config, RUNS[name].overrides, exp_name=name)
