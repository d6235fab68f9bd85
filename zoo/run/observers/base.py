"""A run as its observers see it: its view, its clocks, its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from zoo.env.settings import RunEnvs
from zoo.policy.base import Policy
from zoo.run.base_config import JobConfig


class RunView(Protocol):
    """A run as its observers see it; `zoo.SerialJob` is one. Attributes: stop_requested: whether a signal asks it to stop."""

    cfg: JobConfig
    policy: Policy
    run_dir: Path
    timer: Timer
    stop_requested: Callable[[], bool]

    @property
    def envs(self) -> RunEnvs:
        """The envs of training and evaluation, whose attributes may be read and set between rollouts."""

    @property
    def env_step(self) -> int:
        """Transitions received from training envs."""

    @property
    def train_iter(self) -> int:
        """Optimiser steps."""

    @property
    def n_iteration(self) -> int:
        """Rounds of collecting and learning that were done, those before a resume included."""

    @property
    def step_per_iteration(self) -> int:
        """Env steps of a round."""

    @property
    def wall_s(self) -> float:
        """Seconds of training, those before a resume included."""

    @property
    def done(self) -> bool:
        """Whether the next round would pass max_env_step, or the run was stopped."""

    def stop(self, reason: str = '') -> None:
        """Ends the run after the present round, and logs why."""

    def save(self) -> Path:
        """Writes a checkpoint of everything and returns its path. Raises: SaveError."""

    def result(self) -> TrainResult:
        """The run so far."""

    def clocks(self) -> Clocks:
        """Seconds and calls of each part since the run began."""


@dataclass
class TrainResult:
    """The outcome of a run: the policy as last trained, the folder of its files, its counters and returns."""

    policy: Policy
    run_dir: Path
    env_step: int
    train_iter: int
    best_return: float | None
    last_return: float | None
    wall_s: float
    env_step_per_s: float
    stop_reason: str = ''  # why the run ended before max_env_step: a stop rule, stop_value, or `SerialJob.stop`


class Clocks(NamedTuple):
    """Readings of a run's clocks and counters, all of which only grow."""

    wall_s: float
    env_step: int
    seconds: dict[str, float]  # of each part
    calls: dict[str, int]  # of each part

    def since(self, start: Clocks) -> Clocks:
        """The differences from an earlier reading."""
        return Clocks(
            self.wall_s - start.wall_s,
            self.env_step - start.env_step,
            {name: value - start.seconds[name] for name, value in self.seconds.items()},
            {name: value - start.calls[name] for name, value in self.calls.items()},
        )


class Timer:
    """Seconds and calls of the named parts of a run, and the seconds since it was made.

    Attributes: label: opens a context that names a part in a trace of torch's profiler.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.seconds = dict.fromkeys(names, 0.0)
        self.calls = dict.fromkeys(self.seconds, 0)
        self.label: Callable[[str], AbstractContextManager[Any]] = nullcontext
        self._start = time.perf_counter()

    @property
    def run_s(self) -> float:
        """Seconds since the timer was made."""
        return time.perf_counter() - self._start

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Times what runs in this context."""
        start = time.perf_counter()
        with self.label(f'zoo/{name}'):
            yield
        self.seconds[name] += time.perf_counter() - start
        self.calls[name] += 1
