"""env.schedule, env.reset_options and `job.envs`. The observation of `steer_env` is [steps taken, option 'goal', wind]."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from tests.steer_envs import NoOptionsEnv, SteerEnv
from zoo.core.errors import UserError
from zoo.env import EnvConfig, check_env, make_vector_env
from zoo.env.config import env_config
from zoo.env.errors import UnsupportedEnvError
from zoo.env.settings import AT_END, EnvSettings, RunEnvs

STEER = 'tests.steer_envs:steer_env'
HOW = ['sync', 'async']
LINE = {'start': 0.0, 'end': 4.0, 'over': 100}


@contextmanager
def open_envs(n: int = 1, **env: Any) -> Iterator[tuple[EnvConfig, list[Any]]]:
    cfg = EnvConfig(**{'id': STEER, **env})
    with ExitStack() as undo:
        yield cfg, [undo.enter_context(closing(make_vector_env(cfg, 2))) for _ in range(n)]


def goals(obs: torch.Tensor) -> list[float]:
    return obs[:, 1].tolist()


def steps(vector: Any, n: int) -> Any:
    for _ in range(n):
        timestep = vector.step(torch.zeros(2, dtype=torch.int64))
    return timestep


@pytest.mark.slow
def test_attributes_of_all_envs_are_read_set_and_called() -> None:
    with open_envs(2, vectorization='sync') as (_, (a, b)), open_envs(1, vectorization='async') as (_, (c,)):
        envs = RunEnvs([a, b], [c])
        assert envs.get_attr('wind') == [0.5] * 6 and envs.get_attr('wind', of='evaluation') == [0.5] * 2
        envs.set_attr('wind', 2.0, of='training')
        assert envs.get_attr('wind') == [2.0] * 4 + [0.5] * 2
        envs.set_attr('engine.power', 3.0)
        assert envs.get_attr('engine.power') == [3.0] * 6
        assert envs.call('add', 1.0, b=1.0) == [4.0] * 4 + [2.5] * 2
        with pytest.raises(UserError, match="of is 'train' but must be 'both', 'training', 'evaluation'"):
            envs.get_attr('wind', of='train')  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize('how', HOW)
def test_what_the_envs_refuse_is_said_and_they_continue(how: str) -> None:
    with open_envs(vectorization=how) as (_, (vector,)):
        envs = RunEnvs([vector], [])
        with pytest.raises(UserError, match="did you mean 'wind'"):
            envs.set_attr('winds', 1.0)
        with pytest.raises(RuntimeError, match='no such wind'):
            envs.call('fail')
        vector.reset(0)
        assert steps(vector, 1).obs[:, 0].tolist() == [1.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize('how', HOW)
def test_an_env_that_is_recreated_has_what_was_set_and_the_options(how: str) -> None:
    env = dict(kwargs={'lengths': [3], 'fail_at': 2}, on_error='restart', action_mask='off')
    with open_envs(**env, vectorization=how, reset_options={'goal': 7.0}) as (_, (vector,)):
        RunEnvs([vector], []).set_attr('wind', 2.5)
        vector.reset(0)
        timestep = steps(vector, 5)  # the second episode fails at its second step
        assert timestep.is_reset.all() and timestep.truncated.all()
        assert timestep.obs.tolist() == [[0.0, 7.0, 2.5]] * 2


def test_batched_envs_are_one_object_and_a_name_that_they_lack_is_refused() -> None:
    with open_envs(id='CartPole-v1', vectorization='batched') as (_, (vector,)):
        envs = RunEnvs([vector], [])
        envs.set_attr('gravity', 5.0)
        assert envs.get_attr('gravity') == [5.0] and vector.env.unwrapped.gravity == 5.0
        with pytest.raises(UserError, match="did you mean 'gravity'"):
            envs.set_attr('gravitty', 5.0)


def test_tensor_envs_are_set_unless_they_are_compiled() -> None:
    with closing(make_vector_env(dict(id='torch', game='CartPole-v1'), 2)) as vector:
        envs = RunEnvs([vector], [])
        envs.set_attr('gravity', 5.0)
        assert envs.get_attr('gravity') == [5.0]
        vector.compile(lambda function, name: function)
        with pytest.raises(UserError, match=r'compiled into one program.*compile=off'):
            envs.set_attr('gravity', 6.0)
        with pytest.raises(UnsupportedEnvError, match='resets take no options'):
            vector.set_reset_options({'a': 1})


@pytest.mark.slow
@pytest.mark.parametrize('how', HOW)
def test_a_schedule_sets_an_attribute_at_its_env_steps_in_its_type(how: str) -> None:
    schedule = {'wind': LINE, 'level': {'points': [[0, 1], [50, 3]], 'kind': 'step'}, 'on': [[0, 0], [60, 1]]}
    with open_envs(vectorization=how, schedule=schedule) as (cfg, (vector,)):
        settings, envs = EnvSettings(cfg), RunEnvs([vector], [])
        assert envs.get_attr('wind') == [0.0, 0.0]  # set when the env was made
        settings.apply([vector], 10)
        assert envs.get_attr('wind') == pytest.approx([0.4, 0.4])
        settings.apply([vector], 50)
        assert envs.get_attr('wind') == [2.0, 2.0] and settings.values['wind'] == 2.0
        level, on = envs.get_attr('level')[0], envs.get_attr('on')[0]
        assert (level, type(level)) == (3, int) and (on, type(on)) == (True, bool)
        settings.apply([vector], 1_000)
        assert envs.get_attr('wind') == [4.0, 4.0]


def test_a_schedule_may_be_negative_or_constant_and_of_unknown_length() -> None:
    with open_envs(schedule={'wind': {'start': -1.0, 'end': -3.0}, 'engine.power': -2}) as (cfg, (vector,)):
        envs = RunEnvs([vector], [])
        assert envs.get_attr('wind')[0] == -1.0 and envs.get_attr('engine.power')[0] == -2.0
        EnvSettings(cfg).apply([vector], AT_END)
        assert envs.get_attr('wind')[0] == -3.0


@pytest.mark.parametrize(
    ('schedule', 'words'),
    [
        ({'winds': 1.0}, r"^env.schedule.winds: .*no attribute 'winds'.*did you mean 'wind'"),
        ({'title': 1.0}, r"^env.schedule.title: it is 'sea' \(str\).*must be a number"),
        ({'wind': 'fast'}, "'wind' is 'fast' but must be a number"),
        ({'wind': {'start': 1}}, "'wind' has the keys start but must be a number"),
        ({'wind': {'points': [[5, 1], [0, 2]]}}, 'do not rise'),
        ({'wind': True}, 'must be a number'),
    ],
)
def test_a_schedule_of_no_number_of_the_env_or_without_a_form_is_refused(schedule: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_vector_env(env_config(dict(id=STEER, schedule=schedule)), 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('how', 'autoreset'),
    [('sync', 'same_step'), ('async', 'next_step'), ('sync', 'disabled'), ('async', 'same_step')],
)
def test_options_reach_every_reset(how: str, autoreset: str) -> None:
    env = dict(vectorization=how, autoreset=autoreset, kwargs={'lengths': [2]})
    with open_envs(**env, reset_options={'goal': LINE, 'other': 'x'}) as (cfg, (vector,)):
        assert goals(vector.reset(0)) == [0.0, 0.0]
        EnvSettings(cfg).apply([vector], 50)
        assert goals(steps(vector, 1).obs) == [0.0, 0.0]  # the running episode keeps its own
        assert goals(steps(vector, 2 if autoreset == 'next_step' else 1).obs) == [2.0, 2.0]
        assert goals(steps(vector, 3).obs) == [2.0, 2.0]
        assert goals(vector.reset(1)) == [2.0, 2.0]


def goal_of(env_step: int) -> dict[str, Any]:
    return {'goal': float(env_step)}


def test_options_may_be_a_function_of_the_env_step_or_its_name() -> None:
    for options in (goal_of, 'tests.env.test_settings:goal_of'):
        with open_envs(reset_options=options) as (cfg, (vector,)):
            EnvSettings(cfg).apply([vector], 30)
            assert goals(vector.reset(0)) == [30.0, 30.0]


GOAL = np.zeros(2)


def array_goal_of(env_step: int) -> dict[str, Any]:
    GOAL[:] = env_step
    return {'goal': GOAL}


class FirstGoalEnv(SteerEnv):
    """Takes its option out of the dict, and the first number out of its array."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        goal = (options or {}).pop('goal', [-1.0])
        return super().reset(seed=seed, options={'goal': goal[0]})


