"""make_env with unknown names, missing dependencies or wrong kwargs: the error is one line that says what to do."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.envs import LimitEnv, limit_env
from zoo.config.section import Config
from zoo.core.errors import UserError
from zoo.env import (
    EnvConfig,
    EnvContractError,
    EnvError,
    EnvKwargsError,
    MissingExtraError,
    UnknownEnvError,
    make_env,
    make_vector_env,
)
from zoo.env.config import env_config
from zoo.env.make import make_source


def make(env_id: Any, **fields: Any) -> gymnasium.Env:
    return make_env(EnvConfig(id=env_id, **fields))


INSTALL = '' if find_spec('minigrid') else 'pip install minigrid, and '


@pytest.mark.parametrize(
    ('env_id', 'message'),
    [
        ('LunarLander-v2', f"unknown env 'LunarLander-v2': gymnasium {gymnasium.__version__} has LunarLander-v3; "),
        ('LunarLander-v2', "has LunarLander-v3; use 'LunarLander-v3'."),
        ('CartPole-v9', "has CartPole-v0, CartPole-v1; use 'CartPole-v1'."),
        ('CartPole', "use 'CartPole-v1'."),
        ('CartPoel-v1', "unknown env 'CartPoel-v1': did you mean 'CartPole-v1' or 'CartPole-v0'?"),
        ('pendulum-v1', "did you mean 'Pendulum-v1'"),
        ('halfchetah-v5', "did you mean 'HalfCheetah-v5'"),
        ('MiniGrid-Xyz-v0', f"when it is imported; {INSTALL}write env.id='minigrid:MiniGrid-Xyz-v0'."),
        ('MiniGrid-Empty-8x8-v0', ' With the extra envpool, write env.id=envpool env.game=MiniGrid-Empty-8x8-v0.'),
        ('qqq', "unknown env 'qqq': no known id is close. `zoo list envs` shows"),
        ('', "unknown env ''"),
        ('HalfCheetah-v3', "env 'HalfCheetah-v3' is too old for this gymnasium"),
        ('HalfCheetah-v3', "use 'HalfCheetah-v5'."),
        ('no_such_module:make', "env 'no_such_module:make' names the module 'no_such_module', which is not found"),
        ('tests.no_such:make', "names the module 'tests.no_such', which is not found"),
        ('tests.envs:limt_env', "module 'tests.envs' has no function or class 'limt_env'"),
    ],
)
def test_make_env_unknown_id_names_what_to_write(env_id: str, message: str) -> None:
    with pytest.raises(UnknownEnvError) as raised:
        make(env_id)
    assert message in str(raised.value)
    assert '\n' not in str(raised.value)
    assert isinstance(raised.value, ValueError) and isinstance(raised.value, EnvError)


def test_env_config_kwargs_are_plain_dicts_that_an_env_may_change() -> None:
    class Frozen(dict):
        def __setitem__(self, key: Any, value: Any) -> None:
            raise TypeError('read-only')

    config = EnvConfig(id='x', kwargs=Frozen(options=Frozen(a=1)))
    config.kwargs['options']['a'] = 2
    assert config.kwargs == {'options': {'a': 2}}


@pytest.mark.parametrize(
    'env_id', [limit_env, LimitEnv, 'tests.envs:limit_env', 'tests.envs:LimitEnv', 'tests.envs:Limit-v0', 'Limit-v0']
)
def test_make_env_every_way_to_name_an_env_makes_it(env_id: Any) -> None:
    env = make(env_id, kwargs={'limit': 3})
    assert isinstance(env.unwrapped, LimitEnv) and env.unwrapped.limit == 3


@pytest.mark.parametrize(
    ('env_id', 'extra', 'module'),
    [
        ('LunarLander-v3', 'box2d', 'Box2D'),
        ('BipedalWalker-v3', 'box2d', 'Box2D'),
        ('HalfCheetah-v5', 'mujoco', 'mujoco'),
    ],
)
def test_make_env_missing_extra_names_the_pip_command(monkeypatch: Any, env_id: str, extra: str, module: str) -> None:
    for name in [name for name in sys.modules if name.startswith(f'gymnasium.envs.{extra}')]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # makes `import module` raise ImportError
    with pytest.raises(MissingExtraError) as raised:
        make(env_id)
    assert str(raised.value) == (
        f"env '{env_id}' needs the {extra} extra, which is not installed; run: pip install '.[{extra}]' in the checkout of zoo"
    )


@pytest.mark.parametrize(
    'error',
    [ZeroDivisionError('mine'), TypeError('mine'), TypeError("f() got an unexpected keyword argument 'foo'")],
    ids=repr,
)
def test_make_env_error_of_a_constructor_passes_through(error: Exception) -> None:
    def make_one(limit: int, **kwargs: Any) -> gymnasium.Env:
        raise error

    with pytest.raises(type(error)) as raised:
        make(make_one, kwargs={'limit': 1})
    assert raised.value is error and type(error) in (ZeroDivisionError, TypeError)


def test_make_env_import_error_in_a_users_module_passes_through(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'module_of_a_user.py').write_text('import no_such_dependency\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match='no_such_dependency'):
        make('module_of_a_user:make')


class WithoutSpace(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(2)


class HasSpaces:
    observation_space = action_space = gymnasium.spaces.Discrete(2)


class WithoutStep(HasSpaces, gymnasium.Env):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return 0, {}


class WithoutReset(HasSpaces, gymnasium.Env):
    def step(self, action: Any) -> Any:
        return 0, 0.0, False, False, {}


@pytest.mark.parametrize(
    ('maker', 'said'),
    [
        (lambda: None, 'what makes it returned None; return the env'),
        (lambda: WithoutStep, f'what makes it returned {WithoutStep}; return the env'),
        (WithoutSpace, 'the WithoutSpace that was made has no action_space; give it one'),
        (HasSpaces, 'its class HasSpaces has no method `reset`; write `def reset'),
        (WithoutReset, 'its class WithoutReset has no method `reset`; write `def reset'),
        (WithoutStep, 'its class WithoutStep has no method `step`; write `def step'),
        (lambda: gymnasium.wrappers.TimeLimit(WithoutStep(), 9), 'its class WithoutStep has no method `step`'),
    ],
)
def test_make_env_without_a_method_or_an_env_says_what_to_write(maker: Any, said: str) -> None:
    with pytest.raises(EnvContractError, match=re.escape(said)):
        make(maker)


@pytest.mark.parametrize(
    'field',
    [
        {'collector_env_num': 0},
        {'collector_env_num': 2.5},
        {'evaluator_env_num': True},
        {'vectorization': 'syn'},
        {'autoreset': 'none'},
        {'action_mode': 'tanh'},
        {'max_episode_steps': 0},
        {'step_timeout': 0.0},
        {'step_timeout': float('nan')},
        {'env_num': 8},
        {'id': 3},
    ],
    ids=str,
)
def test_env_config_refuses_what_is_out_of_range(field: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        EnvConfig(**{'id': 'CartPole-v1', **field})


# --- env.kwargs


class SortEnv(LimitEnv):
    def __init__(self, order: list, nested: Any = ()) -> None:
        super().__init__()
        assert order == [3, 1, 2]
        order.sort()
        for part in nested:
            part.sort()
        self.order = order


def test_make_env_may_change_the_lists_it_is_given() -> None:
    frozen = Config({'id': SortEnv, 'kwargs': {'order': [3, 1, 2], 'nested': [[2, 1]]}}).read_only()
    config = EnvConfig.model_validate(dict(frozen))
    assert make_env(config).order == [1, 2, 3]  # type: ignore[attr-defined]
    make_vector_env(config, 2)  # no env sees what another one did to its list
    assert frozen.kwargs == {'order': [3, 1, 2], 'nested': [[2, 1]]} == config.kwargs


def test_make_env_kwargs_that_are_no_containers_arrive_as_they_are() -> None:
    array = np.arange(3)
    seen = []

    def make_one(**kwargs: Any) -> gymnasium.Env:
        seen.append(kwargs)
        return limit_env()

    make(make_one, kwargs={'array': array, 'pair': (1, [2])})
    assert seen[0]['array'] is array and seen[0]['pair'] == (1, [2])


def needs_speed(speed: float, limit: int = 5) -> gymnasium.Env:
    return limit_env(limit)


def passes_on(size: int = 1, **kwargs: Any) -> gymnasium.Env:
    return limit_env(**kwargs)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        (
            {'id': 'CartPole-v1', 'kwargs': {'foo': 1}},
            "env.kwargs has 'foo' but CartPole-v1 takes sutton_barto_reward, render_mode; correct the name, or leave it out.",
        ),
        (dict(id='CartPole-v1', kwargs={'foo': 1}, vectorization='sync'), "'foo' but CartPole-v1 takes sutton"),
        (
            dict(id='CartPole-v1', kwargs={'foo': 1}, vectorization='batched'),
            "env.kwargs has 'foo' but CartPole-v1 takes render_mode, sutton_barto_reward; correct",
        ),
        (dict(id='HalfCheetah-v5', kwargs={'foo': 1}), "env.kwargs has 'foo' but HalfCheetah-v5 takes xml_file, "),
        (
            dict(id=limit_env, kwargs={'limt': 1, 'and_': 2}),
            "env.kwargs has 'limt', 'and_' but tests.envs:limit_env takes",
        ),
        (dict(id=limit_env, kwargs={'limt': 1, 'and_': 2}), 'limit_env takes limit, end, action; correct'),
        (dict(id=passes_on, kwargs={'limit': 1, 'foo': 2}), f"has 'foo' but {__name__}:passes_on takes size; "),
        (
            dict(id=limit_env, kwargs={'max_episode_steps': 3}),
            "env.kwargs has 'max_episode_steps', which tests.envs:limit_",
        ),
        (dict(id=limit_env, kwargs={'max_episode_steps': 3}), 'limit_env does not take; set env.max_episode_steps.'),
        (dict(id='Pendulum-v1', kwargs={'max_episode_steps': 3}), 'Pendulum-v1 does not take; set env.max_'),
        (dict(id=needs_speed), f"env.kwargs lacks 'speed', which {__name__}:needs_speed needs; give it a value."),
    ],
)
def test_make_env_kwargs_that_do_not_fit_name_what_does(fields: dict, message: str) -> None:
    with pytest.raises(EnvKwargsError) as raised:
        make_vector_env(EnvConfig(**fields), 2)
    assert message in str(raised.value)
    assert isinstance(raised.value, UserError)


def test_env_kwargs_that_are_spaces_reach_the_env_as_they_are() -> None:
    """gymnasium's Dict space is a Mapping, but must not become a plain dict."""
    space = gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(2))
    given = EnvConfig(id='x', kwargs={'space': space, 'plain': {'list': [1]}}).kwargs
    assert given['space'] is space and given['plain'] == {'list': [1]}


