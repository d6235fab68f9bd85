"""CartPole with slow steps, as in a simulator: each step sleeps for $ZOO_SLOW_ENV_MS milliseconds, 2 by default.

It is registered in gymnasium as SlowCartPole-v1, so that every library makes it by the same id.
"""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class SlowCartPole(CartPoleEnv):
    """CartPole that sleeps in each step."""

    seconds = float(os.environ.get('ZOO_SLOW_ENV_MS', '2')) / 1000

    def step(self, action: Any) -> tuple[Any, ...]:
        time.sleep(self.seconds)
        return super().step(action)


gymnasium.register('SlowCartPole-v1', entry_point='slow_env:SlowCartPole', max_episode_steps=500)
