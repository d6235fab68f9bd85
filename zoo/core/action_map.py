"""Turns the actions of a policy into those that an env takes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from zoo.core.spaces import Box, Discrete, Space


class ActionMap:
    """Turns the actions of a policy into those an env takes; the one place where that is done.

    Discrete: index -> index + start. Box, mode 'clip': clamped to [low, high], dimension by dimension, infinite
    bounds included. Box, mode 'rescale': where both bounds are finite, [-1, 1] -> [low, high] and clamped; elsewhere
    as 'clip'.
    The policy keeps the raw action: the log-probability belongs to it, never to the copy made here.
    """

    def __init__(
        self, space: Space, mode: Literal['clip', 'rescale'] = 'clip', device: torch.device | str = 'cpu'
    ) -> None:
        """device: that of the actions given to `map`."""
        self.space = space
        if isinstance(space, Box):
            self._dtype = np.dtype(space.dtype)
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            bounded = np.isfinite(low) & np.isfinite(high) & (mode == 'rescale')
            half_low, half_high = np.where(bounded, low / 2, -0.5), np.where(bounded, high / 2, 0.5)
            self._rescale, self._round = bool(bounded.any()), self._dtype.kind != 'f'
            if not self._round:  # an env's bounds are compared in its own dtype
                low, high = low.astype(self._dtype), high.astype(self._dtype)
            else:  # int64's largest number is a float of its own, one too many: stay below it
                largest = np.iinfo(self._dtype).max
                high = np.minimum(high, largest if int(float(largest)) == largest else np.nextafter(2.0**63, 0))
            is_double = self._rescale or self._round or self._dtype == np.float64
            self._work_dtype = torch.float64 if is_double else torch.float32
            self._low: Any
            self._high: Any
            self._low, self._high, self._scale, self._shift = (
                torch.as_tensor(np.asarray(bound), device=device).to(self._work_dtype)
                for bound in (low, high, half_high - half_low, np.where(bounded, half_high + half_low, 0.0))
            )
            if low.size and (low == low.flat[0]).all() and (high == high.flat[0]).all():
                self._low, self._high = float(low.flat[0]), float(high.flat[0])  # torch takes numbers in half the time

    def __call__(self, action: Tensor) -> np.ndarray:
        """action: [B] int64 (Discrete) or [B, *A] f32 (Box) -> an array for the env, same leading shape."""
        mapped = self.map(action.detach().cpu()).numpy()
        # an index that was not shifted is still the policy's own memory
        return mapped.astype(self._dtype, copy=False) if isinstance(self.space, Box) else mapped.copy()

    def map(self, action: Tensor) -> Tensor:
        """The same on the device of the actions; of a Box in f32 or f64, whichever holds the env's numbers."""
        if isinstance(self.space, Discrete):
            return action + self.space.start if self.space.start else action
        action = action.to(self._work_dtype)
        if self._rescale:
            action = action * self._scale + self._shift
        return torch.clamp(action.round() if self._round else action, self._low, self._high)
