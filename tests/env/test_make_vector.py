"""QuickMultiDiscrete accepts and refuses the same values as gymnasium's MultiDiscrete."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import MultiDiscrete

from zoo.env.config import EnvConfig
from zoo.env.make_vector import make_vector_env, use_fast_action_space
from zoo.env.stepping import QuickMultiDiscrete

SPACES = [
    MultiDiscrete([2, 2, 2]),
    MultiDiscrete([3, 2, 5], start=[-1, 0, 4]),
    MultiDiscrete([100, 2, 2], dtype=np.int8),
]


@pytest.mark.parametrize('space', SPACES, ids=str)
def test_contains_is_that_of_gymnasium(space: MultiDiscrete) -> None:
    quick, generator, n_in = QuickMultiDiscrete(space), np.random.default_rng(0), 0
    values: list[Any] = [generator.integers(-2, 9, 3).astype(dtype) for dtype in 4 * [np.int64, np.int8, np.float32]]
    values += [space.start + (space.nvec - 1), space.start, space.start + space.nvec, space.start - 1, space.sample()]
    values += [space.start.astype(np.float32)]  # in range, but of another dtype
    values += [space.start[:2], space.start[None], space.start.tolist(), None, 1]
    for x in values:
        assert quick.contains(x) is space.contains(x), x
        n_in += space.contains(x)
    assert n_in >= 3 and quick == space


def test_batched_cartpole_has_it_and_refuses_what_it_refused() -> None:
    env = make_vector_env(EnvConfig(id='CartPole-v1', vectorization='batched'), 2)
    batched: Any = env.env.unwrapped  # type: ignore[union-attr]
    assert type(batched.action_space) is QuickMultiDiscrete
    assert batched.action_space == gymnasium.make_vec('CartPole-v1', 2).action_space
    env.reset(np.random.SeedSequence(0))
    with pytest.raises(AssertionError):
        batched.step(np.array([0, 2]))
    env.close()


def test_random_stream_is_that_of_the_space_it_replaces() -> None:
    space = MultiDiscrete([100] * 5, seed=3)
    quick = QuickMultiDiscrete(space)
    np.testing.assert_array_equal(quick.sample(), MultiDiscrete([100] * 5, seed=3).sample())


class Whole:
    """A user's own batched env that gymnasium accepts: it is no VectorEnv and has no attribute `action_space`."""

    single_action_space = MultiDiscrete([2])


class WithProperty(Whole):
    @property
    def action_space(self) -> MultiDiscrete:
        return MultiDiscrete([[2], [2]])


@pytest.mark.parametrize('kind', [Whole, WithProperty])
def test_spaces_that_cannot_be_replaced_stay(kind: type[Whole]) -> None:
    env: Any = kind()
    use_fast_action_space(env)
    assert not vars(env)
