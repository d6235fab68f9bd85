"""Common code of the drivers: command line, clock, JSON line. To be imported before torch, which reads the thread count.

The clock starts after the first --warmup iterations (lazy imports, caches, compilation; timed separately) and runs
until the last update. Env steps and optimiser steps are counted from the start of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='One timed PPO run; prints one JSON line.')
    parser.add_argument('--env', default='CartPole-v1', help='id, or family/game for zoo')
    parser.add_argument('--num-envs', type=int, default=8)
    parser.add_argument('--rollout', type=int, default=128, help='steps per env per iteration')
    parser.add_argument('--minibatch', type=int, default=256)
    parser.add_argument('--epochs', type=int, default=4)
    parser.add_argument('--lr', type=float, default=2.5e-4)
    parser.add_argument('--entropy', type=float, default=0.01)
    parser.add_argument('--workers', type=int, default=0, help='processes that step envs; 0: none (sb3, rllib)')
    parser.add_argument('--image', action='store_true', help='84x84x4 Atari frames and the Nature CNN')
    parser.add_argument('--total-steps', type=int, default=102_400, help='env steps of the run, the warm-up included')
    parser.add_argument('--warmup', type=int, default=2, help='iterations before the clock starts')
    parser.add_argument('--episodes', type=int, default=20, help='greedy episodes after the clock; 0: none')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu', help='not rllib, tianshou: always the CPU')
    parser.add_argument('--started', type=float, default=time.time(), help='time.time() when the process was started')
    parser.add_argument('--seconds', type=float, default=0.0, help='zoo only: end sooner, after so long; 0: never')
    parser.add_argument('--set', action='append', default=[], metavar='KEY=VALUE', help='zoo only: config overrides')
    args = parser.parse_args()
    if args.total_steps <= args.warmup * args.num_envs * args.rollout:
        parser.error(f'--total-steps {args.total_steps} leaves nothing to time after --warmup {args.warmup}')
    for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
        os.environ[name] = str(args.threads)
    if args.env.startswith('Slow'):
        import slow_env  # noqa: F401  # the import registers the env
    return args


def peak_rss_mb() -> float:
    """Peak resident memory of this process so far, in MiB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


class Mark(NamedTuple):
    """A moment of the training, with the counts reached."""

    wall_s: float
    env_step: int
    train_iter: int


class Clock:
    """Clock with three marks: training begins, the warm-up has ended, the last update is done."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.startup_s = 0.0
        self.marks: list[Mark] = []
        self.peak_rss_mb = 0.0

    def begin(self) -> None:
        """Sets the first mark; imports and construction must be over."""
        self.startup_s = time.time() - self._args.started
        self.mark(0, 0)

    def mark(self, env_step: int, train_iter: int) -> None:
        """Sets the next of the three marks, with the counts since training began."""
        self.marks.append(Mark(time.perf_counter(), env_step, train_iter))
        self.peak_rss_mb = peak_rss_mb()

    @property
    def seconds(self) -> float:
        """Seconds since the last mark."""
        return time.perf_counter() - self.marks[-1].wall_s

    def record(self) -> dict[str, Any]:
        """The JSON record of the marks: speed of the timed part, and of everything since the process was started (_all)."""
        begun, warm, end = self.marks
        wall_s, env_step, train_iter = (b - a for a, b in zip(warm, end, strict=True))
        warmup_s = warm.wall_s - begun.wall_s
        return {
            'env_step': env_step,
            'wall_s': round(wall_s, 4),
            'env_step_per_s': round(env_step / wall_s, 1),
            'train_iter_per_1024': round(train_iter * 1024 / env_step, 3),
            'startup_s': round(self.startup_s, 2),
            'warmup_s': round(warmup_s, 3),
            'env_step_all': end.env_step,
            'env_step_per_s_all': round(end.env_step / (self.startup_s + warmup_s + wall_s), 1),
            'peak_rss_mb': self.peak_rss_mb,
        }


class UpdateClock(Clock):
    """Clock that counts the steps of the peer's own optimiser and sets its marks at the last step of an iteration.

    So the peer's code runs unmodified, without callbacks in its loop. It has to train total_steps // (num_envs * rollout)
    iterations of epochs x minibatches optimiser steps; `record` raises RuntimeError if it did not.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._batch = args.num_envs * args.rollout
        self._step_per_iter = args.epochs * (self._batch // args.minibatch)
        self._stops = [args.warmup * self._step_per_iter, args.total_steps // self._batch * self._step_per_iter]
        self._n_step = 0
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self._n_step += 1
        if self._n_step in self._stops:
            self.mark(self._n_step // self._step_per_iter * self._batch, self._n_step)

    def record(self) -> dict[str, Any]:
        if self._n_step != self._stops[-1]:
            raise RuntimeError(f'{self._n_step} optimiser steps were taken but the matched work has {self._stops[-1]}')
        return super().record()


def greedy_returns(env: Any, act: Callable[[Any], Any], n_episode: int, seed: int) -> list[float]:
    """Undiscounted returns of whole episodes of one gymnasium env, with seeds that training does not use."""
    returns = []
    for episode in range(n_episode):
        obs, _ = env.reset(seed=1_000_000 + 1000 * seed + episode)
        total, ended = 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def emit(
    args: argparse.Namespace, clock: Clock, library: str, version: str, returns: Sequence[float], **more: Any
) -> None:
    """Prints the record as the last line of stdout."""
    import torch

    record = {
        'library': library,
        'version': version,
        **clock.record(),
        'final_return': round(sum(returns) / len(returns), 2) if returns else None,
        'n_episode': len(returns),
        'threads': args.threads,
        'seed': args.seed,
        'torch': torch.__version__,
        **more,
    }
    sys.__stdout__.write('\n' + json.dumps(record) + '\n')
