"""Dict spaces whose keys are no strings: envs of all kinds, policies, and names that would be equal."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.envs import play
from zoo import evaluate, make_policy, record_demonstrations, save_demonstrations
from zoo.env import EnvConfig, UnsupportedEnvError, make_vector_env
from zoo.tools.imitation.demonstrations import read_demonstrations


class Part(Enum):
    ARM = 'arm'
    LEG = 2


OBS = spaces.Dict(
    {
        Part.ARM: spaces.Box(-1, 1, (2,), np.float32),
        Part.LEG: spaces.Tuple((spaces.Dict({10: spaces.Discrete(3), 9: spaces.MultiBinary(2)}), spaces.Discrete(2))),
    }
)
ACTION = spaces.Dict({1: spaces.Discrete(2), 2: spaces.Dict({Part.LEG: spaces.Box(-1, 1, (1,), np.float32)})})
NAMES = ['Part.ARM', 'Part.LEG']


class KeysEnv(gymnasium.Env):
    """Keys are numbers and enums; the first number of the observation is the step, 4 steps an episode."""

    observation_space, action_space = OBS, ACTION

    def observed(self) -> Any:
        return {Part.LEG: ({10: 2, 9: np.array([0, 1], np.int8)}, 1), Part.ARM: np.full(2, self.t / 4, np.float32)}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observed(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.t += 1
        return self.observed(), 1.0, False, self.t == 4, {}


class OldKeys:
    """The same with the interface of old gym."""

    observation_space, action_space = OBS, ACTION

    def __init__(self) -> None:
        self.env = KeysEnv()

    def reset(self) -> Any:
        return self.env.reset()[0]

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, _ = self.env.step(action)
        return obs, reward, truncated, {'TimeLimit.truncated': truncated}


def batch(num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.vector.SyncVectorEnv([KeysEnv] * num_envs)


def batch_same_step(num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.vector.SyncVectorEnv([KeysEnv] * num_envs, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)


@pytest.mark.parametrize(
    'env',
    [
        dict(id=KeysEnv),
        dict(id=KeysEnv, vectorization='async'),
        dict(id=KeysEnv, autoreset='disabled'),
        dict(id=OldKeys),
        dict(id=batch),
        dict(id=batch_same_step),
    ],
    ids=['sync', 'async', 'disabled', 'old', 'batched', 'batched same_step'],
)
def test_entries_are_named_by_the_text_of_their_keys(env: Any) -> None:
    vector = make_vector_env(EnvConfig(**env), 2)
    assert list(vector.obs_space.spaces) == NAMES and list(vector.action_space.spaces) == ['1', '2']
    steps = play(vector, *[torch.tensor([[1.0, 0.5], [0.0, -0.5]])] * 4)
    assert [step.obs['Part.ARM'][0, 0].item() for step in steps[:3]] == [0.25, 0.5, 0.75]
    inner = steps[0].obs['Part.LEG']['0']
    assert inner['10'].tolist() == [2, 2] and inner['9'].tolist() == [[False, True]] * 2
    final = steps[3].final_obs
    assert (steps[3].obs if final is None else final)['Part.ARM'][0, 0].item() == 1.0


def test_policy_takes_what_the_env_gave(tmp_path: Path) -> None:
    env = dict(id=KeysEnv)
    policy = make_policy(dict(env=env))
    raw, _ = KeysEnv().reset()
    named = {'Part.ARM': raw[Part.ARM], 'Part.LEG': ({'10': 2, '9': np.array([0, 1])}, 1)}
    assert float(policy.value(raw)) == float(policy.value(named))
    assert list(policy.act(raw)) == ['1', '2']
    assert evaluate(policy, env, 2).returns == [4.0, 4.0]
    demos, _ = record_demonstrations(policy, env, 1)
    save_demonstrations(tmp_path / 'a.npz', demos)
    assert read_demonstrations(str(tmp_path / 'a.npz'), policy).n_step == 4


@pytest.mark.parametrize(
    'wrapper', [dict(window=2), dict(prev_action=True, prev_reward=True)], ids=['window', 'previous']
)
def test_wrappers_of_the_config_see_the_names(wrapper: Any) -> None:
    env = dict(id=KeysEnv, **wrapper)
    assert evaluate(make_policy(dict(env=env)), env, 1).returns == [4.0]


@pytest.mark.parametrize('keys', [(1, '1'), (Part.ARM, 'Part.ARM'), (np.int64(3), '3')], ids=str)
def test_keys_with_one_text_are_refused(keys: Any) -> None:
    class Env(KeysEnv):
        observation_space = spaces.Dict({'x': spaces.Dict({key: spaces.Discrete(2) for key in keys})})

    with pytest.raises(UnsupportedEnvError, match='which are both .* as text, wanted names that differ; rename one'):
        make_vector_env(EnvConfig(id=Env), 1)
    with pytest.raises(UnsupportedEnvError, match='which are both'):
        make_vector_env(EnvConfig(id=lambda num_envs: gymnasium.vector.SyncVectorEnv([Env] * num_envs)), 1)


def test_entries_are_left_out_by_the_text_of_their_keys() -> None:
    class Env(KeysEnv):
        observation_space = spaces.Dict({1: spaces.Text(5), **OBS.spaces})

        def observed(self) -> Any:
            return {1: 'hello', **super().observed()}

    for source in (Env, lambda num_envs: gymnasium.vector.SyncVectorEnv([Env] * num_envs)):
        vector = make_vector_env(EnvConfig(id=source, drop_obs=['1', 'Part.LEG']), 2)
        assert list(vector.obs_space.spaces) == ['Part.ARM']
        steps = play(vector, torch.zeros(2, 2))
        assert steps[0].obs['Part.ARM'][0, 0].item() == 0.25
