"""Envs that raise, end the program or hang in close."""

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium

from tests.envs import LimitEnv, LimitVectorEnv


def close_badly(how: str) -> None:
    if how == 'raise':
        raise ValueError('no such window')
    if how == 'exit':
        sys.exit('bye')
    if how == 'hang':
        time.sleep(3600)


class Closing(LimitEnv):
    """LimitEnv whose close raises, exits the program or hangs, as `how` says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how

    def close(self) -> None:
        close_badly(self._how)


class ClosingVector(LimitVectorEnv):
    """The same as a vector env."""

    def __init__(self, num_envs: int = 1, how: str = '') -> None:
        super().__init__(num_envs)
        self._how = how

    def close_extras(self, **kwargs: Any) -> None:
        close_badly(self._how)


gymnasium.register('Closing-v0', entry_point=Closing, vector_entry_point=ClosingVector)
