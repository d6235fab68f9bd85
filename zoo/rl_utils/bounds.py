"""The finite bounds of a Box, as the distributions on it need them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.core.spaces import Box, Space


class Bounds(NamedTuple):
    """low, high: of each number of an action in a row, low < high."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of_space(cls, space: Space) -> Bounds | None:
        """None if the space is no Box, or a bound of it is infinite or equal to the other."""
        if not isinstance(space, Box) or not space.low.size:
            return None
        low, high = (x.astype(np.float64).ravel() for x in (space.low, space.high))
        with np.errstate(over='ignore', invalid='ignore'):
            width = high - low
        if not np.all(np.isfinite(width) & (width > 0)):
            return None
        return cls(tuple(low.tolist()), tuple(high.tolist()))

    @property
    def n_dim(self) -> int:
        return len(self.low)

    @property
    def log_width(self) -> float:
        """Logarithm of the volume between the bounds."""
        return float(np.log(np.subtract(self.high, self.low)).sum())

    def share(self, action: Tensor) -> Tensor:
        """Inverse of `scale`: an action [..., D] -> where it lies between the bounds, 0 to 1."""
        low, high = (torch.tensor(bound, dtype=action.dtype, device=action.device) for bound in (self.low, self.high))
        return (action - low) / (high - low)

    def scale(self, x: Tensor) -> Tensor:
        """x [..., D] in [0, 1] -> low + x * (high - low)."""
        if len(set(self.low)) == len(set(self.high)) == 1:
            return x * (self.high[0] - self.low[0]) + self.low[0]
        low = torch.tensor(self.low, dtype=x.dtype, device=x.device)
        return torch.lerp(low, torch.tensor(self.high, dtype=x.dtype, device=x.device), x)
