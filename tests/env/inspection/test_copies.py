"""Envs whose constructors take a seed: each copy gets one of its own; env.kwargs.seed that makes all copies equal is named."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from tests.envs import LimitEnv, LimitVectorEnv
from tests.policy_envs import job_config
from zoo import serial_pipeline
from zoo.env import EnvConfig, check_env, inspect_env, make_vector_env
from zoo.env.make_vector import make_env_groups

SPACE = Box(0, 1, (2,), np.float32)


class OldEnv:
    """An env of old gym whose only seed is that of its constructor."""

    observation_space, action_space = SPACE, Discrete(2)

    def __init__(self, seed: int | None = None) -> None:
        self.rng = np.random.default_rng(seed)

    def reset(self) -> Any:
        self.n = 0
        return self.rng.random(2).astype(np.float32)

    def step(self, action: Any) -> Any:
        self.n += 1
        return self.rng.random(2).astype(np.float32), 1.0, self.n == 5, {}


class GoalEnv(LimitEnv):
    """A gymnasium env with a goal from the constructor's seed; its resets ignore theirs."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.observation_space = SPACE
        self.goal = np.random.default_rng(seed).random(2).astype(np.float32)

    def reset(self, **kwargs: Any) -> Any:
        return self.goal, super().reset(**kwargs)[1]

    def step(self, action: Any) -> Any:
        return self.goal, *super().step(action)[1:]


gymnasium.register('CopiesGoal-v0', entry_point=GoalEnv)


def made_old(seed: int | None = None) -> OldEnv:
    return OldEnv(seed)


class MapEnv(GoalEnv):
    """The seed is part of the task: 7 is the seed of a map."""

    def __init__(self, seed: int = 7) -> None:
        super().__init__(seed)


class SeededEnv(LimitEnv):
    """A gymnasium env whose resets honour their seeds; env.kwargs.seed changes nothing."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.observation_space = SPACE

    def reset(self, **kwargs: Any) -> Any:
        _, info = super().reset(**kwargs)
        return self.np_random.random(2).astype(np.float32), info

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), *super().step(action)[1:]


def first_observations(make: Any, n_env: int = 3, training: bool = True, seed: int = 0, **fields: Any) -> np.ndarray:
    vector = make_vector_env(EnvConfig(id=make, action_mask='off', **fields), n_env, training, seed=seed)
    obs = vector.reset(0).numpy()
    vector.close()
    return obs


@pytest.mark.parametrize('make', [OldEnv, made_old, GoalEnv, 'tests.env.inspection.test_copies:CopiesGoal-v0'])
@pytest.mark.slow(ci=True)
def test_each_copy_is_made_with_a_seed_of_its_own_that_follows_the_seed_of_the_run(make: Any) -> None:
    training, evaluation = (first_observations(make, training=training) for training in (True, False))
    other_run = first_observations(make, seed=1)
    drawn = np.concatenate([training, evaluation, other_run])
    assert len(np.unique(drawn, axis=0)) == 9
    assert np.array_equal(training, first_observations(make))
    assert np.array_equal(training, first_observations(make, vectorization='async'))


class DrawingVectorEnv(LimitVectorEnv):
    """A batch of envs whose observations are drawn from the constructor's seed."""

    def __init__(self, num_envs: int, seed: int | None = None) -> None:
        super().__init__(num_envs)
        self.rng = np.random.default_rng(seed)

    def observed(self) -> np.ndarray:
        return self.rng.random((self.num_envs, 1)).astype(np.float32)


def test_whole_vector_is_made_with_a_seed_too() -> None:
    training, evaluation = (first_observations(DrawingVectorEnv, training=training) for training in (True, False))
    assert len(np.unique(np.concatenate([training, evaluation]))) == 6
    assert np.array_equal(training, first_observations(DrawingVectorEnv))


def test_groups_have_the_seeds_of_all_envs_together() -> None:
    groups = make_env_groups(EnvConfig(id=GoalEnv, collector_env_num=4, collector_group_num=2), seed=3)
    drawn = np.concatenate([group.reset(0).numpy() for group in groups])
    for group in groups:
        group.close()
    assert np.array_equal(drawn, first_observations(GoalEnv, 4, seed=3))


def test_number_as_default_is_part_of_the_task_and_stays() -> None:
    drawn = first_observations(MapEnv)
    assert np.array_equal(drawn, np.stack([MapEnv().goal] * 3))


class FailingEnv(GoalEnv):
    """Raises in the second step of its first episode."""

    n_made = 0

    def step(self, action: Any) -> Any:
        if self._n_step == 1:
            raise ValueError('a fault of the env')
        return super().step(action)


@pytest.mark.parametrize('how', ['sync', 'async'])
def test_env_that_is_made_again_gets_another_seed(how: str) -> None:
    cfg = EnvConfig(id=FailingEnv, action_mask='off', on_error='restart', vectorization=how)
    vector = make_vector_env(cfg, 1)
    goals = [vector.reset(0).numpy()[0]]
    for _ in range(6):
        goals.append(vector.step(torch.zeros(1, dtype=torch.int64)).obs.numpy()[0])
    vector.close()
    assert len(np.unique(np.stack(goals), axis=0)) == 4  # made once, and again at the 2nd, 4th and 6th step


@pytest.mark.parametrize(
    ('make', 'seed', 'said'),
    [
        (OldEnv, 3, 'leave it out, and each copy gets a seed of its own.'),
        (GoalEnv, 3, 'leave it out, and each copy gets a seed of its own.'),
        (MapEnv, 3, 'seed the env in its reset.'),
        (SeededEnv, 3, ''),  # the resets make the copies differ
        (OldEnv, None, ''),
    ],
)
@pytest.mark.slow(ci=True)
def test_seed_in_kwargs_that_makes_all_copies_equal_is_warned_of(make: Any, seed: int | None, said: str) -> None:
    cfg = EnvConfig(id=make, kwargs={'seed': seed}, action_mask='off')
    for warnings in (check_env(cfg), inspect_env(cfg, 40).warnings):
        sentences = [text for text in warnings if 'all copies of the env play the same episodes' in text]
        assert len(sentences) == bool(said) and all(text.endswith(said) for text in sentences)


class UnseededEnv(OldEnv):
    """Ignores its seed."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(None)


def test_env_that_repeats_by_the_seed_of_its_constructor_is_not_said_to_be_unrepeatable() -> None:
    assert check_env(EnvConfig(id=OldEnv)) == []
    assert inspect_env(EnvConfig(id=OldEnv), 40).facts['repeats'] is True
    (sentence,) = check_env(EnvConfig(id=UnseededEnv))
    assert 'no run with this env can be repeated' in sentence


def test_two_runs_with_such_an_env_and_one_seed_are_equal(tmp_path: Any) -> None:
    returns = []
    for name in ('a', 'b'):
        config = job_config(tmp_path / name, OldEnv, max_env_step=128)
        policy = serial_pipeline(config).policy
        returns.append({key: x.clone() for key, x in policy.model.state_dict().items()})
    assert all(np.array_equal(x.numpy(), returns[1][key].numpy()) for key, x in returns[0].items())
