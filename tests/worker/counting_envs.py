"""An env whose return is the number of its steps with action 1."""

from __future__ import annotations

from typing import Any

import gymnasium

from tests.envs import LimitEnv


class CountingEnv(LimitEnv):
    """The reward is the action."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, float(action), *rest


def counting_env(limit: int = 100) -> gymnasium.Env:
    return CountingEnv(limit)
