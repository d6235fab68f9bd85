"""Old gym envs, written out here since gym itself breaks on numpy 2: plain classes, no gymnasium in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from zoo.core.spaces import Box, Discrete
from zoo.env import EnvConfig, EnvContractError, check_env, make_env, make_vector_env


class OldEnv:
    """gym 0.21: step gives 4 values, reset only the observation, seed() seeds; counts its steps as float64.

    The 3rd step ends the episode: a time limit, or, if `dies`, a terminal state.
    """

    observation_space = SimpleNamespace(low=np.zeros(2), high=np.full(2, np.inf), shape=(2,), dtype=np.dtype('float32'))
    action_space = SimpleNamespace(n=2, shape=(), dtype=np.dtype('int64'))

    def __init__(self, dies: bool = False) -> None:
        self.dies = dies
        self.rng = np.random.default_rng()
        self.state = np.zeros(2)

    def seed(self, seed: int | None = None) -> list:
        self.rng = np.random.default_rng(seed)
        return [seed]

    def reset(self) -> np.ndarray:
        self.state[:] = 0, self.rng.random()
        return self.state  # its own array, as old envs do

    def step(self, action: Any) -> tuple:
        self.state[0] += 1
        done = self.state[0] == 3
        return self.state, 1.0, done, {'TimeLimit.truncated': not self.dies} if done else {}


class OldWrapper:
    """gym's Wrapper: passes any keyword on, whether the env inside takes it or not."""

    def __init__(self) -> None:
        self.env = self.unwrapped = OldEnv()
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space

    def seed(self, seed: int | None = None) -> list:
        return self.env.seed(seed)

    def reset(self, **kwargs: Any) -> np.ndarray:
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple:
        return self.env.step(action)


class Gym23Env(OldEnv):
    """reset takes a seed, and still returns only the observation; its array has the dtype of the space."""

    def __init__(self, dies: bool = False) -> None:
        super().__init__(dies)
        self.state = self.state.astype(np.float32)

    def reset(self, *, seed: int | None = None, return_info: bool = False) -> np.ndarray:  # type: ignore[override]
        if seed is not None:
            super().seed(seed)
        return super().reset()

    def seed(self, seed: int | None = None) -> list:
        raise AssertionError('deprecated where reset takes the seed')


class Gym26Env(Gym23Env):
    """5 values, (obs, info): only the class is not gymnasium's."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed), {'lives': 3}

    def step(self, action: Any) -> tuple:
        obs, reward, done, _ = super().step(action)
        return obs, reward, done and self.dies, done and not self.dies, {}


KINDS = [OldEnv, OldWrapper, Gym23Env, Gym26Env]


@pytest.mark.parametrize('mode', ['same_step', 'next_step', 'disabled'])
@pytest.mark.parametrize('kind', KINDS)
def test_old_env_time_limit_is_truncated_with_the_true_final_obs(kind: Any, mode: str) -> None:
    env = make_vector_env(EnvConfig(id=kind, autoreset=mode), 2)
    env.reset(0)
    env.step(torch.tensor([0, 1]))
    assert not env.step(torch.tensor([0, 1])).truncated.any()
    step = env.step(torch.tensor([0, 1]))
    assert step.truncated.tolist() == [True, True] and step.terminated.tolist() == [False, False]
    final = step.obs if mode == 'next_step' else step.final_obs
    assert final[:, 0].tolist() == [3, 3]  # a reset writes 0 into the same array


@pytest.mark.parametrize('kind', [OldEnv, Gym23Env, Gym26Env])
def test_old_env_end_without_a_time_limit_is_terminated(kind: Any) -> None:
    env = make_env(EnvConfig(id=kind, kwargs={'dies': True}))
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (True, False)]


def test_old_env_done_without_the_time_limit_key_is_terminated() -> None:
    class Env(OldEnv):
        def step(self, action: Any) -> tuple:
            return (*super().step(action)[:3], {})

    env = make_env(EnvConfig(id=Env))
    env.reset()
    assert [env.step(0)[2:4] for _ in range(3)][-1] == (True, False)


@pytest.mark.parametrize('kind', KINDS)
def test_old_env_seed_arrives_by_whatever_way_the_env_takes_it(kind: Any) -> None:
    obs, _ = make_env(EnvConfig(id=kind)).reset(seed=5)
    assert obs[1] == np.float32(np.random.default_rng(5).random())


@pytest.mark.parametrize('kind', KINDS)
def test_old_env_keeps_the_contract_once_adapted(kind: Any) -> None:
    check_env(EnvConfig(id=kind))  # dtype float32 though the env computes float64, seeds, final observation
    env = make_env(EnvConfig(id=kind))
    obs, info = env.reset(seed=0)
    assert obs.dtype == np.float32 and isinstance(info, dict)


def test_old_env_spaces_are_read_from_their_attributes() -> None:
    env = make_vector_env(EnvConfig(id=OldEnv), 1)
    assert env.action_space == Discrete(2)
    assert env.obs_space == Box(np.zeros(2), np.full(2, np.inf), 'float32')


def test_old_env_step_with_three_values_raises() -> None:
    class Env(OldEnv):
        def step(self, action: Any) -> tuple:
            return super().step(action)[:3]

    env = make_env(EnvConfig(id=Env))
    env.reset()
    with pytest.raises(EnvContractError, match='step returned 3 values, wanted obs, reward, terminated, truncated'):
        env.step(0)


def test_old_env_max_episode_steps_truncates_it() -> None:
    env = make_env(EnvConfig(id=OldEnv, max_episode_steps=2))
    env.reset()
    assert [env.step(0)[2:4] for _ in range(2)] == [(False, False), (False, True)]
