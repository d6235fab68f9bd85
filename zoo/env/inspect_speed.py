"""Which vectorization pays for an env: the time of its step against the measured cost of a worker process."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import gymnasium
from gymnasium.vector import AutoresetMode

from zoo.core.errors import show_error
from zoo.env.config import EnvConfig
from zoo.env.workers import WorkerVectorEnv

N_WORKER, N_STEP, N_WARM = 4, 100, 10
GAIN = 1.25  # a worker costs memory and a core: it has to win by more than the measurement varies


class Advice(NamedTuple):
    """What pays, and why."""

    vectorization: str  # 'sync', 'async' or 'batched'
    why: str
    worker_ms: float | None  # of the process of the run, for one step of one worker


def advise(cfg: EnvConfig, step_s: float, spaces: tuple[gymnasium.Space, gymnasium.Space]) -> Advice:
    """Compares env.collector_env_num envs in turn with as many in processes.

    Args: step_s: seconds of one step of one env; spaces: of its observations and actions.
    """
    n_env, n_core = cfg.collector_env_num, _n_core()
    try:
        worker_s = worker_seconds(spaces, min(n_env, N_WORKER), cfg.step_timeout)
    except (Exception, SystemExit) as error:  # without processes, or with spaces that no shared memory takes
        return Advice('sync', f'no worker process could be timed here ({show_error(error)})', None)
    in_turn = n_env * step_s
    at_once = n_env * (worker_s + step_s / min(n_env, n_core))
    is_async = in_turn > GAIN * at_once and n_core > 1
    why = (
        f'a step takes {1e3 * step_s:.3g} ms and a worker adds {1e3 * worker_s:.3g} ms: {n_env} envs step in '
        f'{1e3 * in_turn:.3g} ms one after the other, and in about {1e3 * at_once:.3g} ms in processes on {n_core} '
        f'core{"s" if n_core > 1 else ""}'
    )
    return Advice('async' if is_async else 'sync', why, 1e3 * worker_s)


def worker_seconds(spaces: tuple[gymnasium.Space, gymnasium.Space], n_worker: int, timeout: float) -> float:
    """Seconds that one step of one worker costs where the env itself does nothing, among `n_worker` of them."""
    maker = partial(_StillEnv, *spaces)
    with closing(WorkerVectorEnv([maker] * n_worker, AutoresetMode.SAME_STEP, timeout, 'still')) as env:
        env.reset(seed=0)
        action, times = env.action_space.sample(), []
        for _ in range(N_WARM + N_STEP):
            start = time.perf_counter()
            env.step(action)
            times.append(time.perf_counter() - start)
    return statistics.median(times[N_WARM:]) / n_worker


def _n_core() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


class _StillEnv(gymnasium.Env):
    """Returns one observation, without work."""

    def __init__(self, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._obs = self.observation_space.sample()
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._obs, 0.0, False, False, {}
