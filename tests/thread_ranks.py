"""Ranks as threads of one process, for tests of values that ranks must agree on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

import torch
from torch import Tensor

from zoo.core.ranks import Ranks, merged_moments

T = TypeVar('T')
BARRIER_TIMEOUT_S = 30.0  # seconds that a rank waits for the same call of the others, before an error


class ThreadRanks:
    """One of several ranks. They wait for each other at a barrier and exchange values in a shared list."""

    in_c = None  # C cannot sum over threads

    def __init__(self, rank: int, size: int, barrier: Barrier, values: list[Any]) -> None:
        self.rank, self.size = rank, size
        self._barrier, self._values = barrier, values

    def sum_(self, x: Tensor) -> Tensor:
        return x.copy_(sum(self.gather(x.clone())))  # type: ignore[call-overload]

    def merge(self, n: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return merged_moments(*(torch.stack(each) for each in zip(*self.gather((n, mean, var)), strict=True)))

    def gather(self, value: Any) -> list[Any]:
        self._values[self.rank] = copy.deepcopy(value)
        self._barrier.wait()
        found = copy.deepcopy(self._values)
        self._barrier.wait()
        return found

    def share(self, value: Any, root: int = 0) -> Any:
        return self.gather(value)[root]

    def close(self) -> None:
        """Does nothing: there is no process group."""


def on_ranks(work: Callable[[Ranks], T], size: int = 2) -> list[T]:
    """Runs `work` on `size` ranks; returns their results in order of rank. Raises: the error of a rank."""
    barrier, values = Barrier(size, timeout=BARRIER_TIMEOUT_S), [None] * size
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, [ThreadRanks(rank, size, barrier, values) for rank in range(size)]))
