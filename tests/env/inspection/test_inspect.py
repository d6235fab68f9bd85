"""inspect_env: all problems in one run, warnings, and facts whose values are known."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Space, Text, Tuple

from tests.env.inspection.checked_envs import NoSeedEnv, RandomEnv, shows, step_env
from tests.envs import LimitEnv, LimitVectorEnv, limit_env
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.env import EnvConfig, EnvKwargsError, EnvReport, UnknownEnvError, inspect_env
from zoo.env.inspection.check import EnvCheck
from zoo.env.inspection.family import Recorder
from zoo.env.inspection.inspect import advise, worker_seconds
from zoo.env.make import make_env


class BrokenEnv(LimitEnv):
    """Breaks the contract in four ways, from its first step on, leaves its bounds, and continues."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)

    def step(self, action: Any) -> Any:
        obs, _, terminated, _, info = super().step(action)
        reward = float('nan') if self._n_step == 3 else 1.0
        return obs.astype(np.float64), reward, int(terminated), None, info


def report_of(env_id: Any, n_step: int = 30, **fields: Any) -> EnvReport:
    return inspect_env(EnvConfig(**{'id': env_id, 'collector_env_num': 1, **fields}), n_step=n_step)


@pytest.mark.slow
def test_inspect_env_reports_all_problems_in_one_run_each_once() -> None:
    report = report_of(BrokenEnv)
    problems = report.problems
    wanted = ['dtype float64', 'terminated is 0', 'truncated is None', 'the reward is nan']
    assert len(problems) == len(wanted)
    assert all(text in sentence for text, sentence in zip(wanted, problems, strict=True)), problems
    assert [re.findall(r', step (\d+): ', sentence) for sentence in problems] == [['1'], ['1'], ['1'], ['3']]
    (outside,) = [sentence for sentence in report.warnings if 'wanted 0 to 1 as in observation_space' in sentence]
    assert ', step 2: the observation of step has 2.0 at [0], ' in outside  # only a warning, of the first step outside


@pytest.mark.slow
def test_inspect_env_good_env_has_the_known_facts() -> None:
    report = report_of(limit_env, n_step=30)
    assert (report.problems, report.warnings) == ([], [])
    facts = report.facts
    assert (
        facts['steps'] == 30 and facts['time_limit'] is None and facts['repeats'] is True and facts['masks'] == 'none'
    )
    ends = {'count': 6, 'terminated': 0, 'truncated': 6, 'length_mean': 5.0, 'length_max': 5}
    assert facts['episodes'] == {**ends, 'return_mean': 5.0, 'return_min': 5.0, 'return_max': 5.0}
    assert facts['reward'] == {'min': 1.0, 'max': 1.0, 'mean': 1.0, 'std': 0.0}
    # 7 first observations of 0 (one for each episode, and one for that after the last), then 1 to 5 in 6 episodes
    assert facts['obs']['obs']['max'] == 5.0 and facts['obs']['obs']['mean'] == pytest.approx(6 * 15 / 37)
    assert facts['obs_space'] == 'Box (1,) float32 in 0 .. inf' and facts['unbounded'] == ['obs']
    assert facts['action_space'] == 'Discrete(2)' and facts['picklable'] is True
    assert 0 < facts['step_ms'] < 1000 and facts['steps_per_s'] > 1


@pytest.mark.slow
def test_inspect_env_random_env_is_a_warning_and_with_strict_a_problem() -> None:
    report = report_of(RandomEnv)
    assert report.problems == [] and 'no run with this env can be repeated' in report.warnings[0]
    assert report.facts['repeats'] is False
    report = report_of(RandomEnv, check='strict')
    assert report.warnings == [] and 'env.check=strict refuses this' in report.problems[0]


class KeyEnv(LimitEnv):
    def step(self, action: Any) -> Any:
        if self._n_step == 3:
            raise KeyError('joint 3')
        return super().step(action)


