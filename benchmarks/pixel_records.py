"""Records of the runs of benchmarks/pixels.py: curve, counters, returns of the last policy; returns of random actions.

A run may still be in progress or have been stopped: its record says how far it has come.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open

from report import metric_curve, metric_rows, settings
from zoo.config.section import Config
from zoo.config.source import load_config
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.seeding import stream
from zoo.env import VectorEnv, make_vector_env
from zoo.env.config import EnvConfig, env_config
from zoo.policy.modes import EvalMode
from zoo.run.checkpoint.file import Checkpoint, steps_of
from zoo.run.policy_file import load_policy
from zoo.worker.evaluator import Evaluation, Evaluator, evaluate

N_POINT = 50  # points of a curve that are kept
N_ENV = 20  # evaluation envs that step together, unless there are fewer episodes
EVAL_SEED = 1_000_000  # root of this module's seed streams; training uses small roots


class Progress(NamedTuple):
    """Counters of a run, from its newest checkpoint or its log, whichever is further."""

    env_step: int
    train_iter: int
    episode: int
    wall_s: float


def last_checkpoint(run_dir: Path) -> Checkpoint | None:
    """The checkpoint of the highest env step, as `read_policy` reads it; None if there is none yet."""
    path = next(reversed(steps_of(run_dir / 'checkpoints').values()), None)
    return None if path is None else read_policy(path)


def read_policy(path: Path) -> Checkpoint:
    """A checkpoint without its auxiliary memory, which may not fit into memory: gigabytes after PPG on images.

    The checksum covers the whole file, so it is not checked.
    """
    with safe_open(path, 'pt') as file:
        head = file.metadata()
        state, meta = json.loads(head['state']), json.loads(head['meta'])
        for name in file.keys():
            *parents, key = name.split('/')
            if parents[0] == 'policy':
                node = state
                for parent in parents:
                    node = node[parent]
                node[key] = file.get_tensor(name)
    return Checkpoint({'policy': state['policy'], 'counter': state['counter']}, meta, path)


def progress(rows: Sequence[Mapping[str, Any]], checkpoint: Checkpoint | None) -> Progress:
    """The counters of the last line that has them, or of the checkpoint if that is further."""
    logged = next((row for row in reversed(rows) if 'learn/train_iter' in row), None)
    found = [Progress(0, 0, 0, 0.0)]
    if logged is not None:
        found.append(
            Progress(logged['env_step'], logged['learn/train_iter'], logged['collect/episode'], logged['wall_s'])
        )
    if checkpoint is not None:
        counter = checkpoint.state['counter']
        found.append(
            Progress(counter['env_step'], checkpoint.meta['train_iter'], counter['episode'], counter['wall_s'])
        )
    return max(found)


def record_run(run_dir: Path, n_episode: int) -> dict[str, Any]:
    """The record of a run folder; `evaluation` is None if there is no checkpoint yet."""
    checkpoint, rows = last_checkpoint(run_dir), metric_rows(run_dir)
    config = settings(load_config(run_dir / 'config.yaml')[0])
    at = progress(rows, checkpoint)
    return {
        'env_step': at.env_step,
        'train_iter': at.train_iter,
        'episode': at.episode,
        'wall_s': round(at.wall_s, 1),
        'cost': cost(rows),
        'curve': thinned(metric_curve(rows, 'collect/return_mean')),
        'evaluation_curve': metric_curve(rows, 'eval/return_mean'),
        'evaluation': None if checkpoint is None else evaluate_last(checkpoint, n_episode),
        'resolved': config,
        'obs_shape': None if checkpoint is None else checkpoint.meta['obs_space']['shape'],
    }


def thinned(curve: Sequence[tuple[int, float]], n_point: int = N_POINT) -> list[tuple[int, float]]:
    """At most n_point points of a curve at evenly spaced indices, with the first and the last."""
    index = np.unique(np.linspace(0, len(curve) - 1, min(n_point, len(curve))).round().astype(int))
    return [curve[i] for i in index]


def cost(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | int | None]:
    """Cost of a round of collecting and learning, from its log lines: medians, since some rounds had to wait.

    Returns: env_step and s (seconds) of a usual round; aux_s, seconds that an auxiliary phase adds, None if there was none.
    """
    lines = [row for row in rows if 'learn/train_iter' in row]
    before = [{'env_step': 0, 'wall_s': 0.0}, *lines[:-1]]
    spent = [
        (row['env_step'] - last['env_step'], row['wall_s'] - last['wall_s'], 'learn/auxiliary_loss' in row)
        for last, row in zip(before, lines, strict=False)
    ]
    usual = [(step, s) for step, s, aux in spent if not aux]
    if not usual:
        return {'env_step': None, 's': None, 'aux_s': None}
    s = float(np.median([s for _, s in usual]))
    aux = [s for _, s, aux in spent if aux]
    return {
        'env_step': float(np.median([step for step, _ in usual])),
        's': s,
        'aux_s': float(np.median(aux)) - s if aux else None,
    }


def evaluate_last(checkpoint: Checkpoint, n_episode: int) -> dict[str, Any]:
    """Returns of a checkpoint's policy in the raw game: with greedy actions, and with actions drawn as in collection."""
    cfg = Config(checkpoint.meta['config'])
    env, seed = env_config({**cfg.env, 'evaluator_env_num': N_ENV}), EVAL_SEED + cfg.seed
    torch.set_num_threads(1)
    return {
        'env_step': checkpoint.meta['env_step'],
        'greedy': summary(evaluate(load_policy(checkpoint), env, n_episode, seed)),
        'sampled': summary(play(env, lambda vector: sampling(checkpoint, vector), n_episode, seed)),
    }


