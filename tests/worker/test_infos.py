"""Numbers from an env's infos. An episode of `info_env` has 5 steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.envs import LimitEnv
from tests.policy_envs import differing, job_config, make_policy, rows
from tests.worker.info_envs import INFO
from zoo import ConfigError, serial_pipeline
from zoo.core.seeding import stream
from zoo.env import EnvConfig, make_env_groups, make_vector_env
from zoo.worker.collector import Collector
from zoo.worker.evaluator import Evaluation, Evaluator, evaluate
from zoo.worker.infos import ALL_NUMBERS, MOST_KEYS, N_MISSED, InfoKeys, InfoReader, InfoTally, Recent

VECTOR = 'tests.worker.info_envs:vector_env'
FORMS = {
    'sync same_step': dict(id=INFO, vectorization='sync', autoreset='same_step'),
    'sync next_step': dict(id=INFO, vectorization='sync', autoreset='next_step'),
    'sync disabled': dict(id=INFO, vectorization='sync', autoreset='disabled'),
    'async same_step': dict(id=INFO, vectorization='async', autoreset='same_step'),
    'async next_step': dict(id=INFO, vectorization='async', autoreset='next_step'),
    "gymnasium's same_step": dict(id=VECTOR, kwargs={'mode': 'SAME_STEP'}),
    "gymnasium's next_step": dict(id=VECTOR, kwargs={'mode': 'NEXT_STEP'}),
}


def collect(env: dict[str, Any], keys: InfoKeys, n_rollout: int = 3, n_env: int = 2) -> Collector:
    cfg = EnvConfig(**env, collector_env_num=n_env)
    groups = make_env_groups(cfg)
    policy = make_policy(
        groups[0].obs_space, groups[0].action_space, enable_field=['collect'], collect=dict(n_step=7), device='cpu'
    )
    collector = Collector(groups, policy.collect_mode, keys)
    try:
        collector.reset(stream(0, 'test'))
        for _ in range(n_rollout):  # 21 steps: 3 episodes or more in each env, some across rollouts
            collector.collect()
    finally:
        for group in groups:
            group.close()
    return collector


def play(env: dict[str, Any], keys: InfoKeys = ALL_NUMBERS, n_episode: int = 4, **options: Any) -> Evaluation:
    vector = make_vector_env(EnvConfig(**env), 2)
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['eval'])
    try:
        found = Evaluator(vector, policy.eval_mode, n_episode, infos=keys, **options).evaluate(stream(0, 'test'))
    finally:
        vector.close()
    assert found is not None
    return found


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.slow(ci=True)
def test_training_and_evaluation_have_the_last_number_of_an_episode_and_the_mean_of_its_steps(form: str) -> None:
    keys = InfoKeys('auto', ('speed',))
    episodes = collect(FORMS[form], keys).episodes
    found = episodes.infos.values
    assert set(found) == {'steps', 'speed', 'is_success', 'parts/drag'}
    assert set(found['steps']) == {5.0}  # never the 1000 of a reset
    assert set(found['speed']) == {6.0}  # (2 + 4 + 6 + 8 + 10) / 5
    assert len(found['steps']) == episodes.n_episode >= 6
    played = play(FORMS[form], keys)
    assert played.infos == {
        'steps': [5.0] * 4,
        'speed': [6.0] * 4,
        'parts/drag': [1.0] * 4,
        'is_success': played.infos['is_success'],
    }
    assert sorted(played.infos['is_success']) == [0, 0, 1, 1]  # every second episode of each of two envs
    assert played.success_rate == 0.5


def test_numbers_are_of_the_env_alone_whatever_wrappers_add() -> None:
    """gymnasium's RecordEpisodeStatistics and TimeLimit, around CartPole, whose info is empty."""
    wrapped = dict(id='CartPole-v1', wrappers=['gymnasium.wrappers:RecordEpisodeStatistics'], vectorization='sync')
    assert play(wrapped).infos == {}
    assert collect(wrapped, InfoKeys(), 20).episodes.infos.values == {}


@pytest.mark.parametrize('names', [('is_success',), ('steps',), ()])
def test_named_keys_alone_are_kept(names: tuple[str, ...]) -> None:
    assert set(play(FORMS['sync same_step'], InfoKeys(names)).infos) == set(names)
    assert set(collect(FORMS['sync same_step'], InfoKeys(names)).episodes.infos.values) == set(names)


def test_an_episode_that_is_cut_off_has_the_means_of_its_steps_and_no_last_number() -> None:
    found = play(FORMS['sync same_step'], InfoKeys('auto', ('speed',)), 2, max_episode_steps=3)
    assert found.n_cut == 2 and found.infos == {'speed': [4.0] * 2}  # (2 + 4 + 6) / 3


