"""Finds out where an env has its action masks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

from zoo.core.spaces import ACTION_MASK
from zoo.env.adapter import env_spaces
from zoo.env.calls import env_call
from zoo.env.masks import MaskSource, mask_size
from zoo.env.workers import WorkerVectorEnv
from zoo.env.wrappers import mask_method

MakeEnv = Callable[[], gymnasium.Env]


def find_mask_source(env: gymnasium.Env, name: str, is_in_info: Callable[[], bool]) -> MaskSource:
    """Where the masks of an env are: a Dict entry, else its method, else its infos; 'off' if there are none.

    is_in_info: whether they are in infos, asked last and only where actions can be masked.
    """
    space = env.observation_space
    if isinstance(space, gymnasium.spaces.Dict) and ACTION_MASK in space.spaces:
        return 'obs'
    _, action_space = env_spaces(env, name)
    if mask_size(action_space) == 0:
        return 'off'
    if mask_method(env) is not None:
        return 'method'
    return 'info' if is_in_info() else 'off'


def has_mask_in_info(env: gymnasium.Env) -> bool:
    """Whether the info of a reset has an action mask."""
    try:
        with env_call(f'env {type(env.unwrapped).__name__!r}, in a reset to look for action masks'):
            _, info = env.reset(seed=0)
        return ACTION_MASK in info
    except Exception:  # the next reset raises it again, and then the message has index and step
        return False


def has_mask_in_worker(make: MakeEnv, name: str, timeout: float) -> bool:
    """The same of an env that is made in a process of its own, since its reset may hang or end the process.

    timeout: seconds that the reset may take.
    """
    try:
        with closing(WorkerVectorEnv([lambda: _Probe(make)], AutoresetMode.SAME_STEP, timeout, name)) as env:
            obs, _ = env.reset(seed=[0])
            return bool(obs[0])
    except Exception:  # see above
        return False


class _Probe(gymnasium.Env):
    """Its first observation is 1 if the info of a reset of an env has a mask, else 0; the env is made by the reset."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, make: MakeEnv) -> None:
        self._make = make
        self._env: gymnasium.Env | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        self._env = self._make()
        return int(has_mask_in_info(self._env)), {}

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