def sampling(checkpoint: Checkpoint, vector: VectorEnv) -> EvalMode:
    """Eval mode in which the policy of a checkpoint acts as in collection."""
    cfg = Config(checkpoint.meta['config'])
    policy = POLICY_REGISTRY.get(cfg.policy.type)(
        cfg.policy,
        vector.obs_space,
        vector.action_space,
        seed=EVAL_SEED,
        enable_field=['collect'],
        action_mode=cfg.env.action_mode,
    )
    policy.load_state_dict(checkpoint.state['policy'])
    return EvalMode(policy.collect_mode.forward)


def record_random(env: Mapping[str, Any], n_episode: int) -> dict[str, Any]:
    """Returns of uniform actions in the raw game. env: the section `env` of a config with discrete actions."""
    return {'env': dict(env), 'return': summary(play(env_config(env), uniform, n_episode, EVAL_SEED))}


def uniform(vector: VectorEnv) -> EvalMode:
    """Eval mode that draws uniform actions for any observation."""
    generator = torch.Generator().manual_seed(EVAL_SEED)
    n_action, n_env = vector.action_space.n, vector.n_env
    return EvalMode(lambda obs, state: {'action': torch.randint(n_action, (n_env,), generator=generator)})


def play(env: EnvConfig, mode_in: Callable[[VectorEnv], EvalMode], n_episode: int, seed: int) -> Evaluation:
    """Plays whole episodes with the eval mode that `mode_in` makes for the envs; the same episodes as `evaluate` plays."""
    with closing(make_vector_env(env, min(n_episode, N_ENV))) as vector:
        evaluation = Evaluator(vector, mode_in(vector), n_episode).evaluate(stream(seed, 'evaluate'))
    assert evaluation is not None, 'nothing stops it'
    return evaluation


def summary(evaluation: Evaluation) -> dict[str, Any]:
    """Mean return and its standard error, mean length, and the return of each episode."""
    returns = np.asarray(evaluation.returns)
    return {
        'mean': float(returns.mean()),
        'error': float(returns.std(ddof=1) / np.sqrt(len(returns))),
        'length_mean': float(np.mean(evaluation.lengths)),
        'returns': returns.tolist(),
    }
