"""Names that lead to no env, and envs whose dependency is missing: one line that says what to write or install."""
from __future__ import annotations

import sys
from typing import Any

import gymnasium
import pytest

from tests.envs import LimitEnv, limit_env
from zoo.env import EnvConfig, EnvContractError, EnvError, MissingExtraError, UnknownEnvError, make_env


def make(env_id: Any, **fields: Any) -> gymnasium.Env:
    return make_env(EnvConfig(id=env_id, **fields))


@pytest.mark.parametrize(('env_id', 'message'), [
    ('LunarLander-v2', f"unknown env 'LunarLander-v2': gymnasium {gymnasium.__version__} has LunarLander-v3; "
                       "use 'LunarLander-v3'."),
    ('CartPole-v9', "has CartPole-v0, CartPole-v1; use 'CartPole-v1'."),
    ('CartPole', "use 'CartPole-v1'."),
    ('CartPoel-v1', "unknown env 'CartPoel-v1': did you mean 'CartPole-v1' or 'CartPole-v0'?"),
    ('pendulum-v1', "did you mean 'Pendulum-v1'"),
    ('halfchetah-v5', "did you mean 'HalfCheetah-v5'"),
    ('qqq', "unknown env 'qqq': no known id is close. `zoo list envs` shows"),
    ('', "unknown env ''"),
    ('HalfCheetah-v3', "env 'HalfCheetah-v3' is too old for this gymnasium"),
    ('HalfCheetah-v3', "use 'HalfCheetah-v5'."),
    ('no_such_module:make', "env 'no_such_module:make' names the module 'no_such_module', which is not found"),
    ('tests.no_such:make', "names the module 'tests.no_such', which is not found"),
    ('tests.envs:limt_env', "module 'tests.envs' has no function or class 'limt_env'")])
def test_make_env_unknown_id_names_what_to_write(env_id: str, message: str) -> None:
    with pytest.raises(UnknownEnvError) as raised:
        make(env_id)
    assert message in str(raised.value)
    assert '\n' not in str(raised.value)
    assert isinstance(raised.value, ValueError) and isinstance(raised.value, EnvError)


@pytest.mark.parametrize('env_id', [limit_env, LimitEnv, 'tests.envs:limit_env', 'tests.envs:LimitEnv',
                                    'tests.envs:Limit-v0', 'Limit-v0'])
def test_make_env_every_way_to_name_an_env_makes_it(env_id: Any) -> None:
    env = make(env_id, kwargs={'limit': 3})
    assert isinstance(env.unwrapped, LimitEnv) and env.unwrapped.limit == 3


@pytest.mark.parametrize(('env_id', 'extra', 'module'), [
    ('LunarLander-v3', 'box2d', 'Box2D'),
    ('BipedalWalker-v3', 'box2d', 'Box2D'),
    ('HalfCheetah-v5', 'mujoco', 'mujoco')])
def test_make_env_missing_extra_names_the_pip_command(monkeypatch: pytest.MonkeyPatch, env_id: str, extra: str,
                                                      module: str) -> None:
    for name in [name for name in sys.modules if name.startswith(f'gymnasium.envs.{extra}')]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # what makes `import module` raise ImportError
    with pytest.raises(MissingExtraError) as raised:
        make(env_id)
    assert str(raised.value) == (f"env '{env_id}' needs the {extra} extra, which is not installed; "
                                 f"run: pip install 'policy-zoo[{extra}]'")


def test_make_env_error_of_a_constructor_passes_through() -> None:
    def make_one() -> gymnasium.Env:
        raise ZeroDivisionError('mine')

    with pytest.raises(ZeroDivisionError, match='^mine$'):
        make(make_one)


def test_make_env_import_error_in_a_users_module_passes_through(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'module_of_a_user.py').write_text('import no_such_dependency\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match='no_such_dependency'):
        make('module_of_a_user:make')


def test_make_env_without_a_space_raises() -> None:
    class Env(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(2)

    with pytest.raises(EnvContractError, match='the Env that was made has no action_space; give it one'):
        make(Env)


def test_env_config_kwargs_are_plain_dicts_that_an_env_may_change() -> None:
    class Frozen(dict):
        def __setitem__(self, key: Any, value: Any) -> None:
            raise TypeError('read-only')

    config = EnvConfig(id='x', kwargs=Frozen(options=Frozen(a=1)))
    config.kwargs['options']['a'] = 2
    assert config.kwargs == {'options': {'a': 2}}


@pytest.mark.parametrize('field', [{'collector_env_num': 0}, {'collector_env_num': 2.5}, {'evaluator_env_num': True},
                                   {'vectorization': 'syn'}, {'autoreset': 'none'}, {'action_mode': 'tanh'},
                                   {'max_episode_steps': 0}, {'step_timeout': 0.0}, {'step_timeout': float('nan')},
                                   {'env_num': 8}, {'id': 3}], ids=str)
def test_env_config_refuses_what_is_out_of_range(field: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        EnvConfig(**{'id': 'CartPole-v1', **field})
