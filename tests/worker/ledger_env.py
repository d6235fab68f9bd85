"""An env that writes what happened to it into its observations, and of which one copy can be held up."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class LedgerEnv(gymnasium.Env):
    """Observations are (index of the copy, episode, step, last action); the reward is the step; every third step is an end.

    Args: gate: a file; copy 0 answers no step as long as it is missing; dies: in copy 1 the process ends at this step of the
      first episode, once (a file beside the gate remembers it).
    """

    def __init__(self, gate: str = '', limit: int = 3, dies: int = 0) -> None:
        self.observation_space = Box(-1.0, np.inf, (4,), np.float32)
        self.action_space = Discrete(2)
        self._gate, self._limit, self._dies = gate, limit, dies
        self._index = int(multiprocessing.current_process().name.split()[-1]) if self._is_worker else 0
        self._episode, self._step, self.shift = 0, 0, 0.0

    @property
    def _is_worker(self) -> bool:
        return multiprocessing.parent_process() is not None

    def _obs(self, action: int) -> np.ndarray:
        return np.array([self._index, self._episode, self._step, action], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        return self._obs(-1), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        while self._gate and self._index == 0 and self._is_worker and not os.path.exists(self._gate):
            time.sleep(0.001)
        self._step += 1
        died = Path(f'{self._gate}.died')
        if self._dies == self._step and self._index == 1 and self._is_worker and not died.exists():
            died.touch()
            os._exit(3)
        is_over = self._step == self._limit
        return self._obs(int(action)), self._step + self.shift, False, is_over, {'step': self._step}
