"""An env whose legal actions change at every step."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from zoo.core.registry import ENV_REGISTRY
from zoo.core.spaces import ACTION_MASK
from zoo.env.adapter import convert_space
from zoo.env.errors import EnvKwargsError
from zoo.env.masks import choice_slices, mask_size
from zoo.env.probes.masks import random_mask
from zoo.env.probes.spaces import Target

SPACES = {'discrete': lambda: Discrete(8), 'multi_discrete': lambda: MultiDiscrete([3, 5])}


@ENV_REGISTRY.register('random_masks')
class RandomMasks(gymnasium.Env):
    """Half of the actions are legal, others at every step; the reward is 1 for the lowest legal one, else 0.

    The observation says nothing: who prefers low actions and knows the mask earns `n_step`. Of MultiDiscrete each entry
    earns its part. An illegal action is counted in `n_illegal` and raises.

    Args: action: 'discrete' (8 actions) or 'multi_discrete' (3 and 5).
      source: where the mask is: 'info', 'obs' (observations are a Dict) or 'method'.
    """

    metadata = {'render_modes': []}

    def __init__(
        self,
        action: Literal['discrete', 'multi_discrete'] = 'discrete',
        source: Literal['info', 'obs', 'method'] = 'info',
        n_step: int = 10,
    ) -> None:
        for key, value, known in (('action', action, tuple(SPACES)), ('source', source, ('info', 'obs', 'method'))):
            if value not in known:
                raise EnvKwargsError(f'env.kwargs.{key} is {value!r}, wanted {" or ".join(map(repr, known))}.')
        self.action_space = SPACES[action]()
        self._plain = convert_space(self.action_space, 'action', 'random_masks')
        self._choices, self._target = choice_slices(self._plain), Target(self.action_space)
        self._source, self._n_step, self._t = source, n_step, 0
        nothing = Box(0.0, 1.0, (1,), np.float32)
        mask = MultiBinary(mask_size(self._plain))
        self.observation_space = Dict({'obs': nothing, ACTION_MASK: mask}) if source == 'obs' else nothing
        self._blank = np.ones(1, np.float32)
        self._mask = np.ones(mask_size(self._plain), bool)
        self.n_illegal = 0
        if source == 'method':
            self.action_masks = lambda: self._mask

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._t = 0
        return self._shown()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.n_illegal += 1
        self._target.check_legal(action, self._mask)
        self.n_illegal -= 1
        lowest = [int(self._mask[choice].argmax()) for choice in self._choices]
        reward = float(np.mean(np.ravel(action) == lowest))
        self._t += 1
        obs, info = self._shown()
        return obs, reward, self._t == self._n_step, False, info

    def _shown(self) -> tuple[Any, dict]:
        self._mask = random_mask(self._plain, self.np_random)
        if self._source == 'obs':
            return {'obs': self._blank, ACTION_MASK: self._mask.astype(np.int8)}, {}
        return self._blank, {ACTION_MASK: self._mask} if self._source == 'info' else {}
