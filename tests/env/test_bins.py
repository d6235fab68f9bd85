"""env.action_bins: choices in place of the numbers of a Box."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete

from zoo.env import UnsupportedEnvError, make_env


class Recorder(gymnasium.Env):
    observation_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, space: Any) -> None:
        self.action_space = space
        self.got: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.got = action
        return np.zeros(1, np.float32), 0.0, True, False, {}


@pytest.mark.parametrize(
    'space, n, choice, want',
    [
        (Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)), 5, [0, 4], [-2.0, 10.0]),
        (Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)), 5, [2, 1], [0.0, 2.5]),
        (Box(-1.0, 1.0, (1, 2), np.float64), 3, [[1, 2]], [[0.0, 1.0]]),
        (Box(-3, 3, (1,), np.int64), 7, [6], [3]),
        (Box(-1.0, 1.0, (), np.float32), 2, [1], 1.0),
    ],
)
def test_choice_is_sent_as_its_value(space: Box, n: int, choice: Any, want: Any) -> None:
    env = make_env(dict(id=Recorder, kwargs=dict(space=space), action_bins=n))
    assert isinstance(env.action_space, MultiDiscrete) and (env.action_space.nvec == n).all()
    env.reset(seed=0)
    env.step(np.array(choice))
    got = env.unwrapped.got
    assert got.dtype == space.dtype and got.shape == space.shape
    np.testing.assert_allclose(got, want)


@pytest.mark.parametrize('space', [Box(-np.inf, 1.0, (2,), np.float32), gymnasium.spaces.Discrete(3)])
def test_actions_without_finite_bounds_are_refused(space: Any) -> None:
    with pytest.raises(UnsupportedEnvError, match='env.action_bins is 4 but the actions of env .* leave it out'):
        make_env(dict(id=Recorder, kwargs=dict(space=space), action_bins=4))
