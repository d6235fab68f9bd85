"""Running statistics and step limits, found in chains of wrappers of gymnasium, old gym and vectors of envs."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import (
    ClipAction,
    FlattenObservation,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    TimeLimit,
    TransformObservation,
    TransformReward,
)

from tests.envs import LimitEnv, limit_env
from zoo.env.adapter import OldGymEnv
from zoo.env.inspection.family import layers, running_statistics, step_limit
from zoo.run.config import resolve_config

OBS, REWARD = ('observation', 'policy.model.obs_norm'), ('reward', 'policy.learn.reward_norm')


def cleanrl_env() -> gymnasium.Env:
    """The wrappers that PPO scripts for continuous control put around an env."""
    env: Any = ClipAction(RecordEpisodeStatistics(FlattenObservation(LimitEnv(action='box'))))
    env = NormalizeObservation(env)
    env = TransformObservation(env, lambda obs: np.clip(obs, -10, 10), env.observation_space)
    return TransformReward(NormalizeReward(env, gamma=0.99), lambda reward: float(np.clip(reward, -10, 10)))


class Statistics:
    mean, var = 0.0, 1.0


class OldWrapper:
    """Like a wrapper of old gym, which is no gymnasium.Wrapper."""

    def __init__(self, env: Any) -> None:
        self.env, self.obs_rms = env, Statistics()
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self) -> Any:
        return self.env.reset()

    def step(self, action: Any) -> Any:
        return self.env.step(action)


class VecNormalize:
    """Like that of stable-baselines3: its flags say whether it normalises observations, rewards or both."""

    def __init__(self, venv: Any, norm_obs: bool = True, norm_reward: bool = True, training: bool = True) -> None:
        self.venv, self.norm_obs, self.norm_reward, self.training = venv, norm_obs, norm_reward, training
        self.obs_rms, self.ret_rms = Statistics(), Statistics()


def vector_of_normalised() -> Any:
    return gymnasium.vector.SyncVectorEnv([lambda: NormalizeObservation(LimitEnv())] * 2)


def normalised_vector() -> Any:
    return gymnasium.wrappers.vector.NormalizeReward(gymnasium.vector.SyncVectorEnv([LimitEnv] * 2))


STATISTICS = {
    'obs': (lambda: NormalizeObservation(LimitEnv()), [OBS]),
    'reward': (lambda: NormalizeReward(LimitEnv()), [REWARD]),
    'cleanrl': (cleanrl_env, [REWARD, OBS]),
    'old gym': (lambda: OldGymEnv(OldWrapper(LimitEnv()), 'old'), [OBS]),
    'nothing': (lambda: VecNormalize(None), []),  # around nothing: it is no wrapper
    'sb3': (lambda: VecNormalize(LimitEnv()), [OBS, REWARD]),
    'sb3 reward': (lambda: VecNormalize(LimitEnv(), norm_obs=False), [REWARD]),
    'sb3 still': (lambda: VecNormalize(LimitEnv(), training=False), []),
    'vector of': (vector_of_normalised, [OBS]),
    'vector': (normalised_vector, [REWARD]),
    'none': (lambda: TimeLimit(ClipAction(LimitEnv(action='box')), 5), []),
}


@pytest.mark.parametrize(('make', 'found'), STATISTICS.values(), ids=STATISTICS)
def test_running_statistics_are_found_with_the_key_of_zoo(make: Any, found: list[tuple[str, str]]) -> None:
    assert [(each.stream, each.key) for each in running_statistics(make()) if each.is_sure] == found


def test_running_statistics_that_stand_still_are_none() -> None:
    env = NormalizeObservation(LimitEnv())
    env.update_running_mean = False
    assert running_statistics(env) == []


def test_running_statistics_by_the_name_alone_are_not_sure() -> None:
    class NormalizeObs(gymnasium.ObservationWrapper):  # as far as is known, it divides by constants
        def observation(self, observation: Any) -> Any:
            return observation / 5

    (found,) = running_statistics(NormalizeObs(LimitEnv()))
    assert (found.stream, found.wrapper, found.is_sure) == ('observation', 'NormalizeObs', False)


@pytest.mark.parametrize('key', ['policy.model.obs_norm', 'policy.learn.reward_norm'])
def test_statistics_sentence_names_a_key_that_configs_take(key: str) -> None:
    (found,) = (s for s in running_statistics(cleanrl_env()) if s.key == key)
    assert f'the wrapper {found.wrapper}' in found.sentence('e') and f'set {key}=true.' in found.sentence('e')
    cfg = resolve_config('cartpole_ppo', [f'{key}=true'])
    _, section, name = key.split('.')
    assert cfg.policy[section][name] is True


@pytest.mark.parametrize(
    ('env', 'limit'),
    [
        (LimitEnv(), None),
        (TimeLimit(LimitEnv(), 7), 7),
        (RecordEpisodeStatistics(TimeLimit(TimeLimit(LimitEnv(), 7), 9)), 7),  # the shorter one ends the episode
        (gymnasium.make('CartPole-v1'), 500),
        (limit_env(3), None),  # its own code ends the episodes, which is not visible outside
    ],
    ids=['none', 'one', 'two', 'registered', 'own'],
)
def test_step_limit_is_that_of_the_time_limits(env: Any, limit: int | None) -> None:
    assert step_limit(env) == limit


def test_layers_end_where_an_env_holds_itself() -> None:
    env: Any = OldWrapper(LimitEnv())
    env.env = env
    assert [type(layer) for layer in layers(env)] == [OldWrapper]
