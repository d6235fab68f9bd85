"""Envs with the interface of dm_env: written for it here, and those of its packages where these are installed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from zoo.core.spaces import Box, Dict, Discrete, MultiDiscrete
from zoo.env import EnvConfig, EnvContractError, UnsupportedEnvError, make_env, make_vector_env

dm_env = pytest.importorskip('dm_env')
specs = dm_env.specs


class Ladder(dm_env.Environment):
    """Counts up; action 1 falls off. A fall is the end, with discount 0; at 3 the time is over, with discount 1."""

    def __init__(self, middle: float = 1.0) -> None:
        self._middle = middle
        self._rng = np.random.RandomState()

    def reset(self) -> Any:
        self._n = 0
        self._colour = self._rng.randint(1000)
        return dm_env.restart(self._seen())

    def step(self, action: Any) -> Any:
        self._n += 1
        if action == 1:
            return dm_env.termination(-1.0, self._seen())
        if self._n == 3:
            return dm_env.truncation(2.0, self._seen())
        return dm_env.transition(1.0, self._seen(), self._middle)

    def observation_spec(self) -> Any:
        colour = specs.BoundedArray((1,), np.int32, 0, 999)
        return {'n': specs.Array((), np.float64), 'colour': colour, 'left': specs.DiscreteArray(4)}

    def action_spec(self) -> Any:
        return specs.DiscreteArray(2)

    def _seen(self) -> Any:
        return {'n': float(self._n), 'colour': np.array([self._colour], np.int32), 'left': 3 - self._n}


class Worded(Ladder):
    def observation_spec(self) -> Any:
        return specs.StringArray(())


def test_dm_env_has_the_spaces_of_its_specs() -> None:
    env: Any = make_vector_env(EnvConfig(id=Ladder), 2)
    assert isinstance(env.obs_space, Dict)
    assert env.obs_space.spaces == {
        'n': Box(np.full(1, -np.inf), np.full(1, np.inf)),
        'colour': Box(np.zeros(1), np.full(1, 999), 'int32'),
        'left': Discrete(4),
    }
    assert env.action_space == Discrete(2)


def test_dm_env_end_is_terminated_by_the_discount_zero_alone() -> None:
    env: Any = make_vector_env(EnvConfig(id=Ladder), 2)
    env.reset(0)
    step = env.step(torch.tensor([0, 1]))
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([False, True], [False, False])
    assert step.reward.tolist() == [1.0, -1.0]
    env.step(torch.tensor([0, 0]))
    step = env.step(torch.tensor([0, 0]))
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([False, False], [True, False])
    assert step.reward.tolist() == [2.0, 1.0]
    assert step.final_obs['n'].tolist() == [[3.0]]


def test_dm_env_reset_with_a_seed_seeds_its_generator() -> None:
    env: Any = make_vector_env(EnvConfig(id=Ladder), 3)
    first = env.reset(5)['colour']
    assert torch.equal(env.reset(5)['colour'], first)
    assert len(set(env.reset(6)['colour'].flatten().tolist()) | set(first.flatten().tolist())) == 6


def test_dm_env_with_a_key_of_single_envs_is_wrapped_as_others() -> None:
    env: Any = make_vector_env(EnvConfig(id=Ladder, drop_obs=['colour'], max_episode_steps=2), 1)
    assert list(env.reset(0)) == ['left', 'n']
    env.step(torch.tensor([0]))
    assert env.step(torch.tensor([0])).truncated.tolist() == [True]


def test_dm_env_with_another_discount_before_the_end_is_refused() -> None:
    env: Any = make_vector_env(EnvConfig(id=Ladder, kwargs={'middle': 0.5}), 1)
    env.reset(0)
    with pytest.raises(
        EnvContractError,
        match=r'the discount of a step that is not the last one is 0\.5.*by policy\.collect\.discount_factor alone',
    ):
        env.step(torch.tensor([0]))


class Strict(Ladder):
    """Refuses actions that are not as its spec says, as dm_env has it."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self._spec = spec

    def action_spec(self) -> Any:
        return self._spec

    def step(self, action: Any) -> Any:
        self._spec.validate(action)
        return dm_env.transition(float(np.sum(action)), self._seen())


@pytest.mark.parametrize(
    ('spec', 'action', 'reward', 'space'),
    [
        (specs.BoundedArray((), np.float64, -1, 1), torch.tensor([[0.5]]), 0.5, Box(np.full(1, -1.0), np.ones(1))),
        (specs.BoundedArray((), np.int32, 2, 5), torch.tensor([3]), 5.0, Discrete(4, 2)),  # choice 3 is 2 + 3
        (
            specs.BoundedArray((2,), np.int64, [0, 1], [1, 3]),
            torch.tensor([[1, 2]]),
            4.0,  # 1 + (1 + 2)
            MultiDiscrete((2, 3), (0, 1), (2,)),
        ),
        (specs.DiscreteArray(3, np.int8), torch.tensor([2]), 2.0, Discrete(3)),
    ],
)
def test_dm_env_gets_actions_as_its_spec_says(spec: Any, action: torch.Tensor, reward: float, space: Any) -> None:
    env: Any = make_vector_env(EnvConfig(id=Strict, kwargs={'spec': spec}), 1)
    assert env.action_space == space
    env.reset(0)
    assert env.step(action).reward.tolist() == [reward]


def test_dm_env_with_a_spec_of_text_is_refused() -> None:
    with pytest.raises(UnsupportedEnvError, match='observation spec StringArray'):
        make_env(EnvConfig(id=Worded))


def test_gymnasium_env_with_specs_stays_what_it_is() -> None:
    class Both(gymnasium.Env):
        observation_space = action_space = gymnasium.spaces.Discrete(2)
        observation_spec = action_spec = lambda self: None  # noqa: E731

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return 1, {}

        def step(self, action: Any) -> Any:
            return 1, 0.0, False, False, {}

    assert type(make_env(EnvConfig(id=Both)).unwrapped) is Both


@pytest.mark.slow
def test_bsuite_catch_ends_by_its_discount() -> None:
    pytest.importorskip('bsuite')
    env: Any = make_vector_env(EnvConfig(id='bsuite.environments.catch:Catch'), 2)
    env.reset(0)
    for _ in range(9):  # the ball falls through ten rows
        step = env.step(torch.tensor([1, 1]))
    assert step.terminated.tolist() == [True, True]
    assert set(step.reward.abs().tolist()) == {1.0}


@pytest.mark.soak
def test_dm_control_limit_is_truncated() -> None:
    pytest.importorskip('dm_control')
    kwargs = {'domain_name': 'cartpole', 'task_name': 'balance', 'task_kwargs': {'time_limit': 0.05}}
    env: Any = make_vector_env(EnvConfig(id='dm_control.suite:load', kwargs=kwargs), 1)
    obs = env.reset(1)
    assert torch.equal(env.reset(1)['position'], obs['position'])
    flags = []
    for _ in range(5):  # 0.05 s in steps of 0.01 s
        step = env.step(torch.zeros(1, 1))
        flags.append((bool(step.terminated), bool(step.truncated)))
    assert flags == [(False, False)] * 4 + [(False, True)]
