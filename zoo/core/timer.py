"""Clocks: seconds and calls of named parts of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple


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
