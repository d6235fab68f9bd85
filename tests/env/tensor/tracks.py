"""A tensor env whose every number is known in advance."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.core.spaces import Box, Discrete
from zoo.env import TensorEnv


class Lap(NamedTuple):
    """State of Track."""

    start: Tensor
    place: Tensor


class Track(TensorEnv):
    """Starts at a random multiple of 100 and moves by its action; the episode ends at `end` or more from the start.

    The observation is (place, place - start), the reward the place.
    """

    obs_space, action_space = Box(np.full(2, -np.inf), np.full(2, np.inf)), Discrete(3)
    max_episode_steps: int | None = 5
    n_noise = 1
    end = 3

    def reset(self, noise: Tensor) -> Any:
        start = 100 * (1 + torch.floor(noise[:, 0] * 1000))
        return Lap(start, start)

    def step(self, state: Any, action: Tensor, noise: Tensor) -> tuple[Any, Tensor, Tensor]:
        state = Lap(state.start, state.place + action)
        return state, state.place, state.place - state.start >= self.end

    def observe(self, state: Any) -> Tensor:
        return torch.stack((state.place, state.place - state.start), 1)
