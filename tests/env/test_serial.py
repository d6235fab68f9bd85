"""SerialVectorEnv: envs that step one after the other, and the array of their observations."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array

from zoo.env.errors import BrokenContractError
from zoo.env.serial import SerialVectorEnv


class Shows(gymnasium.Env):
    """Every observation is `obs`."""

    action_space = Discrete(2)

    def __init__(self, space: gymnasium.Space, obs: Any) -> None:
        self.observation_space, self._obs = space, obs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._obs, 0.0, False, False, {}


VECTOR, BYTES = Box(-9.0, 9.0, (3,)), Box(0, 255, (3,), np.uint8)


@pytest.mark.parametrize(
    ('space', 'values'),
    [
        (VECTOR, [np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)]),
        (VECTOR, [np.array([1.5, 2, 3]), np.array([4, 5, 6])]),  # float64, int64
        (VECTOR, [np.array([1, 2, 3], np.float32), [4.0, 5.0, 6.0]]),  # no array
        (BYTES, [np.array([1, 2, 3], np.uint8), np.array([True, False, True])]),
        (Discrete(7), [3, np.int64(6)]),
    ],
    ids=str,
)
def test_observations_are_those_of_gymnasium(space: gymnasium.Space, values: list[Any]) -> None:
    env = SerialVectorEnv([lambda x=x: Shows(space, x) for x in values], AutoresetMode.SAME_STEP, 'shows')  # type: ignore
    want = concatenate(space, values, create_empty_array(space, 2))
    found, _ = env.reset()
    np.testing.assert_array_equal(found, want)
    found = env.step(np.zeros(2, int))[0]
    np.testing.assert_array_equal(found, want)
    assert found.dtype == want.dtype == space.dtype
    env.close()


@pytest.mark.parametrize(
    ('space', 'obs'),
    [
        (VECTOR, np.ones((1,), np.float32)),  # would broadcast to a row of three
        (VECTOR, np.float32(1)),
        (VECTOR, np.ones((3, 1), np.float32)),
        (BYTES, np.array([1, 2, 256])),  # int64 is not cast to bytes silently
        (BYTES, np.array([1.0, 2.0, 3.0])),
    ],
    ids=str,
)
def test_observations_that_do_not_fit_are_refused(space: gymnasium.Space, obs: Any) -> None:
    env = SerialVectorEnv(
        [lambda: Shows(space, np.ones(3, space.dtype)), lambda: Shows(space, obs)], AutoresetMode.SAME_STEP, 'shows'
    )
    with pytest.raises(BrokenContractError, match=r'\(3,\) as in observation_space'):
        env.reset()
    assert env.failed_index == 1
    env.close()