class NanVectorEnv(LimitVectorEnv):
    def step(self, actions: Any) -> Any:
        obs, reward, *rest = super().step(actions)
        return (obs, np.where(self._n_step == 3, np.nan, reward), *rest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('fields', 'message', 'n_step'),
    [
        (dict(id=KeyEnv), "index 0, step 4: its code raised KeyError: 'joint 3' at .*test_inspect.py:", 3),
        (step_env(lambda *v: v[:4], n_good=0), 'step returned a tuple of 4, wanted a tuple of 5', 0),
        (dict(id=NoSeedEnv), 'reset has no argument seed or options', 0),
        (shows('word', Text(4)), 'wrap the env: encode the text', None),
        (dict(id=NanVectorEnv), 'step 3: reward is nan', 2),
    ],
)
def test_inspect_env_what_ends_the_check_is_one_problem_and_what_was_seen_is_kept(
    fields: dict[str, Any], message: str, n_step: int | None
) -> None:
    report = inspect_env(EnvConfig(**fields), n_step=30)
    (problem,) = report.problems
    assert re.search(message, problem) and report.facts.get('steps') == n_step
    assert (n_step or 'vectorization' not in report.facts) and report.facts.get('repeats') is None


@pytest.mark.parametrize(
    ('fields', 'n_step', 'error', 'message'),
    [
        ({'id': 'CartPoel-v1'}, 5, UnknownEnvError, 'CartPole-v1'),
        ({'id': limit_env, 'kwargs': {'limt': 3}}, 5, EnvKwargsError, 'limt'),
        ({'id': limit_env, 'checks': True}, 5, ConfigError, 'check'),
        ({'id': limit_env}, 0, UserError, 'inspect_env got n_step=0, wanted 1 or more'),
    ],
    ids=['id', 'kwargs', 'key', 'n_step'],
)
def test_inspect_env_mistake_in_the_config_raises(fields: dict, n_step: int, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        inspect_env(fields, n_step=n_step)


@pytest.mark.slow
@pytest.mark.parametrize('env_id', [limit_env, BrokenEnv, 'Pendulum-v1'])
def test_env_report_is_json_and_its_text_has_all_sentences(env_id: Any) -> None:
    report = report_of(env_id)
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert data['problems'] == report.problems and data['facts']['steps'] == 30
    text = report.text().split('\n')
    assert text[0].startswith(f'{report.env}: {len(report.problems) or "no"} problem')
    assert [line[9:] for line in text if line.startswith('problem: ')] == report.problems
    assert [line[9:] for line in text if line.startswith('warning: ')] == report.warnings


@pytest.mark.slow
@pytest.mark.parametrize('source', ['info', 'method', 'obs'])
def test_inspect_env_says_where_masks_were_found(source: str) -> None:
    report = report_of('random_masks', kwargs={'source': source})
    assert report.facts['masks'] == source and report.problems == []
    assert f'action masks      found: the {"method" if source == "method" else "entry"}' in report.text()


class InfoEnv(LimitEnv):
    def step(self, action: Any) -> Any:
        *values, _ = super().step(action)
        return (*values, {'is_success': self._n_step == 5, 'distance': np.float32(2), 'map': 'cave'})


def with_a_lock() -> Callable[[], gymnasium.Env]:
    """Returns a maker that cannot be sent to another process."""
    lock = threading.Lock()

    def make() -> gymnasium.Env:
        with lock:
            return LimitEnv()

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ('fields', 'facts'),
    [
        (dict(id='random_masks', kwargs={'source': 'obs'}, action_mask='off'), {'masks': 'none'}),
        (
            dict(id=InfoEnv),
            {'info_keys': ['distance', 'is_success', 'map'], 'info_numbers': ['distance', 'is_success']},
        ),
        (dict(id=with_a_lock()), {'picklable': False}),
        (dict(id='Pendulum-v1'), {'time_limit': 200, 'wrappers': ['TimeLimit', 'OrderEnforcing']}),
        (dict(id='Taxi-v4'), {'time_limit': 200, 'wrappers': ['TimeLimit', 'OrderEnforcing']}),  # without zoo's own
    ],
)
def test_inspect_env_facts_are_those_of_the_env(fields: dict[str, Any], facts: dict[str, Any]) -> None:
    found = inspect_env(EnvConfig(**fields), n_step=30).facts
    assert {name: found[name] for name in facts} == facts


@pytest.mark.long
def test_inspect_env_without_an_end_or_a_limit_is_warned_of() -> None:
    endless = {'id': limit_env, 'kwargs': {'limit': 10**9}}
    assert 'no episode ended in 1000 random steps' in inspect_env(endless).warnings[0]
    limited = inspect_env({**endless, 'max_episode_steps': 5000})
    assert limited.facts['time_limit'] == 5000 and not any('no episode' in text for text in limited.warnings)


