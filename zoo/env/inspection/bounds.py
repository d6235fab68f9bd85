"""Bounds of Box actions that are far from the numbers with which a policy begins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zoo.core.errors import of_entry
from zoo.core.spaces import Box, Space, leaf_spaces

WIDE = 10.0
NARROW = 0.1
"""Half widths of an action's bounds beyond which a Gaussian of deviation 1 covers little of the range, or is mostly outside."""


class FarBounds(NamedTuple):
    """Bounds of one number of an action. path: dotted path of its leaf in the action space."""

    path: str
    low: float
    high: float

    @property
    def are_finite(self) -> bool:
        """Whether env.action_mode=rescale maps [-1, 1] to them."""
        return bool(np.isfinite([self.low, self.high]).all())

    def sentence(self) -> str:
        """The part of a warning that says what is wrong and what to do."""
        are = f'the actions{of_entry(self.path)} are from {self.low:g} to {self.high:g}, and a policy begins with numbers near'
        if self.are_finite:
            return f'{are} -1 to 1; set env.action_mode=rescale, or scale them in the env'
        if np.isfinite(self.low):
            nearest = self.low
        else:
            nearest = self.high
        return (
            f'{are} -1 to 1, all of which are clipped to {nearest:g}; give action_space finite bounds and set '
            'env.action_mode=rescale, or scale them in the env'
        )


def far_bounds(space: Space, action_mode: str = 'clip') -> list[FarBounds]:
    """The bounds of the Box leaves of an action space that the first actions of a policy miss, the first of each leaf.

    Finite bounds are far if they are very wide or narrow, or if 0 is not between them. A single bound is far if all
    numbers from -1 to 1 are beyond it.
    Args: action_mode: env.action_mode; with 'rescale', finite bounds are never far.
    """
    missed: list[FarBounds] = []
    for path, leaf in leaf_spaces(space):
        if not isinstance(leaf, Box):
            continue
        is_far = _is_far(leaf, action_mode == 'rescale')
        if is_far.any():
            at = tuple(np.argwhere(is_far)[0])
            missed.append(FarBounds(path, float(leaf.low[at]), float(leaf.high[at])))
    return missed


def _is_far(leaf: Box, is_rescaled: bool) -> np.ndarray:
    """For each number of a Box whether its bounds are far."""
    low = leaf.low.astype(np.float64)
    high = leaf.high.astype(np.float64)
    is_finite = np.isfinite(low) & np.isfinite(high)
    misses_all = ~is_finite & ((low >= 1.0) | (high <= -1.0))
    if is_rescaled:
        return misses_all
    half_low = np.where(is_finite, low, -1.0) / 2
    half_high = np.where(is_finite, high, 1.0) / 2
    half_width = half_high - half_low
    middle = half_high + half_low
    fits = (half_width < WIDE) & (half_width > NARROW) & (np.abs(middle) <= half_width)
    return misses_all | (is_finite & ~fits)
