"""Envs that show their attributes and reset options in observations, and that return infos of many types.

steer_env(lengths=(5,))   episodes of these lengths in turn; observation [steps taken, option 'goal', wind], reward 1
'tests.steer_envs:SteerVectorEnv'   LimitVectorEnv (5 steps) whose infos have 'step', as gymnasium's batched envs give them
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from tests.envs import LimitVectorEnv


class Engine:
    """An object inside the env, for attributes with dotted names (engine.power)."""

    def __init__(self) -> None:
        self.power = 1.0


class SteerEnv(gymnasium.Env):
    metadata = {'render_modes': []}

    def __init__(self, lengths: Sequence[int] = (5,), fail_at: int | None = None) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Discrete(2)
        self.wind, self.level, self.on, self.title = 0.5, 1, False, 'sea'
        self.engine, self.handle = Engine(), (i for i in ())  # a generator cannot be sent between processes
        self._lengths, self._n_episode, self._n_step, self._goal = tuple(lengths), -1, 0, 0.0
        self._fail_at = fail_at

    @property
    def fixed(self) -> int:
        return 3

    def add(self, a: float, b: float = 0.0) -> float:
        return self.wind + a + b

    def fail(self) -> None:
        raise RuntimeError('no such wind')

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._n_episode, self._n_step, self._goal = self._n_episode + 1, 0, (options or {}).get('goal', 0.0)
        return self._obs(), {'step': -1.0}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._n_step += 1
        if self._n_step == self._fail_at and self._n_episode == 1:
            raise RuntimeError('it fell over')
        ends = self._n_step == self._lengths[self._n_episode % len(self._lengths)]
        info = {
            'step': self._n_step,
            'place': np.array([self._n_step, self.wind]),
            'title': self.title,
            'odd': {'a': 1},
        }
        info |= {'even': self._n_step} if self._n_step % 2 == 0 else {}
        return (
            self._obs(),
            1.0,
            ends,
            False,
            info | ({'is_success': np.True_, 'score': np.float32(2.5)} if ends else {}),
        )

    def _obs(self) -> np.ndarray:
        return np.array([self._n_step, self._goal, self.wind], np.float32)


def steer_env(lengths: Sequence[int] = (5,), fail_at: int | None = None) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(SteerEnv(lengths, fail_at), 1000)


class NoOptionsEnv(SteerEnv):
    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict]:  # type: ignore[override]
        return super().reset(seed=seed)


class SteerVectorEnv(LimitVectorEnv):
    """LimitVectorEnv with infos in gymnasium's form: in SAME_STEP mode 'final_info' has the info of an episode's last step."""

    wind = 0.5

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        before = self._n_step.copy()
        was_ended = self._ended
        obs, reward, terminated, truncated, info = super().step(actions)
        all_ = np.ones(self.num_envs, dtype=bool)
        step, ended = np.where(was_ended, -1.0, before + 1.0), terminated | truncated
        if self.metadata['autoreset_mode'] is AutoresetMode.SAME_STEP and ended.any():
            info |= {'final_info': {'step': step, '_step': ended}, '_final_info': ended}
            step = np.where(ended, -1.0, step)
        return obs, reward, terminated, truncated, {**info, 'step': step, '_step': all_}


class SteerSameStepVectorEnv(SteerVectorEnv):
    metadata = {'render_modes': [], 'autoreset_mode': AutoresetMode.SAME_STEP}


class SteerDisabledVectorEnv(SteerVectorEnv):
    metadata = {'render_modes': [], 'autoreset_mode': AutoresetMode.DISABLED}


for _id, _batched in (
    ('Steer-v0', 'SteerVectorEnv'),
    ('SteerSameStep-v0', 'SteerSameStepVectorEnv'),
    ('SteerDisabled-v0', 'SteerDisabledVectorEnv'),
):
    gymnasium.register(_id, entry_point='tests.envs:LimitEnv', vector_entry_point=f'tests.steer_envs:{_batched}')
