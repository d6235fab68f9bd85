"""Small envs with known answers: the observation is the number of steps taken in the episode, every reward is 1.

limit_env(limit=5, end='truncated')    a gymnasium env; as id: 'tests.envs:limit_env'
'tests.envs:Limit-v0'                  the same as a gymnasium id, with a batched version in NEXT_STEP mode
'tests.envs:LimitSameStep-v0', 'tests.envs:LimitDisabled-v0'      with a batched version in those modes
play(vector, *actions)                 the timesteps of a vector of envs from its reset on
"""

from __future__ import annotations

from contextlib import closing
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

End = Literal['truncated', 'terminated']


def play(vector: Any, *actions: Any) -> list[Any]:
    """Resets a vector of envs, takes a step for each row of actions, closes it and returns the timesteps."""
    with closing(vector):
        vector.reset(0)
        return [vector.step(torch.as_tensor(action)) for action in actions]


def _action_space(action: str) -> gymnasium.Space:
    return Discrete(2) if action == 'discrete' else Box(-1.0, 1.0, (1,), np.float32)


class LimitEnv(gymnasium.Env):
    """Every episode has `limit` steps and ends as `end` says; the action is only remembered."""

    metadata = {'render_modes': []}

    def __init__(self, limit: int = 5, end: End = 'truncated', action: Literal['discrete', 'box'] = 'discrete') -> None:
        self.observation_space = Box(0.0, np.inf, (1,), np.float32)
        self.action_space = _action_space(action)
        self.limit, self.end = limit, end
        self.last_action: Any = None
        self._n_step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._n_step = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.last_action = action
        self._n_step += 1
        ends = self._n_step == self.limit
        terminated, truncated = (ends and self.end == how for how in ('terminated', 'truncated'))
        return np.full(1, self._n_step, np.float32), 1.0, terminated, truncated, {}


def limit_env(limit: int = 5, end: End = 'truncated', action: Literal['discrete', 'box'] = 'discrete') -> gymnasium.Env:
    return LimitEnv(limit, end, action)


class LimitVectorEnv(gymnasium.vector.VectorEnv):
    """A batch of B LimitEnvs; in NEXT_STEP mode with reset rows (reward 0) between the episodes."""

    metadata = {'render_modes': [], 'autoreset_mode': AutoresetMode.NEXT_STEP}

    def __init__(
        self, num_envs: int = 1, limit: int = 5, end: End = 'truncated', action: Literal['discrete', 'box'] = 'discrete'
    ) -> None:
        self.num_envs, self.limit, self.end = num_envs, limit, end
        self.single_observation_space = Box(0.0, np.inf, (1,), np.float32)
        self.single_action_space = _action_space(action)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._n_step = np.zeros(num_envs, dtype=np.int64)
        self._ended = np.zeros(num_envs, dtype=bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        mask = (options or {}).get('reset_mask', np.ones(self.num_envs, dtype=bool))
        self._n_step[mask] = 0
        self._ended[mask] = False
        return self.observed(), {}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        assert self.action_space.contains(actions), f'{actions!r} is not in {self.action_space}'
        mode = self.metadata['autoreset_mode']
        was_ended = self._ended
        assert mode is AutoresetMode.NEXT_STEP or not was_ended.any(), 'stepped an ended env'
        self._n_step = np.where(was_ended, 0, self._n_step + 1)
        ended = self._ended = self._n_step == self.limit
        info: dict[str, Any] = {}
        if mode is AutoresetMode.SAME_STEP:
            info = {'final_obs': self.observed()} if ended.any() else {}  # one array for all envs, as in ale-py
            self._n_step = np.where(ended, 0, self._n_step)
            self._ended = np.zeros_like(ended)
        none = np.zeros_like(ended)
        terminated, truncated = (ended, none) if self.end == 'terminated' else (none, ended.copy())
        return self.observed(), np.where(was_ended, 0.0, 1.0), terminated.copy(), truncated, info

    def observed(self) -> np.ndarray:
        return self._n_step[:, None].astype(np.float32)


class LimitSameStepVectorEnv(LimitVectorEnv):
    metadata = {'render_modes': [], 'autoreset_mode': AutoresetMode.SAME_STEP}


class LimitDisabledVectorEnv(LimitVectorEnv):
    metadata = {'render_modes': [], 'autoreset_mode': AutoresetMode.DISABLED}


for _id, _batched in (
    ('Limit-v0', 'LimitVectorEnv'),
    ('LimitSameStep-v0', 'LimitSameStepVectorEnv'),
    ('LimitDisabled-v0', 'LimitDisabledVectorEnv'),
):
    gymnasium.register(_id, entry_point='tests.envs:LimitEnv', vector_entry_point=f'tests.envs:{_batched}')
