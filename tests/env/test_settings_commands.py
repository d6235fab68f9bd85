"""Attributes and methods of one env behind wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from tests.steer_envs import SteerEnv, steer_env
from zoo.core.errors import UserError
from zoo.env.adapter import OldGymEnv
from zoo.env.interface import EnvCommand
from zoo.env.settings import apply, outcome, result, sendable


def get(env: Any, name: str) -> Any:
    return apply(env, EnvCommand('get', name))


def put(env: Any, name: str, value: Any) -> None:
    apply(env, EnvCommand('set', name, (value,)))


def call(env: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    return apply(env, EnvCommand('call', name, args, kwargs))


def test_what_is_set_is_set_in_the_env_itself_behind_its_wrappers() -> None:
    env = gymnasium.wrappers.TransformReward(steer_env(), lambda reward: reward)
    put(env, 'wind', 2.0)
    assert env.unwrapped.wind == 2.0 and get(env, 'wind') == 2.0 and 'wind' not in vars(env)
    assert call(env, 'add', 1.0, b=0.5) == 3.5


def test_a_dotted_name_is_an_attribute_of_an_attribute() -> None:
    env = steer_env()
    put(env, 'engine.power', 4.0)
    assert env.unwrapped.engine.power == 4.0 and get(env, 'engine.power') == 4.0


def test_a_wrapper_that_has_the_name_itself_is_meant() -> None:
    env = gymnasium.wrappers.TransformReward(SteerEnv(), abs)
    put(env, 'func', float)
    assert env.func is float and not hasattr(env.unwrapped, 'func')


def test_an_env_of_another_library_is_found_behind_its_adapter() -> None:
    class Passing:
        """Like a wrapper of old gym: an attribute that it does not have is that of the env."""

        def __init__(self, env: Any) -> None:
            self.env = env

        def __getattr__(self, name: str) -> Any:
            return getattr(self.env, name)

    inner = SteerEnv()
    env = OldGymEnv(Passing(inner), 'old')
    put(env, 'wind', 3.0)
    assert inner.wind == 3.0


@pytest.mark.parametrize(
    'command,words',
    [
        (EnvCommand('set', 'winds', (1,)), r"a SteerEnv, has no attribute 'winds'.*did you mean 'wind'"),
        (EnvCommand('get', 'zzz'), r"has no attribute 'zzz'.*it has .*engine"),
        (EnvCommand('get', 'engine.pover'), r"an? Engine has no attribute 'pover' \(engine.pover\)"),
        (EnvCommand('set', 'fixed', (1,)), r"does not let 'fixed' be set"),
        (EnvCommand('call', 'wind'), r"'wind' of a SteerEnv is a float, no method; use get_attr"),
    ],
)
def test_what_is_not_there_or_cannot_be_done_is_refused_in_a_sentence(command: EnvCommand, words: str) -> None:
    with pytest.raises(UserError, match=words):
        apply(steer_env(), command)
    with pytest.raises(UserError, match=words):
        result(outcome(steer_env(), command))


def test_an_outcome_brings_values_and_exceptions_of_the_env() -> None:
    assert result(outcome(steer_env(), EnvCommand('call', 'add', (1.0,)))) == 1.5
    with pytest.raises(RuntimeError, match='no such wind'):
        result(outcome(steer_env(), EnvCommand('call', 'fail')))
    with pytest.raises(UserError, match=r"'handle' is a generator, which cannot be sent between processes"):
        result(outcome(steer_env(), EnvCommand('get', 'handle')))


def test_a_value_that_no_process_can_be_sent_is_refused() -> None:
    with pytest.raises(UserError, match=r"set of 'wind' has a value that cannot be sent"):
        sendable(EnvCommand('set', 'wind', (lambda: 1,)))
