"""Encodes MiniGrid's observations, a dict of categories, as one vector."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import gymnasium
import numpy as np

# Categories of a cell of the view: object (unseen, empty, wall, floor, door, key, ball, box, goal, lava, agent),
# its colour (red, green, blue, purple, yellow, grey), its state (open, closed, locked).
N_KIND = (11, 6, 3)
N_DIRECTION = 4
KEYS = {'image', 'direction', 'mission'}

logger = logging.getLogger(__name__)


class MiniGridEncoder:
    """One-hot vectors of {'image': [B, H, W, 3] bytes, 'direction': [B]}: [B, H * W * 20 + 4] f32.

    For each cell of the image 11 numbers for its object, 6 for its colour, 3 for its state; then 4 for the direction
    that the agent faces (right, down, left, up). The 7x7 view makes 984 numbers. The mission is left out.
    """

    def __init__(self, space: gymnasium.spaces.Dict, name: str) -> None:
        self._name = name
        self._warned = False
        height, width, _ = space['image'].shape or ()
        self._size = height * width * sum(N_KIND) + N_DIRECTION
        self.space = gymnasium.spaces.Box(0.0, 1.0, (self._size,), np.float32)
        # index of value 0 of each byte: cell c at 20 c, 20 c + 11, 20 c + 17
        within = np.cumsum((0, *N_KIND[:-1]))
        self._start = (np.arange(height * width)[:, None] * sum(N_KIND) + within).ravel()  # [H * W * 3]

    def __call__(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        n_env = len(obs['direction'])
        vector = np.zeros((n_env, self._size), np.float32)
        row = np.arange(n_env)
        vector[row[:, None], self._start + obs['image'].reshape(n_env, -1)] = 1.0  # [B, H, W, 3] -> [B, H * W * 3]
        vector[row, self._size - N_DIRECTION + obs['direction']] = 1.0
        return vector

    def warn_of_missions(self, obs: Mapping[str, np.ndarray]) -> None:
        """Warn once if the envs have different missions, which the policy cannot see."""
        missions = {row.tobytes().rstrip(b'\0').decode() for row in obs['mission']}
        if len(missions) > 1 and not self._warned:
            self._warned = True
            logger.warning(
                'the missions of env %r differ (%s), but its observations leave them out: the policy cannot see its mission',
                self._name,
                ', '.join(map(repr, sorted(missions)[:2])),
            )
