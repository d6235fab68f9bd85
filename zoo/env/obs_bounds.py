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

from zoo.core.data import Obs, leaves
from zoo.core.errors import of_entry
from zoo.core.spaces import ACTION_MASK, Box, Space, leaf_spaces, obs_dtype
from zoo.env.errors import EnvContractError

logger = logging.getLogger(__name__)
ROUNDING = 1e-6  # relative to a bound, or to 1: eight times the resolution of float32
N_NUMBER = 100_000
"""Numbers of each leaf that are looked at in a rollout, at most: some 0.1 ms. Of larger rollouts every k-th step is looked at."""
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

    space: Box
    low: np.ndarray
    high: np.ndarray


def _watched(space: Box) -> _Watched:
    """The bounds in the number type in which zoo holds the observations, which is the fastest to compare."""
    dtype: type[np.number] = np.float32
    if is_scaled_by_bounds(space):
        dtype = np.uint8
    bounds = widened_bounds(space)
    with np.errstate(over='ignore'):
        return _Watched(space, bounds.low.astype(dtype), bounds.high.astype(dtype))


class BoundsWatch:
    """Looks at the observations of each rollout; warns once of each leaf that is outside of its bounds.

    Args: name: of the env; warns: whether to warn; errors are raised in either case; say: called with each warning.
    """

    def __init__(self, space: Space, name: str, warns: bool = True, say: Callable[[str], object] | None = None) -> None:
        self._name = name
        self._n_seen = 0
        self._say = say or _log
        self._watched: dict[str, _Watched] = {}
        for path, leaf in leaf_spaces(space):
            if path == ACTION_MASK or not isinstance(leaf, Box) or not can_be_outside(leaf):
                continue
            if warns or is_scaled_by_bounds(leaf):
                watched = _watched(leaf)
                if warns:
                    low = watched.low
                else:
                    low = np.zeros_like(watched.low)
                self._watched[path] = watched._replace(low=low)

    def see(self, obs: Obs) -> None:
        """Looks at the observations of a rollout, [T, B, *O] in each leaf.

        Raises: EnvContractError if bytes of an image are above their upper bound.
        """
        if not self._watched:
            return
        self._n_seen += 1
        for path, x in leaves(obs):
            if path in self._watched:
                self._look(path, x)

    def _look(self, path: str, x: Tensor) -> None:
        space, low, high = self._watched[path]
        stride = -(-x.numel() // N_NUMBER)
        rows = x[self._n_seen % stride :: stride].numpy()  # another start in each rollout
        if not ((rows < low).any() or (rows > high).any()):
            return
        is_scaled = is_scaled_by_bounds(space)
        is_too_bright = is_scaled and bool((rows > high).any())
        if is_too_bright:
            outside = rows > high
        else:
            outside = (rows < low) | (rows > high)
        first = tuple(np.argwhere(outside)[0])
        value = rows[first]
        at = tuple(map(int, first[2:]))
        where = ''
        if at:
            where = f' at {list(at)}'
        words = (
            f'env {self._name!r}: an observation{of_entry(path)} has {value:.6g}{where}, wanted '
            f'{space.low[at]:g} to {space.high[at]:g} as in observation_space'
        )
        if is_too_bright:
            raise EnvContractError(f'{words}, by which images of bytes are scaled; {NARROWER}.')
        if is_scaled:
            self._watched[path] = _Watched(space, np.zeros_like(low), high)  # the upper bound is looked at further on
        else:
            del self._watched[path]
        self._say(f'{words}; {BELOW if is_scaled else AS_IT_IS}.')


def _log(sentence: str) -> None:
    logger.warning('%s', sentence)