class SleepyEnv(LimitEnv):
    """A step takes 5 ms."""

    def step(self, action: Any) -> Any:
        time.sleep(0.005)
        return super().step(action)


@pytest.mark.long
@pytest.mark.slow
def test_inspect_env_stops_after_limit_s() -> None:
    report = inspect_env({'id': SleepyEnv}, n_step=10_000, limit_s=0.1)
    assert 1 <= report.facts['steps'] <= 21 and report.problems == []  # 0.1 s / 5 ms, and the step that saw the limit


@pytest.mark.long
def test_inspect_env_recommends_what_the_time_of_a_step_pays_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('zoo.core.processes.n_core', lambda: 4)  # on one core workers gain nothing
    slow, fast = (report_of(env, collector_env_num=8).facts for env in (SleepyEnv, limit_env))
    assert slow['vectorization'] == 'async' and 'one after the other' in slow['vectorization_why']
    assert fast['vectorization'] == 'sync' and fast['worker_ms'] > fast['step_ms']
    assert report_of('CartPole-v1').facts['vectorization'] == 'batched'


class ScaledEnv(LimitEnv):
    """Multiplies observations by `obs`; every reward is `reward`; if `bounds` are given, actions are a Box with them."""

    def __init__(
        self, obs: float = 1, reward: float = 1, limit: int = 5, bounds: tuple[float, float] | None = None
    ) -> None:
        super().__init__(limit)
        self.obs, self.reward = obs, reward
        if bounds is not None:
            self.action_space = Box(*bounds, (1,))

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs * self.obs, self.reward, *rest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('kwargs', 'warning'),
    [
        (dict(obs=100), 'the observations reach 500, .*set policy.model.obs_norm=true'),
        (dict(obs=20), ''),  # they reach 5 * 20 = 100
        (dict(reward=101.0), 'the rewards reach 101, .*set policy.learn.reward_norm=true'),
        (dict(reward=100.0, limit=10), ''),
        (dict(reward=100.0, limit=11), 'the returns reach 1100, '),
        (dict(reward=0.0), 'all rewards of 30 random steps are 0'),
        (dict(bounds=(-50, 50)), 'the actions are from -50 to 50, .*set env.action_mode=rescale'),
        (dict(bounds=(-50, 50), action_mode='rescale'), ''),
        (dict(bounds=(-10, 10)), 'the actions are from -10 to 10, '),
        (dict(bounds=(-9, 9)), ''),
        (dict(bounds=(-0.09, 0.09)), 'the actions are from -0.09 to 0.09, '),
        (dict(bounds=(-0.2, 0.2)), ''),
        (dict(bounds=(3, 5)), 'the actions are from 3 to 5, '),  # half the width is 1, but the middle is 4
        (dict(bounds=(0, 2)), ''),
        (dict(bounds=(-np.inf, 1)), 'the actions have no bounds on a side'),
    ],
)
def test_inspect_env_numbers_far_from_1_are_warned_of(kwargs: dict[str, Any], warning: str) -> None:
    mode = kwargs.get('action_mode', 'clip')
    env = {name: x for name, x in kwargs.items() if name != 'action_mode'}
    report = report_of(ScaledEnv, kwargs=env, action_mode=mode)
    assert report.problems == [] and len(report.warnings) == bool(warning)
    assert not warning or re.search(warning, report.warnings[0])


@pytest.mark.slow
def test_inspect_env_facts_are_those_that_the_page_explains() -> None:
    page = (Path(__file__).parents[3] / 'docs' / 'your_env.md').read_text()
    table = page[page.index('| fact | meaning |') :].split('\n\n')[0]
    explained = {name for row in table.split('\n')[2:] for name in re.findall(r'`(\w+)`', row.split('|')[1])}
    assert explained == set(report_of(limit_env).facts)


@pytest.mark.parametrize(
    ('make', 'fields', 'line'),
    [
        (limit_env, {}, 'no TimeLimit; the env truncates by itself, the longest episode had 5 steps'),
        (limit_env, dict(kwargs={'end': 'terminated'}), 'none'),
        (limit_env, dict(max_episode_steps=4), '4 steps'),
    ],
)
def test_inspect_env_says_whether_a_limit_is_the_env_s_own(make: Any, fields: dict[str, Any], line: str) -> None:
    text = report_of(make, **fields).text()
    assert re.search(r'^  time limit +(.*)$', text, re.MULTILINE)[1] == line


