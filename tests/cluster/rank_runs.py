"""A user's script under torchrun: several runs one after the other, and what callbacks saw on each rank.

`torchrun ... -m tests.cluster.rank_runs FOLDER` writes two files per rank: FOLDER/rank_<rank>.pt, what `rank_cases`
trained; FOLDER/seen_<rank>.pt, what the rank saw of each run, by the run's name.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium
import torch

from tests.cluster import rank_cases
from tests.envs import LimitEnv
from tests.pipeline.models import OneLayer
from tests.policy_envs import flat, job_config, run_config
from zoo.pipeline import serial_pipeline
from zoo.run.job import SerialJob
from zoo.run.observers.stop_rules import StopRule
from zoo.run.policy_file import load_policy

RANK = int(os.environ.get('RANK', '0'))


class RankEnv(LimitEnv):
    """LimitEnv with episodes of limits[rank] steps; on rank `fails` its step number `at` raises."""

    def __init__(self, limits: Sequence[int] = (3, 7), fails: int = -1, at: int = 0) -> None:
        super().__init__(limits[RANK])
        self._left = at if RANK == fails else 0

    def step(self, action: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            raise ValueError('the wheel came off')
        return super().step(action)


def rank_env(**kwargs: Any) -> gymnasium.Env:
    return RankEnv(**kwargs)


def digest(job: SerialJob) -> str:
    """Returns a hash of the exact values of all parameters, buffers and optimisers."""
    leaves = flat(job.policy.state_dict())
    numbers = [f'{path} {x.tolist() if isinstance(x, torch.Tensor) else x!r}' for path, x in sorted(leaves.items())]
    return hashlib.sha256('\n'.join(numbers).encode()).hexdigest()


class Watch:
    """Callback that notes digests (at start, after rounds, at checkpoints), the states at start and end, and evaluations."""

    def __init__(self, stop_on: int = -1, metric_of: int = -1) -> None:
        self.seen: dict[str, Any] = {'digests': {}, 'checkpoints': {}, 'evaluations': []}
        self._stop_on, self._metric_of = stop_on, metric_of

    def on_start(self, job: SerialJob) -> None:
        self.seen['start'] = job.env_step, digest(job), deepcopy(job.state_dict())

    def on_update(self, job: SerialJob, metrics: Any) -> Any:
        self.seen['digests'][job.env_step] = digest(job)
        if self._stop_on == RANK and job.env_step >= 128:
            job.stop(f'rank {RANK} wants it')
        return {'mine': float(RANK)} if self._metric_of == RANK else None

    def on_checkpoint(self, job: SerialJob, path: Path) -> None:
        self.seen['checkpoints'][path.name] = digest(job)

    def evaluated(self, env_step: int, evaluation: Any) -> None:
        sets = {name: len(part.returns) for name, part in evaluation.sets.items()}
        self.seen['evaluations'].append((env_step, list(evaluation.returns), sets))

    def on_end(self, job: SerialJob, result: Any) -> None:
        self.seen['end'] = deepcopy(job.state_dict())


class Sink:
    """A sink that touches a file in the folder when it is opened: the file's name has the rank."""

    def open(self, cfg: Any, folder: Path) -> None:
        (folder / f'sink_{RANK}').touch()

    def write(self, env_step: int, metrics: Any) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class AfterTwo(StopRule):
    """Asks to stop after two rounds on rank 1 and after three on rank 0. Only rank 0's rule counts."""

    def reason(self, job: Any) -> str | None:
        return 'enough' if job.n_iteration >= 3 - RANK else None


def cartpole(root: Path, **sections: Any) -> dict[str, Any]:
    return job_config(root, 'CartPole-v1', **sections)


def keeping(root: Path, name: str, **sections: Any) -> dict[str, Any]:
    """Config of four rollouts of 64 env steps, whole episodes, for policies that keep samples; PPG's phase follows the third."""
    env = dict(kwargs={'limits': [4, 8]})
    cfg = run_config(root, name, 'tests.cluster.rank_runs:rank_env', max_env_step=256, env=env, **sections)
    cfg['policy']['learn']['aux_freq'] = 3 if name == 'ppg' else 6
    cfg['policy']['learn']['aux_batch_size'] = 32
    return {**cfg, 'checkpoint': {'freq': 64, 'keep_last': 2, 'keep_best': False}}


