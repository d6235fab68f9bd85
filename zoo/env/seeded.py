"""Makers of envs whose constructors take a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from zoo.env.errors import restart_seed


class SeededMaker:
    """Makes one of the envs of a vector, with a seed for its constructor: another seed each time that it is made again."""

    def __init__(self, maker: Callable[[int], gymnasium.Env], seed: int, n_made: int = 0) -> None:
        """Args: n_made: how often the env was made before."""
        self._maker = maker
        self._seed = seed
        self._n_made = n_made

    def __call__(self) -> gymnasium.Env:
        seed: int | None = self._seed
        if self._n_made > 0:
            seed = restart_seed(self._seed, self._n_made)
        assert seed is not None
        self._n_made += 1
        return self._maker(seed)

    def for_start(self, n_made: int) -> SeededMaker:
        """The maker for the process of this env that is started after n_made others."""
        return SeededMaker(self._maker, self._seed, n_made)


def for_start(maker: Any, n_made: int) -> Any:
    """`maker`, or where it gives a seed, the one for the process that is started after n_made others."""
    if isinstance(maker, SeededMaker):
        return maker.for_start(n_made)
    return maker
