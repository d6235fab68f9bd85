"""env.wrappers: by name, from a file or as classes; around every env in all vectorizations; errors for wrong ones."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.envs import limit_env, play
from tests.run.crafted import with_value
from zoo import serial_pipeline
from zoo.config.section import ConfigError
from zoo.env import EnvConfig, UnsupportedEnvError, check_env, make_env, make_vector_env
from zoo.run.checkpoint.file import CheckpointError, load_checkpoint
from zoo.run.config import resolve_config
from zoo.run.policy_file import env_config_of


class Add(gymnasium.RewardWrapper):
    """Adds to the reward."""

    def __init__(self, env: gymnasium.Env, amount: float = 1.0) -> None:
        super().__init__(env)
        self.amount = amount

    def reward(self, reward: Any) -> float:
        return float(reward) + self.amount


class Twice(gymnasium.RewardWrapper):
    def reward(self, reward: Any) -> float:
        return 2 * float(reward)


def triple(reward: Any) -> float:
    return 3 * float(reward)


HERE = __name__


def reward_of(*wrappers: Any, **env: Any) -> float:
    """The reward of one step of a wrapped env whose own reward is 1."""
    (step,) = play(make_vector_env({'id': limit_env, 'wrappers': list(wrappers), **env}, 2), [0, 1])
    assert step.reward[0] == step.reward[1]
    return float(step.reward[0])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('vectorization', ['sync', 'async'])
def test_wrappers_are_applied_in_order_to_every_env(vectorization: str) -> None:
    add = {'type': f'{HERE}:Add', 'amount': 4.0}
    assert reward_of(add, Twice, vectorization=vectorization) == (1 + 4) * 2
    assert reward_of(f'{HERE}:Twice', add, vectorization=vectorization) == 1 * 2 + 4
    assert reward_of({'type': Add}, vectorization=vectorization) == 2


@pytest.mark.parametrize('func', [triple, f'{HERE}:triple', 'math:sqrt'])
def test_wrapper_takes_a_function_itself_or_by_name(func: Any) -> None:
    transform = {'type': 'gymnasium.wrappers:TransformReward', 'func': func}
    assert reward_of({'type': Add, 'amount': 3.0}, transform) == (2 if func == 'math:sqrt' else 12)


def test_wrapper_of_a_file_is_found_by_its_path_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'import gymnasium\nclass Minus(gymnasium.RewardWrapper):\n    def reward(self, r):\n        return -r\n'
    (tmp_path / 'wrap_of_test.py').write_text(text)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    monkeypatch.chdir(tmp_path)
    cfg = EnvConfig(id=limit_env, wrappers=['./wrap_of_test.py:Minus'])
    assert cfg.wrappers == [f'{tmp_path}/wrap_of_test.py:Minus']
    monkeypatch.chdir('/')
    assert reward_of(*cfg.wrappers) == -1
    sys.modules.pop('wrap_of_test')


def test_wrappers_may_change_both_spaces_and_zoo_s_own_are_outside_of_them() -> None:
    stack = {'type': 'gymnasium.wrappers:FrameStackObservation', 'stack_size': 3}
    if not hasattr(gymnasium.wrappers, 'DiscretizeAction'):
        pytest.skip('this version of gymnasium has no DiscretizeAction')
    discretize = {'type': gymnasium.wrappers.DiscretizeAction, 'bins': 5}
    cfg = EnvConfig(id='Pendulum-v1', wrappers=[stack, 'gymnasium.wrappers:FlattenObservation', discretize], window=2)
    env = make_env(cfg)
    assert env.observation_space['obs'].shape == (2, 9) and env.action_space.n == 5  # type: ignore[index,attr-defined]
    assert check_env(cfg) == []
    assert make_vector_env({'id': 'CartPole-v1', 'wrappers': [stack]}, 2).obs_space.shape == (3, 4)  # type: ignore[union-attr]


class Weighted(gymnasium.RewardWrapper):
    """The reward is the sum of an array, whose type and shape are kept."""

    def __init__(self, env: gymnasium.Env, weight: np.ndarray) -> None:
        super().__init__(env)
        self.form = str(weight.dtype), weight.shape
        self.total = float(weight.sum())

    def reward(self, reward: float) -> float:
        return self.total


@pytest.mark.parametrize(
    ('text', 'form', 'total'),
    [
        ('{array: [1.0, 0.5]}', ('float64', (2,)), 1.5),
        ('{array: [[1, 2], [3, 4]]}', ('int64', (2, 2)), 10),
        ('{array: [1, 2], dtype: float32}', ('float32', (2,)), 3),
    ],
)
def test_wrapper_takes_an_array_from_yaml(text: str, form: tuple[str, Any], total: float) -> None:
    cfg = resolve_config(
        {'env': {'id': limit_env}}, overrides=[f'env.wrappers=[{{type: "{HERE}:Weighted", weight: {text}}}]']
    ).env
    env = make_env(cfg)
    assert env.form == form
    env.reset(seed=0)
    assert env.step(0)[1] == total


class ShowsText(gymnasium.Env):
    """Has an observation space, Text, that zoo does not support."""

    observation_space = gymnasium.spaces.Text(3)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return 'abc', {}


class Length(gymnasium.ObservationWrapper):
    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.array([len(observation)], np.float32)


def test_wrapper_makes_an_unsupported_space_a_supported_one() -> None:
    obs, _ = make_env({'id': ShowsText, 'wrappers': Length}).reset(seed=0)
    assert obs == [3]


def test_limit_of_steps_counts_inside_of_the_wrappers() -> None:
    skip = {'type': 'gymnasium.wrappers:MaxAndSkipObservation', 'skip': 2}
    env = make_env({'id': limit_env, 'kwargs': {'limit': 99}, 'max_episode_steps': 6, 'wrappers': [skip]})
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


class Breaks(gymnasium.Wrapper):
    def __init__(self, env: gymnasium.Env) -> None:
        raise KeyError('mine')


def nothing(env: gymnasium.Env) -> None:
    return None


@pytest.mark.parametrize(
    ('wrapper', 'message'),
    [
        (
            'FlattenObservation',
            "env.wrappers[0] is 'FlattenObservation'; write 'gymnasium.wrappers:FlattenObservation'.",
        ),
        ('flat', "env.wrappers[0] is 'flat', which names no class; write 'module:Class' or 'path/file.py:Class'"),
        ('gymnasium.wrappers:FlatenObservation', "has no 'FlatenObservation': did you mean 'FlattenObservation'"),
        ('no_module_x:Wrap', "env.wrappers[0] names the module 'no_module_x', which is not found"),
        ({'low': 1}, "env.wrappers[0] has no type; write {'type': 'module:Class', and its arguments}"),
        ({'type': f'{HERE}:Add', 'amuont': 1}, f'env.wrappers[0] ({HERE}:Add) takes the env and amount=1.0: got'),
        (
            gymnasium.wrappers.FrameStackObservation,
            "takes the env and stack_size, padding_type='reset': missing a required",
        ),
        (f'{HERE}:HERE', 'is str, which wraps nothing; name a class or function of an env'),
        (
            gymnasium.wrappers.vector.ClipReward,
            "whole vectors of envs, and env.wrappers are around each single env; use 'gym",
        ),
        (
            {'type': Add, 'amount': 'no_module_x:f'},
            "env.wrappers[0].amount names the module 'no_module_x', which is not found",
        ),
        ({'type': Add, 'amount': {'array': ['x']}}, 'env.wrappers[0].amount is an array of <U1, wanted numbers'),
        ({'type': Add, 'amount': {'array': [[1], [2, 3]]}}, 'env.wrappers[0].amount is no array of numbers'),
        ({'type': Add, 'amount': {'array': [1], 'dtype': 'real'}}, 'env.wrappers[0].amount is no array of numbers'),
        (
            {'type': Add, 'amount': {'array': [1], 'shape': 1}},
            "env.wrappers[0].amount has the entry 'shape'; an array is",
        ),
        (
            {'type': Add, 'amount': 'm:<lambda>'},
            'a function without a name, which no saved config can hold; give it a name',
        ),
    ],
)
def test_wrong_wrapper_is_refused_before_anything_is_made(wrapper: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        resolve_config({'env': {'id': 'CartPole-v1', 'wrappers': [wrapper]}})


def test_all_wrong_wrappers_are_said_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        resolve_config({'env': {'id': 'CartPole-v1', 'wrappers': ['a', Add, 'b']}})
    assert [text[:15] for text in raised.value.problems] == ['env.wrappers[0]', 'env.wrappers[2]']


TO_1 = {'type': 'gymnasium.wrappers:RescaleAction', 'min_action': 0, 'max_action': 1}


@pytest.mark.parametrize(
    ('env', 'message'),
    [
        (dict(wrappers=[Breaks]), "env.wrappers[0] (Breaks) raised KeyError: 'mine' ({file}:"),
        (dict(wrappers=[Add, nothing]), 'env.wrappers[1] (nothing) returned NoneType, wanted a gymnasium.Env; return'),
        (dict(wrappers=[TO_1]), 'requires a Box'),
        (dict(wrappers=[Add], vectorization='batched'), "env.wrappers is set but env.vectorization is 'batched'"),
        (dict(id='torch', game='CartPole-v1', wrappers=[Add]), 'env.wrappers is set but '),
        (dict(id=ShowsText), 'Text'),
    ],
)
def test_wrapper_that_does_not_fit_the_env_is_refused(env: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedEnvError, match=re.escape(message.format(file=__file__))):
        make_vector_env({'id': 'CartPole-v1', **env}, 2)


def test_batched_env_is_made_of_single_ones_where_there_are_wrappers() -> None:
    assert make_vector_env({'id': 'CartPole-v1'}, 2).env.__class__.__name__ == 'CartPoleVectorEnv'  # type: ignore[union-attr]
    assert make_vector_env({'id': 'CartPole-v1', 'wrappers': [Add]}, 2).env.num_envs == 2  # type: ignore[union-attr]


# --- saved runs


@pytest.mark.slow
def test_wrappers_given_as_classes_are_in_the_config_by_name_and_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dict(
        max_env_step=256,
        env=dict(id='tests.envs:limit_env', collector_env_num=4, wrappers=[dict(type=Add, amount=2.0), Twice]),
        policy=dict(collect=dict(n_step=64), eval=dict(n_episode=2)),
        logger=dict(root=str(tmp_path), console='off', tensorboard=False),
    )
    result = serial_pipeline(config)
    assert result.last_return == 5 * 6
    monkeypatch.setattr('zoo.run.checkpoint.consent.given', set())
    with pytest.raises(
        CheckpointError, match=r"env\.wrappers\.type is '.*test_wrappers_of_users:Add'\), which is loaded only with"
    ):
        serial_pipeline(resume=result.run_dir, max_env_step=512, trust=['tests.envs'])
    more = serial_pipeline(resume=result.run_dir, max_env_step=512, trust=['tests.envs', HERE])
    assert more.env_step == 512 and more.last_return == 5 * 6


@pytest.mark.parametrize(
    ('wrappers', 'named'),
    [
        (['my_mod:Wrap'], 'my_mod'),
        (['./x.py:Wrap'], './x.py'),
        ([{'type': 'my_mod:Wrap'}], 'my_mod'),
        ([{'type': 'gymnasium.wrappers:TransformReward', 'func': 'os:system'}], 'os'),
        ([{'type': 'gymnasium.wrappers:TransformReward', 'func': './x.py:f'}], './x.py'),
        (['gymnasium.wrappers:RecordVideo'], 'gymnasium.wrappers'),  # it writes files
        (['gymnasium.wrappers:ClipReward.os'], 'gymnasium.wrappers'),
    ],
)
def test_wrapper_in_a_checkpoint_needs_consent(wrappers: list[Any], named: str, tmp_path: Path) -> None:
    path = with_value(tmp_path / 'c', 'meta.config.env.wrappers', wrappers)
    with pytest.raises(CheckpointError, match=rf"names code of (module|the file) '{named}' .*only with your consent"):
        env_config_of(load_checkpoint(path))


@pytest.mark.parametrize(
    'name', ['gymnasium.wrappers:FlattenObservation', 'gymnasium.wrappers.common:TimeAwareObservation']
)
def test_gymnasium_s_wrapper_in_a_checkpoint_needs_no_consent(name: str, tmp_path: Path) -> None:
    path = with_value(tmp_path / 'c', 'meta.config.env.wrappers', [name, {'type': name}])
    assert env_config_of(load_checkpoint(path)).wrappers == [name, {'type': name}]


def test_consent_to_a_module_of_wrappers_is_none_to_what_it_imports(tmp_path: Path) -> None:
    for wrappers in ([f'{HERE}:gymnasium.make'], [{'type': f'{HERE}:Add', 'amount': f'{HERE}:sys.exit'}]):
        path = with_value(tmp_path / 'c', 'meta.config.env.wrappers', wrappers)
        with pytest.raises(CheckpointError, match=r"code of module '(gymnasium|sys)' and not of"):
            env_config_of(load_checkpoint(path), trust=[HERE])
