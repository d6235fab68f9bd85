"""QuickMultiDiscrete and QuickDiscrete accept and refuse the same values as gymnasium's own spaces."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Discrete, MultiDiscrete

from zoo.env.config import EnvConfig
from zoo.env.make_vector import make_vector_env, use_fast_action_space
from zoo.env.vector import QuickDiscrete, QuickMultiDiscrete


class OwnCartPole(CartPoleEnv):
    """A user's env, which may hold its space by another name."""


SPACES = [
    MultiDiscrete([2, 2, 2]),
    MultiDiscrete([3, 2, 5], start=[-1, 0, 4]),
    MultiDiscrete([100, 2, 2], dtype=np.int8),
    MultiDiscrete([3, 3, 3], start=[-1, -1, -1]),  # all choices have the same options, other than 0, 1, ..
    MultiDiscrete([2, 2, 3], start=[0, 0, -1]),
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


@pytest.mark.parametrize('space', [Discrete(3), Discrete(4, start=-2)], ids=str)
def test_contains_of_one_action_is_that_of_gymnasium(space: Discrete) -> None:
    quick, n_in = QuickDiscrete(space), 0
    kinds: list[Any] = [np.int64, int, np.int8, np.uint8, np.float32, np.array, lambda i: np.array([i]), str, bool]
    for x in [kind(i) for i in range(-4, 5) for kind in kinds if i >= 0 or kind is not np.uint8] + [None]:
        assert quick.contains(x) is space.contains(x), x
        n_in += space.contains(x)
    assert n_in >= 12 and quick == space and space == quick and repr(quick) == repr(space)
    for each in (space, quick):
        each.seed(3)
    assert [quick.sample() for _ in range(5)] == [space.sample() for _ in range(5)]


def test_each_cartpole_has_it_and_refuses_what_it_refused_and_a_users_env_keeps_its_space() -> None:
    env = make_vector_env(EnvConfig(id='CartPole-v1', vectorization='sync'), 2)
    first: Any = env.env.envs[0].unwrapped  # type: ignore[union-attr]
    assert type(first.action_space) is QuickDiscrete
    env.reset(np.random.SeedSequence(0))
    with pytest.raises(AssertionError):
        first.step(np.int64(2))
    env.close()
    env = make_vector_env(EnvConfig(id=lambda: OwnCartPole()), 1)
    assert type(env.env.envs[0].unwrapped.action_space) is Discrete  # type: ignore[union-attr]
    env.close()


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