def test_episodes_without_a_number_have_nan() -> None:
    reader = InfoReader(InfoKeys(), 1, 'same_step')
    info = {'final_info': np.array([{'a': 1}], dtype=object)}
    assert reader.read(info, np.array([True])) == {0: {'a': 1.0}}
    found = Evaluation([1.0, 2.0], [1, 1], infos={'a': [3.0, math.nan]})
    assert found.info_mean('a') == 3 and found.info_mean('b') is None


def test_the_mean_over_steps_leaves_out_those_with_nan() -> None:
    reader, found = InfoReader(InfoKeys((), ('speed',)), 2, 'same_step'), {}
    for t, values in enumerate(([2.0, math.nan], [math.nan, math.nan], [4.0, math.nan])):
        found = reader.read({'speed': np.array(values)}, np.full(2, t == 2))
    assert found == {0: {'speed': 3.0}, 1: {}}  # (2 + 4) / 2; env 1 never had a number


def test_a_tally_has_the_numbers_of_a_rollout_and_leaves_nan_out() -> None:
    tally = InfoTally()
    tally.add([{'a': float(i)} for i in range(150)])
    tally.add([{'a': math.nan, 'success': 1.0}])
    assert tally.metrics() == {'info/a_mean': 74.5, 'info/success_mean': 1.0, 'success_rate': 1.0}  # mean of 0 to 149


def test_recent_numbers_are_of_the_fewest_newest_rollouts_that_have_100() -> None:
    recent = Recent()
    for first, n, kept in (
        (0, 60, 60),
        (100, 60, 120),  # 60 alone are too few
        (200, 40, 100),  # 60 + 40
        (300, 256, 256),
        (600, 10, 266),  # not the last 90 envs of the 256
        (700, 0, 266),
    ):
        recent.add([float(first + i) for i in range(n)])
        assert len(recent) == kept
    assert list(recent)[:2] == [300.0, 301.0] and list(recent)[-1] == 609.0


def test_a_name_that_no_info_has_is_a_warning_with_the_names_there_are(caplog: pytest.LogCaptureFixture) -> None:
    collect(FORMS['sync same_step'], InfoKeys(('step', 'zzz'), ('spead',)), 20)
    words = [record.getMessage() for record in caplog.records]
    assert len(words) == 3 and f'none of the first {N_MISSED} episodes' in words[0]
    assert "logger.info_keys has 'step'" in words[0] and "did you mean 'steps'?" in words[0]
    assert "'zzz'" in words[1] and 'numbers there are: is_success, parts/drag, speed, steps' in words[1]
    assert "logger.info_step_keys has 'spead'" in words[2] and "'speed'" in words[2]


PLAIN = 'tests.worker.info_envs:plain_env'


@pytest.mark.slow
@pytest.mark.parametrize(
    ('vectorization', 'autoreset'), [('async', 'same_step'), ('sync', 'next_step'), ('sync', 'disabled')]
)
def test_a_name_is_a_warning_too_where_all_infos_are_empty(
    vectorization: str, autoreset: str, caplog: pytest.LogCaptureFixture
) -> None:
    collect(dict(id=PLAIN, vectorization=vectorization, autoreset=autoreset), InfoKeys(('score',)), 20)
    (words,) = [record.getMessage() for record in caplog.records]
    assert "logger.info_keys has 'score' but none of the first" in words and 'numbers there are: none' in words


@pytest.mark.slow
def test_a_name_is_a_warning_of_a_run_on_batched_envs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cfg = job_config(tmp_path, 'CartPole-v1', max_env_step=1024, env={'vectorization': 'batched'})
    cfg['logger'] |= {'info_keys': ['score']}
    serial_pipeline(cfg)
    (words,) = [text for record in caplog.records if 'info_keys' in (text := record.getMessage())]
    assert "has 'score'" in words and 'numbers there are: none' in words


@pytest.mark.slow
def test_a_tensor_env_has_no_infos_to_read_in_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cfg = job_config(
        tmp_path, 'torch', env={'game': 'CartPole-v1'}, max_env_step=1024, policy={'eval': {'n_episode': 24}}
    )
    cfg['logger'] |= {'info_keys': ['score']}
    serial_pipeline(cfg)
    assert len([record for record in caplog.records if 'info_keys' in record.getMessage()]) == 1  # from the evaluation


def test_all_readers_of_a_run_warn_once_of_a_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = dict(collector_env_num=4, collector_group_num=2)
    policy = dict(eval=dict(n_episode=24, eval_freq=256, sets={'other': {'kwargs': {'limit': 3}}}))
    cfg = job_config(tmp_path, INFO, env=env, policy=policy, max_env_step=512)
    cfg['logger'] |= {'info_keys': ['zzz', 'steps'], 'info_step_keys': ['zzz']}
    serial_pipeline(cfg)
    words = sorted(text[:28] for record in caplog.records if 'zzz' in (text := record.getMessage()))
    assert words == ["logger.info_keys has 'zzz' b", "logger.info_step_keys has 'z"]


