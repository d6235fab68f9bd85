"""An env with any observation space and any action space, to try them all with each other."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from zoo.core.registry import ENV_REGISTRY
from zoo.core.spaces import ACTION_MASK
from zoo.env.adapter import convert_space
from zoo.env.errors import EnvError
from zoo.env.masks import mask_size
from zoo.env.probes.masks import random_mask
from zoo.env.probes.spaces import ACTION_SPACES, OBS_SPACES, Target, make_space


@ENV_REGISTRY.register('any_space')
class AnySpace(gymnasium.Env):
    """Random observations; the reward is that of `one_step` for a target that never changes and is not shown.

    The observations 'nested_mask' have a random action mask where the actions can have one; an illegal action raises.

    Args: obs: a name of OBS_SPACES;  action: one of ACTION_SPACES;  n_step: steps of an episode.
    """

    metadata = {'render_modes': []}

    def __init__(self, obs: str = 'box', action: str = 'discrete', n_step: int = 8) -> None:
        self.observation_space = make_space(OBS_SPACES, obs, 'obs')
        self.action_space = make_space(ACTION_SPACES, action, 'action')
        self._plain = convert_space(self.action_space, 'action', 'any_space')
        n_mask = mask_size(self._plain) if obs == 'nested_mask' else 0
        self._has_mask = n_mask > 0
        if isinstance(self.observation_space, gymnasium.spaces.Dict) and self._has_mask:
            parts = {**self.observation_space.spaces, ACTION_MASK: gymnasium.spaces.MultiBinary(n_mask)}
            self.observation_space = gymnasium.spaces.Dict(parts)
        self._target = Target(self.action_space)
        self._best = self._target.draw(np.random.default_rng(0))
        self._n_step, self._t = n_step, 0
        self._mask: np.ndarray | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._t = 0
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if not self.action_space.contains(np.asarray(action) if isinstance(action, np.generic) else action):
            raise EnvError(f'the action {action!r} is not in {self.action_space}')
        if self._mask is not None:
            self._target.check_legal(action, self._mask)
        self._t += 1
        return self._shown(), self._target.score(action, self._best), self._t == self._n_step, False, {}

    def _shown(self) -> Any:
        obs = self.observation_space.sample()
        if self._has_mask:
            self._mask = random_mask(self._plain, self.np_random)
            obs[ACTION_MASK] = self._mask.astype(np.int8)
        return obs
