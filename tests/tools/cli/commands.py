"""Commands in this process and in a separate one, and a user's file with an env, as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.forked import Done, run_python


class Said(NamedTuple):
    """What a command printed."""

    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def data(self) -> Any:
        """The data of --json."""
        return json.loads(self.out)


Zoo = Callable[..., Said]
"""Type of the fixture `zoo`."""


def run_in(*args: str, cwd: Path | None = None) -> Done:
    """Runs `zoo ARGS` in a separate process, in a folder, and waits until it ends."""
    return run_python('-m', 'zoo', *args, cwd=cwd)


LINE_ENV = """
import gymnasium, numpy as np

class Line(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}
    def step(self, action):
        self.n += 1
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), float(action), False, self.n == 10, {}

def make(size=3):
    return Line()
"""
