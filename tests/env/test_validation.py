"""Envs that break the contract in a later step: one of three envs in its 3rd step, in every vectorization."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from tests.envs import LimitEnv, play
from zoo.env import EnvConfig, EnvContractError, VectorEnv, make_vector_env

NAME = f'env {__name__ + ":LateEnv"!r}'
MODES = ['same_step', 'next_step', 'disabled']


class LateEnv(LimitEnv):
    """On action 1, step returns `change(obs, reward, terminated, truncated, info)`."""

    def __init__(self, change: Any, limit: int = 100, n_obs: int = 1) -> None:
        super().__init__(limit)
        self.observation_space = Box(0.0, np.inf, (n_obs,), np.float32)
        self.change, self.n_obs = change, n_obs

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros(self.n_obs, np.float32), super().reset(**kwargs)[1]

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        result = (np.repeat(obs, self.n_obs), *rest)
        return self.change(*result) if action == 1 else result


class LateResetEnv(LimitEnv):
    """The 2nd reset returns `change(obs, info)`."""

    def __init__(self, change: Any) -> None:
        super().__init__(limit=1)
        self.change, self.n_reset = change, 0

    def reset(self, **kwargs: Any) -> Any:
        self.n_reset += 1
        result = super().reset(**kwargs)
        return self.change(*result) if self.n_reset == 2 else result


def break_at_step_3(env: VectorEnv, index: tuple[int, ...] = (1,)) -> pytest.ExceptionInfo:
    with pytest.raises(Exception) as raised:  # noqa: B017  the tests look at its type
        play(env, [0, 0, 0], [0, 0, 0], [int(i in index) for i in range(3)])
    return raised


# {case: (`change` of LateEnv, beginning of the message)}
BREAKS = {
    'obs shape': (
        lambda o, *v: (np.zeros(3, np.float32), *v),
        'the observation is of shape (3,) and dtype float32, wanted numbers of shape (2,) as in observation',
    ),
    'obs none': (lambda o, *v: (None, *v), 'the observation is None (NoneType), wanted numbers of shape (2,)'),
    'obs text': (lambda o, *v: ('ab', *v), "the observation is 'ab' (str), wanted numbers of shape (2,)"),
    'four values': (
        lambda o, r, te, tr, i: (o, r, te, i),
        'step returned another number of values (not enough values to unpack (expected 5, got 4)), wanted '
        'a tuple of 5; `return obs, reward, terminated, truncated, info`.',
    ),
    'six values': (lambda *v: (*v, 0), 'step returned another number of values (too many values to unpack'),
    'none': (lambda *v: None, 'step returned another number of values (cannot unpack non-iterable NoneType'),
    'info none': (lambda *v: (*v[:4], None), 'info is None (NoneType), wanted a dict; `return obs, reward'),
    'reward array': (
        lambda o, r, *v: (o, np.ones(2), *v),
        'the reward is array([1., 1.]) (ndarray), wanted a number; set env.reward_weights=[1.0, 1.0]',
    ),
    'reward list': (lambda o, r, *v: (o, [1.0], *v), 'the reward is [1.0] (list), wanted a number'),
    'truncated array': (
        lambda o, r, te, tr, i: (o, r, te, np.array([True, False]), i),
        'truncated is array([ True, False]) (ndarray), wanted a bool',
    ),
    'reward none': (
        lambda o, r, *v: (o, None, *v),
        'reward is nan after action 1, wanted finite numbers (None becomes nan); fix the env',
    ),
}
WORKER_ONLY = {'reward none': 'the reward is None (NoneType), wanted a number'}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('case', 'how', 'limit'),
    [
        *((case, 'sync', None) for case in BREAKS),
        *(
            (case, 'async', None)
            for case in BREAKS
            if case not in ('obs none', 'obs text', 'six values', 'reward list')
        ),
        # with a wrapper of gymnasium around the env
        *((case, how, 50) for case in ('four values', 'none', 'obs shape') for how in ('sync', 'async')),
    ],
)
def test_step_late_break_names_env_index_step_and_what_was_got(case: str, how: str, limit: int | None) -> None:
    change, message = BREAKS[case]
    config = EnvConfig(id=LateEnv, kwargs={'change': change, 'n_obs': 2}, vectorization=how, max_episode_steps=limit)
    raised = break_at_step_3(make_vector_env(config, 3))
    assert raised.type is EnvContractError
    message = message if how == 'sync' else WORKER_ONLY.get(case, message)
    assert str(raised.value).startswith(f'{NAME}, index 1, step 3: {message}')
    assert ', wanted ' in str(raised.value) and '; ' in str(raised.value)


def ones(n: int) -> Any:
    """A `change` for LateEnv: the reward is an array of n ones."""
    return lambda o, r, *v: (o, np.ones(n), *v)


@pytest.mark.slow(first=True)
@pytest.mark.parametrize(
    ('how', 'n', 'said'),
    [
        ('sync', 2, 'reward'),
        ('async', 2, 'reward'),
        # numpy would stack three of them to [3, 1], which broadcasts with [3] to [3, 3]
        ('async', 1, 'index 0, step 3: the reward is array([1.]) (ndarray), wanted a number'),
    ],
)
def test_step_every_env_that_breaks_the_same_way_is_an_error_too(how: str, n: int, said: str) -> None:
    config = EnvConfig(id=LateEnv, kwargs={'change': ones(n)}, vectorization=how)
    raised = break_at_step_3(make_vector_env(config, 3), (0, 1, 2))
    assert raised.type is EnvContractError and said in str(raised.value)


@pytest.mark.parametrize(
    ('mode', 'final', 'got'),
    [
        *((mode, np.zeros(3, np.float32), 'of shape (3,) and dtype float32') for mode in ('same_step', 'next_step')),
        *((mode, None, 'None (NoneType)') for mode in ('same_step', 'disabled')),
    ],
    ids=str,
)
def test_step_final_obs_that_does_not_fit_is_refused(mode: str, final: Any, got: str) -> None:
    kwargs = {'change': lambda o, r, te, tr, i: (final, r, True, tr, i)}
    raised = break_at_step_3(make_vector_env(EnvConfig(id=LateEnv, kwargs=kwargs, autoreset=mode), 3))
    assert raised.type is EnvContractError
    assert str(raised.value).startswith(f'{NAME}, index 1, step 3: the observation is {got}, wanted numbers of shape')


def test_step_infos_of_different_shapes_are_accepted() -> None:
    kwargs = {'change': lambda *v: (*v[:4], {'lidar': np.zeros(2)})}
    env = make_vector_env(EnvConfig(id=LateEnv, kwargs=kwargs), 3)
    env.reset(0)
    env.env.envs[2].unwrapped.change = lambda *v: (*v[:4], {'lidar': np.zeros(5)})  # type: ignore[attr-defined]
    assert env.step(torch.tensor([0, 1, 1])).reward.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ('change', 'message', 'how', 'mode'),
    [
        (change, message, ('sync', 'async')[(i + k) % 2], mode)
        for i, (change, message) in enumerate(
            [
                (
                    lambda o, i: (o, i, 0),
                    'reset returned another number of values (too many values to unpack (expected 2',
                ),
                (lambda o, i: (np.zeros(3, np.float32), i), 'the observation '),
            ]
        )
        for k, mode in enumerate(MODES)
    ],
)
def test_reset_in_the_middle_of_a_run_that_breaks_is_named(change: Any, message: str, mode: str, how: str) -> None:
    fields: Any = {'vectorization': how, 'autoreset': mode, 'action_mask': 'off'}  # auto resets an env to find a mask
    env = make_vector_env(EnvConfig(id=LateResetEnv, kwargs={'change': change}, **fields), 2)
    with pytest.raises(EnvContractError) as raised:
        play(env, [0, 0], [0, 0])
    step = 2 if mode == 'next_step' else 1
    assert str(raised.value).startswith(f"env '{__name__}:LateResetEnv', index 0, step {step}: {message}")


@pytest.mark.slow
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_reset_that_returns_the_obs_alone_is_named(how: str) -> None:
    class Env(LimitEnv):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0]

    said = r'reset returned another number of values \(not enough .*wanted a tuple of 2; write `def reset'
    with pytest.raises(EnvContractError, match=rf'index 0, step 0: {said}'):
        play(make_vector_env(EnvConfig(id=Env, vectorization=how), 2))


@pytest.mark.slow
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_step_error_of_the_envs_own_numpy_call_passes_with_a_note_and_the_line_of_the_env(how: str) -> None:
    """The innermost frame is numpy's, as after a broken contract, but here the env itself called numpy."""
    change = lambda *v: np.stack([])  # noqa: E731
    raised = break_at_step_3(make_vector_env(EnvConfig(id=LateEnv, kwargs={'change': change}, vectorization=how), 3))
    assert raised.type is ValueError and str(raised.value) == 'need at least one array to stack'
    place = (f'{NAME}, index 1, step 3', f'{__file__}:{change.__code__.co_firstlineno}')
    assert raised.value.env_place == place  # type: ignore[attr-defined]
    if hasattr(raised.value, '__notes__'):  # from Python 3.11 on
        assert raised.value.__notes__ == [f'in {place[0]}']