def test_a_number_that_no_float_holds_ends_no_run(tmp_path: Path) -> None:
    class Big(LimitEnv):
        def step(self, action: Any) -> Any:
            *rest, _ = super().step(action)
            return *rest, {'big': 10**400, 'small': 2}

    cfg = job_config(tmp_path, Big, env={'info_columns': ['big']}, policy=dict(eval=dict(eval_freq=64)))
    cfg['logger'] |= {'info_step_keys': ['big']}
    names = {name for row in rows(serial_pipeline(cfg).run_dir) for name in row}
    assert {'collect/info/small_mean', 'eval/info/small_mean'} <= names and not any('big' in name for name in names)


def test_auto_takes_no_more_keys_than_a_log_can_bear(caplog: pytest.LogCaptureFixture) -> None:
    env = {**FORMS['sync same_step'], 'kwargs': {'n_extra': MOST_KEYS + 10}}
    assert len(play(env).infos) == MOST_KEYS
    (words,) = [record.getMessage() for record in caplog.records]
    assert f'more than {MOST_KEYS} numbers' in words and 'logger.info_keys' in words


def test_a_run_logs_them_of_training_and_evaluation_and_is_the_same_without(tmp_path: Path) -> None:
    cfg, without = (
        job_config(tmp_path / name, INFO, policy=dict(eval=dict(eval_freq=64, n_episode=4))) for name in 'ab'
    )
    cfg['logger'] |= {'info_step_keys': ['speed']}
    without['logger'] |= {'info_keys': []}
    result = serial_pipeline(cfg)
    lines = rows(result.run_dir)
    train = next(row for row in lines if 'collect/iter' in row)
    judged = next(row for row in lines if 'eval/return_mean' in row)
    for row, group in ((train, 'collect'), (judged, 'eval')):
        assert row[f'{group}/info/steps_mean'] == 5 and row[f'{group}/info/speed_mean'] == 6
        assert row[f'{group}/success_rate'] == row[f'{group}/info/is_success_mean'] is not None
    assert judged['eval/return_min'] == judged['eval/return_max'] == 5
    other = serial_pipeline(without)
    assert not differing(result.policy.state_dict(), other.policy.state_dict())
    assert not any('info/' in name for row in rows(other.run_dir) for name in row)


@pytest.mark.slow
def test_two_groups_of_envs_fill_one_tally() -> None:
    env = {**FORMS['async same_step'], 'collector_group_num': 2}
    collector = collect(env, InfoKeys(), 3, 4)
    assert len(collector.groups) == 2
    assert len(collector.episodes.infos.values['steps']) == collector.episodes.n_episode == 16  # 4 of each env


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(('vectorization', 'autoreset'), [('sync', 'same_step'), ('async', 'next_step')])
def test_episodes_that_broke_off_are_not_counted(vectorization: str, autoreset: str) -> None:
    env = dict(id=INFO, on_error='restart', vectorization=vectorization, autoreset=autoreset, kwargs={'fails': True})
    collector = collect(env, InfoKeys('auto', ('speed',)))
    found = collector.episodes.infos.values
    assert set(found['steps']) == {5.0} and set(found['speed']) == {6.0}
    assert len(found['steps']) == len(found['speed']) == collector.episodes.n_episode


@pytest.mark.parametrize('autoreset', ['same_step', 'next_step', 'disabled'])
def test_steps_are_those_of_one_episode_though_its_last_info_is_empty(autoreset: str) -> None:
    env = dict(id=INFO, vectorization='sync', autoreset=autoreset, kwargs={'empty_end': True})
    found = collect(env, InfoKeys('auto', ('speed',))).episodes.infos.values
    assert set(found) == {'speed'} and set(found['speed']) == {5.0}  # (2 + 4 + 6 + 8) / 4


@pytest.mark.slow
def test_counters_of_atari_are_left_out() -> None:
    """ale-py reports them for the next episode: episode_frame_number is 30 or less at the end of 30 steps of 4 frames."""
    pytest.importorskip('ale_py')
    assert play(dict(id='atari', game='Pong', max_episode_steps=30), InfoKeys(), 2).infos == {}


def test_a_tensor_env_has_none_and_says_so_where_they_are_wanted() -> None:
    cfg = EnvConfig(id='torch', game='CartPole-v1')
    vector = make_vector_env(cfg, 2)
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['eval'])
    assert evaluate(policy, cfg, 2).infos == {}
    with pytest.raises(Exception, match='logger.info_step_keys'):
        Evaluator(vector, policy.eval_mode, 2, infos=InfoKeys('auto', ('speed',)))


@pytest.mark.parametrize('keys', ['steps', 3, [4]])
def test_keys_that_are_no_list_of_names_are_refused(keys: Any, tmp_path: Path) -> None:
    cfg = job_config(tmp_path, INFO)
    cfg['logger'] |= {'info_keys': keys}
    with pytest.raises(ConfigError, match='logger.info_keys is .*a list of texts or'):
        serial_pipeline(cfg)