# --- vectors of envs


def own_vector(num_envs: int) -> gymnasium.vector.VectorEnv:
    return LimitVectorEnv(num_envs)


def test_inspect_env_own_vector_has_the_facts_of_its_envs_and_counts_no_row_that_only_resets_one() -> None:
    report = report_of(own_vector, n_step=24)
    assert (report.problems, report.warnings) == ([], [])
    facts = report.facts
    # 5 steps and one in which it is reset: 4 episodes of each of 2 envs in 24 steps
    assert facts['episodes']['count'] == 8 and facts['episodes']['return_mean'] == 5.0
    assert facts['episodes']['length_mean'] == facts['episodes']['length_max'] == 5
    assert facts['reward'] == {'min': 1.0, 'max': 1.0, 'mean': 1.0, 'std': 0.0}  # the reward of a reset row is 0
    assert facts['vectorization'] == 'batched' and facts['envs'] == 2 and facts['kind'].startswith('a vector of envs')


def test_inspect_env_family_has_a_report() -> None:
    report = report_of('torch', game='Pendulum-v1', n_step=200)
    assert report.problems == [] and report.facts['episodes']['count'] == 2 and report.facts['repeats'] is True


def test_env_check_shows_its_watch_the_first_steps_alone() -> None:
    """The recorder must not see the replay, in which it would count each episode again."""

    watch, cfg = Recorder(None), EnvConfig(id=limit_env)
    EnvCheck(make_env(cfg), cfg, watch).run(10)
    assert (watch.n_step, watch.n_reset) == (10, 3)


# --- the recommended vectorization

SPACES = Box(0.0, 1.0, (4,), np.float32), Discrete(2)


@pytest.mark.long
@pytest.mark.slow(first=True)
@pytest.mark.parametrize(
    ('step_s', 'n_core', 'n_env', 'wanted'),
    [(1e-6, 4, 8, 'sync'), (1e-1, 4, 8, 'async'), (1e-1, 1, 8, 'sync'), (1e-1, 4, 1, 'sync')],
)
def test_advise_weighs_the_step_against_a_worker(
    step_s: float, n_core: int, n_env: int, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('zoo.core.processes.n_core', lambda: n_core)
    advice = advise(EnvConfig(id=limit_env, collector_env_num=n_env), step_s, SPACES)
    assert advice.vectorization == wanted and (n_core == 1 or advice.worker_ms is not None)
    # 8 steps of 100 ms in turn are 800 ms; on 4 cores 200 ms and the time of the 8 workers
    why = '8 envs step in 800 ms one after the other', 'on 4 cores'
    assert all(words in advice.vectorization_why for words in why) == (wanted == 'async')


@pytest.mark.parametrize(
    ('worker_ms', 'wanted', 'is_equal'), [(0.5, 'async', False), (0.6, 'sync', True), (0.8, 'sync', False)]
)
def test_advise_says_that_both_are_about_equal_where_workers_win_by_little(
    worker_ms: float, wanted: str, is_equal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 steps of 1 ms in turn: 8 ms. On 4 cores 8 * (.25 + worker_ms) = 6, 6.8, 8.4 ms; to be chosen, it takes 8 / 1.25 = 6.4."""
    monkeypatch.setattr('zoo.core.processes.n_core', lambda: 4)
    monkeypatch.setattr('zoo.env.inspection.inspect.worker_seconds', lambda *args: 1e-3 * worker_ms)
    advice = advise(EnvConfig(id=limit_env, collector_env_num=8), 1e-3, SPACES)
    assert advice.vectorization == wanted
    assert advice.vectorization_why.endswith('on 4 cores: about equal') == is_equal


@pytest.mark.slow
@pytest.mark.parametrize(
    'spaces',
    [SPACES, (Dict(a=Discrete(3), b=Box(0, 255, (4, 4), np.uint8)), Tuple((Discrete(2), Box(-1.0, 1.0, (1,)))))],
    ids=['box', 'nested'],
)
def test_worker_seconds_is_the_time_of_a_round_trip(spaces: tuple[Space, Space]) -> None:
    assert 1e-7 < worker_seconds(spaces, 2, timeout=60.0) < 1.0