@pytest.mark.parametrize('how', HOW)
def test_options_may_be_arrays_that_their_function_writes_into(how: str) -> None:
    with open_envs(id=FirstGoalEnv, vectorization=how, reset_options=array_goal_of) as (cfg, (vector,)):
        settings = EnvSettings(cfg)
        for env_step in (10, 20):
            settings.apply([vector], env_step)
            assert goals(vector.reset(0)) == [env_step] * 2


def test_options_that_stay_the_same_are_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending them to a runner on another machine would cost a wait."""
    with open_envs(id=FirstGoalEnv, reset_options=lambda n: {'goal': np.full(2, n // 10)}) as (cfg, (vector,)):
        sent: list[Any] = []
        monkeypatch.setattr(vector, 'set_reset_options', sent.append)
        settings = EnvSettings(cfg)
        for env_step in (10, 11, 12, 20):
            settings.apply([vector], env_step)
    assert [options['goal'].tolist() for options in sent] == [[1, 1], [2, 2]]


@pytest.mark.parametrize('how', HOW)
def test_an_env_that_takes_an_option_out_of_its_dict_takes_it_from_no_other_reset(how: str) -> None:
    env: Any = dict(id=FirstGoalEnv, kwargs={'lengths': [2]}, reset_options={'goal': [3.0]}, vectorization=how)
    with open_envs(**env) as (_, (vector,)):
        assert goals(vector.reset(0)) == [3.0, 3.0]
        assert goals(steps(vector, 2).obs) == [3.0, 3.0]


class GoalEnv(SteerEnv):
    """Every reset needs the option 'goal' and takes it out of the dict; the action mask is in the infos."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        assert options is not None
        obs, info = super().reset(seed=seed, options={'goal': options.pop('goal')})
        return obs, {**info, 'action_mask': np.array([1, 0])}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        *found, info = super().step(action)
        return *found, {**info, 'action_mask': np.array([1, 0])}  # type: ignore[return-value]