# --- flags: a bool, or 0 or 1 as an integer or an array without dimensions

NO_FLAGS = [None, 'no', 2.5, float('nan'), 1.0, 2, np.array(2.5), np.array(None), [True], np.array([True]), {}]
FLAGS = [True, np.True_, 1, np.int8(1), np.array(True), np.array(1), torch.tensor(True)]


def returns(flag: str, value: Any) -> Any:
    """A `change` for LateEnv: step returns `value` as 'terminated' or 'truncated'."""
    return lambda o, r, te, tr, i: (o, r, value, tr, i) if flag == 'terminated' else (o, r, te, value, i)


@pytest.mark.parametrize(
    ('value', 'flag', 'mode', 'how'),
    [
        *((value, ('terminated', 'truncated')[i % 2], MODES[i % 3], 'sync') for i, value in enumerate(NO_FLAGS)),
        *(
            pytest.param(NO_FLAGS[i], ('terminated', 'truncated')[i % 2], 'same_step', 'async', marks=pytest.mark.slow)
            for i in range(3)
        ),
    ],
    ids=repr,
)
def test_step_flag_that_is_none_is_refused_with_env_index_step_and_value(value: Any, flag: str, mode: str, how: str):
    config = EnvConfig(id=LateEnv, kwargs={'change': returns(flag, value)}, vectorization=how, autoreset=mode)
    raised = break_at_step_3(make_vector_env(config, 3))
    assert raised.type is EnvContractError
    got = f'{" ".join(repr(value).split())} ({type(value).__name__})'
    assert str(raised.value) == f'{NAME}, index 1, step 3: {flag} is {got}, wanted a bool; return bool({flag}).'


