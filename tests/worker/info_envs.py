"""Envs whose infos have known numbers.

info_env(limit=5, ...)    LimitEnv; the info of step n (from 1 on) has n under 'steps', 2 n under 'speed', and more; with
                          fails the env raises an error at step 3 of its second episode, with empty_end the last info is empty
plain_env(limit=5)        LimitEnv, whose infos are empty
vector_env(num_envs, mode)    num_envs times info_env in gymnasium's SyncVectorEnv, in any autoreset mode
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from tests.envs import LimitEnv

INFO = 'tests.worker.info_envs:info_env'


class InfoEnv(LimitEnv):
    """At the end of every second episode `is_success` is true; a reset has the number 1000 under 'steps'."""

    def __init__(self, limit: int = 5, n_extra: int = 0, fails: bool = False, empty_end: bool = False) -> None:
        super().__init__(limit)
        self._n_extra, self._n_reset, self._fails, self._empty_end = n_extra, 0, fails, empty_end

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict]:
        obs, _ = super().reset(**kwargs)
        self._n_reset += 1
        return obs, {'steps': 1000, 'speed': 1000.0}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        obs, reward, terminated, truncated, _ = super().step(action)
        n = self._n_step
        if self._fails and self._n_reset == 2 and n == 3:
            raise RuntimeError('the simulator broke down')
        if self._empty_end and truncated:
            return obs, reward, terminated, truncated, {}
        info = {
            'steps': n,
            'speed': np.float32(2 * n),
            'name': 'not a number',
            'place': np.arange(3.0),
            'parts': {'drag': 1.0},
            'TimeLimit.truncated': truncated,
            'episode': {'r': 7.0, 'l': 5, 't': 0.1},
            **{f'extra_{i}': i for i in range(self._n_extra)},
        }
        if truncated:
            info['is_success'] = self._n_reset % 2 == 0
        return obs, reward, terminated, truncated, info


def info_env(limit: int = 5, n_extra: int = 0, fails: bool = False, empty_end: bool = False) -> gymnasium.Env:
    return InfoEnv(limit, n_extra, fails, empty_end)


def plain_env(limit: int = 5) -> gymnasium.Env:
    return LimitEnv(limit)


def vector_env(num_envs: int, mode: str = 'SAME_STEP', limit: int = 5) -> VectorEnv:
    return SyncVectorEnv([lambda: InfoEnv(limit)] * num_envs, autoreset_mode=AutoresetMode[mode])
