"""Observations outside of the bounds of their Box: a warning, or an error where the network scales by these bounds.

Networks take the numbers of a Box as they are, so that bounds which are too narrow change nothing that is learned. Images of
bytes are the exception: they are divided by their upper bound. Bytes below their lower bound are scaled like all others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Obs, Path
from zoo.core.errors import of_entry
from zoo.core.spaces import ACTION_MASK, Box, Space, leaf_names, leaves_by_path, obs_dtype
from zoo.env.errors import EnvContractError

logger = logging.getLogger(__name__)
ROUNDING = 1e-6  # relative to a bound, or to 1: eight times the resolution of float32
N_NUMBER = 100_000
"""Numbers of each leaf that are looked at in a rollout, at most: some 0.1 ms. Of larger rollouts every k-th step is looked at."""
N_FIRST = 8  # rollouts that are all looked at; most spaces that are wrong show it there
LOOK_FREQ = (
    8  # of the later rollouts every 8th is looked at; images that are scaled by their bounds are looked at in each
)
NARROWER = 'correct it, or widen the space'
AS_IT_IS = f'a policy takes it as it is: {NARROWER}'
BELOW = f'images of bytes are scaled by their upper bound alone: {NARROWER}'


class WidenedBounds(NamedTuple):
    """The bounds of a Box, [*O] each, widened by rounding."""

    low: np.ndarray
    high: np.ndarray


def widened_bounds(space: Box) -> WidenedBounds:
    """The bounds that a number must leave to be outside, and not only rounded."""
    low = space.low.astype(np.float64)
    high = space.high.astype(np.float64)
    if obs_dtype(space) == torch.uint8:  # bytes are exact
        return WidenedBounds(low, high)
    dtype = np.dtype(space.dtype)
    rounding = ROUNDING
    if dtype.kind == 'f':
        rounding = max(rounding, 8 * float(np.finfo(dtype).eps))
    with np.errstate(over='ignore'):  # beyond the largest number of a type is infinity: no number is outside
        return WidenedBounds(low - _slack(low, rounding), high + _slack(high, rounding))


def _slack(bound: np.ndarray, rounding: float) -> np.ndarray:
    """The rounding of a number near each bound; 0 for an infinite one."""
    return np.where(np.isfinite(bound), rounding * np.maximum(1.0, np.abs(bound)), 0.0)


def can_be_outside(space: Box) -> bool:
    """Whether a finite number of the dtype in which zoo holds these observations can be outside of the bounds."""
    if obs_dtype(space) == torch.uint8:
        return bool((space.low > 0).any() or (space.high < 255).any())
    return bool(np.isfinite(space.low).any() or np.isfinite(space.high).any())


def is_scaled_by_bounds(space: Box) -> bool:
    """Whether networks divide these observations by their upper bound."""
    return obs_dtype(space) == torch.uint8


class _Watched(NamedTuple):
    """A leaf and the bounds that are looked at, in the dtype of its observations, which is fastest."""

    name: str
    space: Box
    is_scaled: bool  # by its bounds
    low: np.ndarray
    high: np.ndarray


def _watched(name: str, space: Box) -> _Watched:
    is_scaled = is_scaled_by_bounds(space)
    dtype: type[np.number] = np.float32
    if is_scaled:
        dtype = np.uint8
    bounds = widened_bounds(space)
    with np.errstate(over='ignore'):
        return _Watched(name, space, is_scaled, bounds.low.astype(dtype), bounds.high.astype(dtype))


class BoundsWatch:
    """Looks at the observations of rollouts; warns once of each leaf that is outside of its bounds.

    It looks at each of the first rollouts, and later at every 8th: an observation that is outside throughout a run is found at
    any step of it, if not in the same rollout. Images of bytes, which are scaled by their bounds, are looked at in each rollout.

    Args: name: of the env; warns: whether to warn; errors are raised in either case; say: called with each warning;
      n_first: rollouts that are all looked at.
    """

    def __init__(
        self,
        space: Space,
        name: str,
        warns: bool = True,
        say: Callable[[str], object] | None = None,
        n_first: float = N_FIRST,
    ) -> None:
        self._name = name
        self._n_seen = 0
        self._n_look = 0
        self._n_first = n_first
        self._say = say or _log
        self._watched: dict[Path, _Watched] = {}
        names = leaf_names(space)
        for path, leaf in leaves_by_path(space).items():
            if path == (ACTION_MASK,) or not isinstance(leaf, Box) or not can_be_outside(leaf):
                continue
            if warns or is_scaled_by_bounds(leaf):
                watched = _watched(names[path], leaf)
                if not warns:
                    watched = watched._replace(low=np.zeros_like(watched.low))
                self._watched[path] = watched

    def see(self, obs: Obs) -> None:
        """Looks at the observations of a rollout, [T, B, *O] in each leaf.

        Raises: EnvContractError if bytes of an image are above their upper bound.
        """
        self._n_seen += 1
        is_due = self._n_seen <= self._n_first or self._n_seen % LOOK_FREQ == 0
        self._n_look += is_due
        for path, watched in list(self._watched.items()):
            if watched.is_scaled:
                self._look(path, _leaf_at(obs, path), self._n_seen)
            elif is_due:
                self._look(path, _leaf_at(obs, path), self._n_look)

    def _look(self, path: Path, x: Tensor, n: int) -> None:
        """n: of the look at this leaf; in large rollouts each look begins with another step."""
        watched = self._watched[path]
        low = watched.low
        high = watched.high
        stride = -(-x.numel() // N_NUMBER)
        rows = x[n % stride :: stride].numpy()
        if not ((rows < low).any() or (rows > high).any()):
            return
        if watched.is_scaled and (rows > high).any():
            words = self._words(watched, rows, rows > high)
            raise EnvContractError(f'{words}, by which images of bytes are scaled; {NARROWER}.')
        words = self._words(watched, rows, (rows < low) | (rows > high))
        if watched.is_scaled:
            self._watched[path] = watched._replace(low=np.zeros_like(low))  # the upper bound is looked at further on
            self._say(f'{words}; {BELOW}.')
        else:
            del self._watched[path]
            self._say(f'{words}; {AS_IT_IS}.')

    def _words(self, watched: _Watched, rows: np.ndarray, is_outside: np.ndarray) -> str:
        """The beginning of a sentence about the first number that is outside."""
        first = tuple(np.argwhere(is_outside)[0])
        at = tuple(map(int, first[2:]))
        where = ''
        if at:
            where = f' at {list(at)}'
        return (
            f'env {self._name!r}: an observation{of_entry(watched.name)} has {rows[first]:.6g}{where}, wanted '
            f'{watched.space.low[at]:g} to {watched.space.high[at]:g} as in observation_space'
        )


def _leaf_at(obs: Obs, path: Path) -> Tensor:
    for key in path:
        obs = obs[key]
    return obs


def _log(sentence: str) -> None:
    logger.warning('%s', sentence)
