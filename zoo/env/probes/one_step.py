"""One-step envs for every action space, whose best reward is known."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from zoo.core.registry import ENV_REGISTRY
from zoo.core.spaces import ACTION_MASK
from zoo.env.adapter import convert_space
from zoo.env.masks import mask_size
from zoo.env.probes.masks import random_mask
from zoo.env.probes.spaces import ACTION_SPACES, Target, make_space


@ENV_REGISTRY.register('one_step')
class OneStep(gymnasium.Env):
    """One step per episode: the observation shows a target, the reward is 1 at it and falls to -1 with the distance.

    Choices are scored 1 if right and -1 if wrong, bits too, numbers by 1 - |number - target| with the bounds as -1 and
    1; the reward is the mean over the leaves.

    Args: action: a name of ACTION_SPACES.
      masked: each episode allows random actions only, with the target among them; an illegal one raises.
    """

    metadata = {'render_modes': []}

    def __init__(self, action: str = 'discrete', masked: bool = False) -> None:
        self.action_space = make_space(ACTION_SPACES, action, 'action')
        self._plain = convert_space(self.action_space, 'action', 'one_step')
        self._target = Target(self.action_space)
        self._has_mask = masked and mask_size(self._plain) > 0
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (self._target.size,), np.float32)
        self._obs = np.zeros(self._target.size, np.float32)
        self._mask: np.ndarray | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._mask = random_mask(self._plain, self.np_random) if self._has_mask else None
        self._obs = self._target.draw(self.np_random, self._mask)
        return self._obs, self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self._mask is not None:
            self._target.check_legal(action, self._mask)
        return self._obs, self._target.score(action, self._obs), True, False, self._info()

    def _info(self) -> dict[str, Any]:
        return {} if self._mask is None else {ACTION_MASK: self._mask}
