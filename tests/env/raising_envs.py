"""Envs whose code raises in one of its calls."""

from __future__ import annotations

from typing import Any

import gymnasium

from tests.envs import LimitEnv, LimitSameStepVectorEnv


class SimulatorError(Exception):
    """An exception class that neither zoo nor numpy knows."""


class RaisingEnv(LimitEnv):
    """Raises in one of its calls: the constructor, every reset, or only the n-th step."""

    def __init__(self, call: str, error: Any = SimulatorError, n_step: int = 1) -> None:
        super().__init__(limit=100)
        self.call, self.error, self.n_left = call, error, n_step
        self.fail_in('constructor')

    def fail_in(self, call: str) -> None:
        if call == self.call:
            raise self.error('a joint\nis loose')

    def reset(self, **kwargs: Any) -> Any:
        self.fail_in('reset')
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.n_left -= 1
        if not self.n_left:
            self.fail_in('step')
        return super().step(action)


class RaisingVectorEnv(LimitSameStepVectorEnv):
    fail_in: Any = RaisingEnv.fail_in

    def __init__(self, num_envs: int = 1, call: str = 'step', error: Any = SimulatorError) -> None:
        super().__init__(num_envs)
        self.call, self.error = call, error
        self.fail_in('constructor')

    def reset(self, **kwargs: Any) -> Any:
        self.fail_in('reset')
        return super().reset(**kwargs)

    def step(self, actions: Any) -> Any:
        self.fail_in('step')
        return super().step(actions)


gymnasium.register('Raising-v0', entry_point=RaisingEnv, vector_entry_point=RaisingVectorEnv)