@pytest.mark.slow
def test_warnings_of_mujoco_go_to_the_log_and_into_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip('mujoco')
    monkeypatch.chdir(tmp_path)
    with caplog.at_level('DEBUG'):
        env: Any = make('HalfCheetah-v5')
        levels = {record.levelname for record in caplog.records if record.message.startswith('MuJoCo: ')}
        assert levels == {'DEBUG'}  # its model has an attribute that is deprecated
        env.reset(seed=0)
        env.unwrapped.set_state(np.zeros(9), np.full(9, 1e12))
        env.step(np.zeros(6))
    assert any(record.levelname == 'WARNING' and 'unstable' in record.message for record in caplog.records)
    assert not list(tmp_path.iterdir())


def test_id_of_a_package_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    with pytest.raises(UnknownEnvError, match="pip install gymnasium-robotics, and write env.id='gymnasium_robotics:"):
        make('FetchXyz-v9')


@pytest.mark.parametrize(
    ('env_id', 'module'),
    [
        ('pyspiel:kuhn_poker', 'pyspiel'),
        ('pettingzoo:classic/tictactoe-v3', 'pettingzoo'),
        ('mpe2.simple_spread_v3:parallel_env', 'mpe2'),
    ],
)
def test_packages_of_the_extra_agents_that_are_not_installed_are_named(
    monkeypatch: pytest.MonkeyPatch, env_id: str, module: str
) -> None:
    for name in [name for name in sys.modules if name.partition('.')[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # makes `import module` raise ImportError
    with pytest.raises(MissingExtraError) as raised:
        make(env_id)
    assert str(raised.value) == (
        f"env '{env_id}' needs {module}, which is not installed; run: pip install '.[agents]' in the checkout of zoo"
    )


@pytest.mark.parametrize(
    ('env_id', 'missing'),
    [('pettingzoo:sisl/pursuit-v5', 'pygame'), ('pettingzoo.sisl.pursuit_v5:parallel_env', 'pygame')],
)
def test_packages_that_a_kind_of_envs_of_pettingzoo_needs_are_named(
    monkeypatch: pytest.MonkeyPatch, env_id: str, missing: str
) -> None:
    pytest.importorskip('pettingzoo', reason='the extra agents')
    for name in [name for name in sys.modules if name.startswith('pettingzoo.sisl')]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=rf"{missing}.*run: pip install 'pettingzoo\[sisl\]'"):
        make(env_id)


@pytest.mark.parametrize('env_id', ['pettingzoo:mpe/simple_tag-v3', 'pettingzoo.mpe.simple_tag_v3:parallel_env'])
def test_multi_particle_envs_are_found_where_they_are_now(env_id: str) -> None:
    pytest.importorskip('pettingzoo', reason='the extra agents')
    with pytest.raises(UnknownEnvError, match='the extra agents; write mpe2.simple_tag_v3:parallel_env'):
        make(env_id)


def test_names_of_pettingzoo_may_be_those_of_its_modules() -> None:
    pytest.importorskip('pettingzoo', reason='the extra agents')
    for env_id in ('pettingzoo:classic/tictactoe_v3', 'pettingzoo:classic/tictactoe-v3'):
        env = make_source(env_config({'id': env_id}), env_id)
        assert env.possible_agents == ['player_1', 'player_2']
