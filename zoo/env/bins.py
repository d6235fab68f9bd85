"""Continuous actions as choices: each number of a Box is one of n values between its bounds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from zoo.core.spaces import Box
from zoo.env.adapter import env_spaces
from zoo.env.errors import UnsupportedEnvError


class BinsEnv(gymnasium.ActionWrapper):
    """Takes MultiDiscrete actions in place of a Box: choice k of n is low + k / (n - 1) * (high - low).

    Source: Tang and Agrawal 2020, arXiv:1901.10500, which finds that PPO learns better so in many continuous tasks.
    """

    def __init__(self, env: gymnasium.Env, n: int, name: str) -> None:
        super().__init__(env)
        _, space = env_spaces(env, name)
        if not isinstance(space, Box) or not (np.isfinite(space.low) & np.isfinite(space.high)).all():
            raise UnsupportedEnvError(
                f'env.action_bins is {n} but the actions of env {name!r} are {env.action_space}; it splits numbers '
                'between finite bounds: leave it out.'
            )
        self._values = np.linspace(space.low, space.high, n)  # [n, *A]
        self._dtype = np.dtype(space.dtype)
        self.action_space = gymnasium.spaces.MultiDiscrete(np.full(space.shape or (1,), n))

    def action(self, action: Any) -> np.ndarray:
        choice = np.reshape(action, (1, *self._values.shape[1:]))
        values = np.take_along_axis(self._values, choice, 0)[0]
        return (np.rint(values) if self._dtype.kind in 'iu' else values).astype(self._dtype)