@pytest.mark.parametrize('how', HOW)
def test_options_reach_the_resets_before_a_run_that_look_for_masks_and_check_the_env(how: str) -> None:
    env: Any = dict(id=GoalEnv, kwargs={'lengths': [2]}, reset_options={'goal': LINE}, vectorization=how)
    with open_envs(**env) as (cfg, (vector,)):
        assert vector.reset(0)['action_mask'].tolist() == [[True, False]] * 2
        assert check_env(cfg) == []


@pytest.mark.slow(first=True)
@pytest.mark.parametrize(
    ('fields', 'words'),
    [
        *(
            (dict(id=NoOptionsEnv, vectorization=how), r"reset of .*NoOptionsEnv' has no argument options")
            for how in HOW
        ),
        (
            dict(id='tests.steer_envs:Steer-v0', vectorization='batched'),
            '^env.reset_options is set but .*steps all its envs at once',
        ),
        (
            dict(vectorization='async', reset_options=lambda env_step: {'goal': lambda: 0.0}),
            "^env.reset_options: set of 'reset options' has a value that cannot be sent",
        ),
        (dict(reset_options='goal'), r"env.reset_options is 'goal'.*'module:function'"),
        (dict(reset_options=lambda env_step: 3), '^env.reset_options, a function, returned 3 at env step 0 but must'),
    ],
)
def test_options_that_no_reset_would_read_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_vector_env(env_config({'id': STEER, 'reset_options': {'goal': 1.0}, **fields}), 2)


def test_options_make_single_envs_of_what_has_a_batched_version() -> None:
    with open_envs(id='CartPole-v1', reset_options={'low': -0.2, 'high': -0.1}) as (_, (vector,)):
        obs = vector.reset(0)
        assert -0.2 <= obs.min() and obs.max() <= -0.1