@pytest.mark.slow
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_step_flags_of_integers_and_arrays_without_dimensions_are_taken(how: str) -> None:
    n = 2 * len(FLAGS)
    steps = play(make_vector_env(EnvConfig(id=FlagEnv, vectorization=how), 2), *([n, i] for i in range(n)))
    assert [step.terminated.tolist() for step in steps] == [[False, i % 2 == 0] for i in range(n)]
    assert [step.truncated.tolist() for step in steps] == [[False, i % 2 == 1] for i in range(n)]
    assert all(step.final_index.tolist() == [1] for step in steps)


class FlagEnv(LimitEnv):
    """Action i returns FLAGS[i // 2] as terminated where i is even, else as truncated; the last action ends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Discrete(2 * len(FLAGS) + 1)

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        if action == 2 * len(FLAGS):
            return obs, reward, np.int64(0), np.array(False), info
        ends: list[Any] = [0, 0]
        ends[action % 2] = FLAGS[action // 2]
        return obs, reward, *ends, info


BATCHED_NO_FLAGS = {
    'floats': (np.array([0.0, 2.5]), f'terminated is {np.float64(0.0)!r} (float64)', 0),
    'two': (np.array([1, 2]), 'terminated is np.int64(2) (int64)', 1),
    'none': (np.array([True, None]), 'terminated is None (NoneType)', 1),
    'text': (['', 'no'], f'terminated is {np.str_("")!r} (str_)', 0),
}


@pytest.mark.parametrize('case', BATCHED_NO_FLAGS)
def test_step_batched_flag_that_is_none_is_refused_with_its_index(case: str) -> None:
    values, message, index = BATCHED_NO_FLAGS[case]
    with pytest.raises(EnvContractError) as raised:
        batched_step(values)
    assert str(raised.value) == (
        f"env 'tests.envs:Limit-v0', index {index}, step 1: {message}, wanted a bool; return bool(terminated)."
    )


@pytest.mark.parametrize('values', [np.array([0, 1]), np.array([False, True], dtype=object), [False, True]], ids=str)
def test_step_batched_flags_of_integers_are_taken(values: Any) -> None:
    assert batched_step(values).terminated.tolist() == [False, True]


def batched_step(terminated: Any) -> Any:
    env = make_vector_env(EnvConfig(id='tests.envs:Limit-v0', vectorization='batched'), 2)
    env.reset(0)
    step = env.env.step
    obs, reward, _, *rest = step(np.array([0, 0]))
    env.env.step = lambda actions: (obs, reward, terminated, *rest)  # type: ignore[method-assign]
    return env.step(torch.tensor([0, 0]))


@pytest.mark.parametrize('value', ['no', np.array([True, False])], ids=repr)
def test_step_flag_that_is_none_is_refused_behind_a_mask(value: Any) -> None:
    class Env(LateEnv):
        def reset(self, **kwargs: Any) -> Any:
            obs, _ = super().reset(**kwargs)
            return obs, {'action_mask': np.ones(2)}

        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, _ = super().step(action)
            info = {} if action == 1 else {'action_mask': np.ones(2)}
            return obs, reward, terminated, truncated, info

    env = make_vector_env(EnvConfig(id=Env, kwargs={'change': returns('truncated', value)}), 3)
    assert 'index 1, step 3: truncated is ' in str(break_at_step_3(env).value)
