"""Envs that keep the contract but for one thing, and their config sections."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from tests.envs import LimitEnv


class StepEnv(LimitEnv):
    """Returns `change(obs, reward, terminated, truncated, info)` from its 2nd step on."""

    def __init__(self, change: Any, n_good: int = 1) -> None:
        super().__init__()
        self.change, self.n_good = change, n_good

    def step(self, action: Any) -> Any:
        result = super().step(action)
        return result if self._n_step <= self.n_good else self.change(*result)


class ShowEnv(LimitEnv):
    """Every observation is `obs`."""

    def __init__(self, obs: Any, space: gymnasium.Space) -> None:
        super().__init__()
        self.observation_space, self.obs = space, obs

    def reset(self, **kwargs: Any) -> Any:
        return self.obs, super().reset(**kwargs)[1]

    def step(self, action: Any) -> Any:
        return (self.obs, *super().step(action)[1:])


def step_env(change: Any, **kwargs: Any) -> dict[str, Any]:
    return dict(id=StepEnv, kwargs={'change': change, **kwargs})


def shows(obs: Any, space: gymnasium.Space) -> dict[str, Any]:
    return dict(id=ShowEnv, kwargs={'obs': obs, 'space': space})


class NoSeedEnv(LimitEnv):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class RandomEnv(LimitEnv):
    """Its first observation is drawn from a stream that no seed reaches."""

    rng = np.random.default_rng(0)

    def reset(self, **kwargs: Any) -> Any:
        return self.rng.random(1, np.float32), super().reset(**kwargs)[1]
