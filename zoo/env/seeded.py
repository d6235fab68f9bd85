"""Seeds of several envs and of recreated ones; makers of envs whose constructors take a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

Seeds = int | Sequence[int | None] | None  # of a reset of several envs


def seeds_of(seed: Seeds, n_env: int) -> list[int | None]:
    """One seed for each env, as in gymnasium: from an int seed, seed + 1, seed + 2 and so on."""
    if isinstance(seed, int):
        return list(range(seed, seed + n_env))
    return list(seed or [None] * n_env)


def restart_seed(seed: int | None, count: int) -> int | None:
    """The seed of a recreated env, from the seed of the failed env and the number of restarts; None if that seed is None."""
    if seed is None:
        return None
    return int(np.random.SeedSequence((seed, count)).generate_state(1)[0]) >> 1


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