def watched(cfg: dict[str, Any], watch: Watch | None = None, **options: Any) -> dict[str, Any]:
    """Runs a config and returns what its watch saw, with the result or the error of the run."""
    watch = watch or Watch()
    try:
        result = serial_pipeline(cfg, callbacks=[watch], on_evaluation=watch.evaluated, **options)
    except Exception as error:
        return {**watch.seen, 'error': f'{type(error).__name__}: {error}'}
    names = 'env_step', 'train_iter', 'best_return', 'last_return', 'stop_reason'
    return {**watch.seen, 'run_dir': result.run_dir, **{name: getattr(result, name) for name in names}}


def network() -> torch.nn.Module:
    """A user's network, with different initial parameters on each rank."""
    torch.manual_seed(RANK)
    return OneLayer()


def runs(root: Path) -> dict[str, Callable[[], dict[str, Any]]]:
    """Returns all runs by name, in the order in which they are run."""
    often = dict(eval=dict(eval_freq=64, n_episode=5, sets={'short': dict(max_episode_steps=9)}))
    checkpoint = dict(freq=64, keep_last=10)
    logger = dict(sinks=['jsonl', 'tests.cluster.rank_runs:Sink'])
    loud = cartpole(root / 'ppo', policy=often, checkpoint=checkpoint, logger=logger)
    uneven = job_config(root / 'uneven', 'tests.cluster.rank_runs:rank_env')
    batched = job_config(root / 'resets', 'tests.envs:Limit-v0')
    return {
        'ppo': lambda: watched(loud),
        'uneven': lambda: watched(uneven, Watch(metric_of=1)),
        'resets': lambda: watched(batched),
        'ppg': lambda: watched(keeping(root / 'ppg', 'ppg')),
        'ppg, first part': lambda: watched(keeping(root, 'ppg') | {'max_env_step': 128}, run_dir=root / 'ppg parts'),
        'ppg, second part': lambda: watched(keeping(root, 'ppg'), run_dir=root / 'ppg parts'),
        'off': lambda: watched(keeping(root / 'off', 'ppg_offpolicy')),
        'off, first part': lambda: watched(
            keeping(root, 'ppg_offpolicy') | {'max_env_step': 128}, run_dir=root / 'off parts'
        ),
        'off, second part': lambda: watched(keeping(root, 'ppg_offpolicy'), run_dir=root / 'off parts'),
        'runners': lambda: watched(cartpole(root / 'runners', cluster=dict(engine='inline', runner_num=2))),
        'groups': lambda: watched(cartpole(root / 'groups', env=dict(collector_group_num=2))),
        'max_train_iter': lambda: watched(cartpole(root / 'limit'), max_train_iter=5),
        'stop on rank 1': lambda: watched(cartpole(root / 'stop'), Watch(stop_on=1)),
        'rule': lambda: watched(cartpole(root / 'rule', stop=['tests.cluster.rank_runs:AfterTwo'])),
        'wall_time': lambda: watched(cartpole(root / 'wall', stop=[dict(type='wall_time', s=1e-3)])),
        'stop_value': lambda: watched(cartpole(root / 'value', policy=dict(eval=dict(eval_freq=64, stop_value=1.0)))),
        'profile': lambda: watched(cartpole(root / 'profile', max_env_step=448), profile=2),
        'model': lambda: watched(cartpole(root / 'model'), model=network()),
        'policy': lambda: watched(cartpole(root / 'bad'), policy=load_policy(root / 'off parts', fields='all')),
        'three envs': lambda: watched(
            cartpole(root / 'bad', env=dict(collector_env_num=3), policy=dict(learn=dict(batch_size=48)))
        ),
        'a file': lambda: watched(cartpole(root / 'bad', logger=dict(root=__file__))),
        'env': lambda: watched(  # the last run, since the ranks lose each other
            job_config(root / 'env', 'tests.cluster.rank_runs:rank_env', env=dict(kwargs={'fails': 1, 'at': 40}))
        ),
    }


if __name__ == '__main__':
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    if len(sys.argv) == 2:
        rank_cases.as_rank(folder)
    seen = {name: run() for name, run in runs(folder).items() if len(sys.argv) == 2 or name in sys.argv[2:]}
    torch.save(seen, folder / f'seen_{RANK}.pt')
