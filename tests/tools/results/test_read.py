"""Runs: reading them from folders, finding them by words, grouping them by config; and the errors if there is none."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import zoo
from tests.real_runs import made_run, train_seeds, write_run
from zoo.config.section import put_at
from zoo.config.yaml_io import config_of_yaml, save_yaml, storable, yaml_text
from zoo.core.errors import UserError
from zoo.run.config import resolve_config, with_later_keys
from zoo.run.folder import RunLock
from zoo.tools.results import read
from zoo.tools.results.compare import differences
from zoo.tools.results.read import (
    Run,
    check_same_env,
    find_runs,
    groups,
    named_runs,
    read_run,
    resolve_metric,
    samples,
    sides_of,
    warn_of_other_returns,
)
from zoo.tools.results.report import has_all_times


def yaml_data(config: Any) -> dict[str, Any]:
    """A config as a run stores it and a reader finds it."""
    return yaml.safe_load(yaml_text(storable(config)))


@pytest.fixture(scope='module')
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_seeds(tmp_path_factory.mktemp('runs'), [0, 1])


@pytest.mark.long
def test_real_run_has_its_config_metrics_and_end(trained: Path) -> None:
    run = zoo.read_run(find_runs([trained])[1])
    assert (run.exp_name, run.policy_type, run.env_id) == ('cartpole_ppo', 'ppo', 'CartPole-v1')
    assert (run.seed, run.state) == (1, 'done')
    lines = [json.loads(line) for line in (run.path / 'metrics.jsonl').read_text().splitlines()]
    steps, values = run.curve('eval/return_mean')
    expected = [(line['env_step'], line['eval/return_mean']) for line in lines if 'eval/return_mean' in line]
    assert list(zip(steps, values, strict=True)) == expected and len(expected) >= 4
    assert {len(column) for column in run.columns.values()} == {len(lines)}
    assert run.result['versions']['zoo'] == zoo.__version__ and run.result['machine']['cores'] >= 1
    assert run.env_step == run.result['env_step'] == lines[-1]['env_step']


@pytest.mark.long
@pytest.mark.slow
def test_checkpoint_names_its_run(trained: Path) -> None:
    folder = find_runs([trained])[0]
    file = next((folder / 'checkpoints').iterdir())
    assert read_run(file).path == folder and find_runs([file, folder, trained]) == find_runs([trained])


def test_lines_without_a_metric_are_nan_and_a_cut_line_ends_the_log(tmp_path: Path) -> None:
    folder = write_run(tmp_path / 'a', made_run([1, 2], [5.0, 6.0]))
    with open(folder / 'metrics.jsonl', 'a') as file:
        file.write('{"env_step": 3, "wall_s": 3.0, "learn/x": null, "learn/y": 2}\n{"env_step": 4, "wa')
    run = read_run(folder)
    np.testing.assert_array_equal(run.columns['eval/return_mean'], [5.0, 6.0, np.nan])
    np.testing.assert_array_equal(run.columns['learn/y'], [np.nan, np.nan, 2.0])
    assert np.isnan(run.columns['learn/x']).all() and run.env_step == 3
    assert [list(part) for part in run.curve('eval/return_mean')] == [[1, 2], [5, 6]]


def test_state_is_running_while_the_folder_is_locked_and_killed_if_nothing_ended_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / 'a', made_run([1], [5.0]))
    (folder / 'result.json').write_text('{"state": "running"}')
    lock = RunLock(folder)
    assert read_run(folder).state == 'running'
    lock.close()
    assert read_run(folder).state == 'killed'
    (folder / 'result.json').write_text('{"state": "failed", "error": "x"}')
    assert read_run(folder).state == 'failed'


@pytest.mark.parametrize('last, stop_value, state', [(900, None, 'done'), (800, None, 'stopped'), (800, 5.0, 'done')])
def test_state_of_a_run_by_an_older_zoo_follows_from_its_log(
    last: int, stop_value: float | None, state: str, tmp_path: Path
) -> None:
    made = made_run([100, last], [1.0, 5.0])  # of at most 1000 env steps: after step 872 no rollout of 128 fits
    made.config['max_env_step'] = 1000
    made.config['policy'] |= {'collect': {'n_sample': 128}, 'eval': {'stop_value': stop_value}}
    assert read_run(write_run(tmp_path / 'a', made)).state == state


RATES = ({'policy.learn.rate': 0.1}, {'policy.learn.rate': 0.2})


@pytest.mark.parametrize(
    ('changes', 'labels'),
    [
        (({'seed': 1}, {'logger': {'root': 'elsewhere'}}, {}), {'made': 3}),
        ((*RATES, {**RATES[0], 'seed': 1}), {'made rate=0.1': 2, 'made rate=0.2': 1}),
        (  # a label has the whole key if another key ends in the same word
            ({**RATES[0], 'policy.aux': {'rate': None}}, {**RATES[1], 'policy.aux': {'rate': 'auto'}}),
            {f'made policy.learn.rate={rate} policy.aux.rate={aux}': 1 for rate, aux in ((0.1, 'null'), (0.2, 'auto'))},
        ),
        (({'later': None}, {}), {'made': 2}),  # a key of a newer zoo
        (
            ({'env.kwargs': {}}, {'env.kwargs': {'sutton_barto_reward': True}}),
            {'made': 1, 'made sutton_barto_reward=true': 1},
        ),
    ],
)
def test_groups_are_runs_of_one_config_labelled_by_what_differs(changes: Any, labels: dict[str, int]) -> None:
    runs = [made_run([1], [1.0]) for _ in changes]
    for run, change in zip(runs, changes, strict=True):
        for key, value in change.items():
            put_at(run.config, key, value)
    assert {label: len(found) for label, found in groups(runs).items()} == labels


def test_group_may_be_labelled_by_given_keys() -> None:
    assert list(groups([made_run([1], [1.0], rate=0.1)], ['policy.learn.rate'])) == ['made rate=0.1']


def test_seconds_and_steps_are_those_of_the_end_where_the_log_ended_before(tmp_path: Path) -> None:
    folder = write_run(tmp_path / 'a', made_run([100], [5.0]))  # 100 steps in 100 s
    run = read_run(folder)
    assert (run.env_step, run.wall_s, run.speed) == (100, 100.0, 1.0)
    (folder / 'result.json').write_text('{"state": "done", "env_step": 500, "wall_s": 250.0}')
    run = read_run(folder)
    assert (run.env_step, run.wall_s, run.speed) == (500, 250.0, 2.0)
    empty = Run(Path('a'), {}, {'env_step': np.zeros(0), 'wall_s': np.zeros(0)})
    assert (empty.env_step, empty.wall_s, empty.speed) == (0, 0.0, None)


def test_config_of_something_else_is_no_run(tmp_path: Path) -> None:
    (tmp_path / 'config.yaml').write_text('database: here\n')
    with pytest.raises(UserError, match='is no config of a run: it has no env or no policy'):
        read_run(tmp_path)


def test_default_metric_is_that_of_evaluations() -> None:
    evaluated, trained_only = made_run([1], [1.0]), made_run([1], [1.0], metric='collect/return_mean')
    assert resolve_metric([trained_only, evaluated]) == 'eval/return_mean'
    assert resolve_metric([trained_only]) == 'collect/return_mean'


def test_what_is_not_there_is_answered_with_what_is_close(trained: Path) -> None:
    with pytest.raises(UserError, match=r"no run has the metric 'eval/retrun_mean'; did you mean eval/return_mean"):
        resolve_metric([read_run(find_runs([trained])[0])], 'eval/retrun_mean')
    with pytest.raises(UserError, match=r'no run at .*cartpole_pp; did you mean .*cartpole_ppo'):
        find_runs([trained.parent / 'cartpole_pp'])
    with pytest.raises(UserError, match=r'no run at .*/cartpole_pp/1/2; did you mean .*cartpole_ppo'):
        read_run(trained.parent / 'cartpole_pp' / '1' / '2')
    newest = find_runs([trained])[1].name
    with pytest.raises(UserError, match=rf'is no run but holds 2; name one of them, e.g. .*{newest}'):
        read_run(trained)
    with pytest.raises(UserError, match='neither it nor a folder in it has a config.yaml'):
        find_runs([Path(__file__).parent])
    with pytest.raises(UserError, match='no return in the log yet'):
        resolve_metric([Run(Path('a'), {}, {'env_step': np.zeros(0), 'wall_s': np.zeros(0)})])


def test_run_that_is_named_in_two_ways_is_one(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.parent)
    assert len(find_runs([trained, Path(trained.name)])) == 2


def test_damaged_files_give_what_they_hold(tmp_path: Path) -> None:
    folder = write_run(tmp_path / 'a', made_run([1, 2], [5.0, 6.0]))
    with open(folder / 'metrics.jsonl', 'ab') as file:
        file.write(b'{"learn/x": 1}\n\xff\xfe\n')
    (folder / 'result.json').write_text('{"state": "done", "env_step": "many", "wall_s": null}')
    run = read_run(folder)
    assert run.env_step == 2 and run.wall_s == 2.0
    (folder / 'config.yaml').write_text('seed: null\nenv: {}\npolicy: {}\n')
    with pytest.raises(UserError, match='seed is None'):
        read_run(folder)


@pytest.mark.parametrize(
    ('key', 'value', 'words'),
    [
        ('policy.collect', 'many', "policy.collect is 'many' but must be a section"),
        ('policy.collect.n_sample', 'many', "policy.collect.n_sample is 'many' but must be an integer"),
        ('policy.collect.n_sample', 10**400, 'but must be an integer'),
        ('policy.eval.stop_value', 'high', "policy.eval.stop_value is 'high' but must be a number"),
        ('policy.type', ['ppo'], r"policy.type is \['ppo'\] but must be a text"),
        ('env.id', None, 'env.id is None but must be a text'),
        ('logger', 'loud', "logger is 'loud' but must be a section"),
        ('agents', [True], r'agents is \[True\] but must be a section'),
        ('agents.policies', 'many', "agents.policies is 'many' but must be a section"),
        ('agents.train', 3, 'agents.train is 3 but must be a list of names'),
        ('env.kwargs', {1: 2}, 'key 1 in env.kwargs is not a string'),
    ],
)
def test_config_with_wrong_content_is_no_config_of_a_run(key: str, value: Any, words: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / 'a', made_run([1], [5.0]))
    config = config_of_yaml(folder / 'config.yaml')
    put_at(config, key, value)
    (folder / 'config.yaml').write_text(yaml.safe_dump(config))
    with pytest.raises(UserError, match=f'{folder}/config.yaml is no config of a run: .*{words}'):
        read_run(folder)


def test_numbers_of_400_digits_are_infinite_and_count_as_unknown(tmp_path: Path) -> None:
    folder, digits = write_run(tmp_path / 'a', made_run([1, 2], [5.0, 6.0])), '7' * 400
    with open(folder / 'metrics.jsonl', 'a') as file:
        file.write(f'{{"env_step": {digits}, "wall_s": {digits}, "learn/x": -{digits}}}\n')
    (folder / 'result.json').write_text(f'{{"state": "done", "env_step": {digits}, "timed_s": {digits}}}')
    run = read_run(folder)
    assert (run.env_step, run.wall_s) == (2, 2.0) and run.columns['learn/x'][-1] == -np.inf
    assert not has_all_times(run)


def test_label_has_no_length_of_a_schedule_that_only_follows_that_of_the_run(tmp_path: Path) -> None:
    rate = 'policy.learn.learning_rate={start: 1e-3, end: 0}'
    for n in (2_048, 4_096):
        (tmp_path / str(n)).mkdir()
        save_yaml(resolve_config('cartpole_ppo', [rate, f'max_env_step={n}']), tmp_path / str(n) / 'config.yaml')
    runs = [read_run(tmp_path / str(n)) for n in (2_048, 4_096)]
    assert list(groups(runs)) == ['cartpole_ppo max_env_step=2048', 'cartpole_ppo max_env_step=4096']


def test_runs_of_an_older_zoo_are_of_one_group_with_those_of_today(tmp_path: Path) -> None:
    config = yaml_data(resolve_config('cartpole_ppg'))
    older = copy.deepcopy(config)
    del older['env']['ends'], older['env']['drop_obs'], older['policy']['model']['obs_clip']
    other = copy.deepcopy(config)
    other['policy']['model']['obs_clip'] = 5.0
    made = made_run([1], [1.0])
    runs = [Run(tmp_path / str(i), each, made.columns) for i, each in enumerate((older, config, other))]
    assert {label: len(found) for label, found in groups(runs).items()} == {
        'cartpole_ppg obs_clip=10.0': 2,
        'cartpole_ppg obs_clip=5.0': 1,
    }
    assert samples(runs[:2]) == runs[1:2], 'a repeated seed is one sample'
    assert differences({'A': older, 'B': config}) == {}
    assert differences({'A': older, 'B': other}) == {'policy.model.obs_clip': {'A': 10.0, 'B': 5.0}}


def test_keys_that_a_run_has_as_another_kind_of_value_are_no_lacking_keys() -> None:
    config = yaml_data(resolve_config('cartpole_ppo', ['policy.learn.learning_rate={start: 1e-3, end: 0}']))
    assert with_later_keys(config) == config
    config['policy']['type'] = 'of_another_program'
    del config['policy']['model']
    assert with_later_keys(config) == config


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """runs/ in the current folder: `a` with seeds 0 and 1, `b` with seed 0 at two learning rates."""
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        write_run(tmp_path / 'runs' / 'a' / f'1_seed{seed}', made_run([1], [seed], seed=seed, name='a'))
    for rate in (0.1, 0.2):
        write_run(tmp_path / 'runs' / 'b' / f'2_rate{rate}', made_run([1], [rate], name='b', learning_rate=rate))
    return tmp_path / 'runs'


def test_a_name_in_the_folder_of_runs_will_do(runs: Path) -> None:
    assert [run.path for run in named_runs(['a'])] == [Path('runs/a/1_seed0'), Path('runs/a/1_seed1')]
    assert len(named_runs([runs / 'a' / '1_seed1', 'b/2_rate0.1'])) == 2
    with pytest.raises(UserError, match='no run at c'):
        named_runs(['a', 'c'])


@pytest.mark.parametrize(
    ('word', 'said'),
    [
        ('zzz', 'no run at zzz; there is no file or folder of that name'),
        ('z/y', 'no run at z/y; there is nothing at z'),
    ],
)
def test_a_word_that_names_nothing_is_said_once(
    word: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f'^{said}$'):
        named_runs([word])


def test_a_folder_of_that_name_comes_first(runs: Path) -> None:
    write_run(Path('a') / 'here', made_run([1], [5]))
    assert [run.path for run in named_runs(['a'])] == [Path('a/here')]


def test_two_words_are_two_sides_even_of_one_config(runs: Path) -> None:
    sides = sides_of(['a/1_seed0', 'a/1_seed1'])
    seeds = {label: [run.seed for run in side] for label, side in sides.items()}
    assert seeds == {'a (a/1_seed0)': [0], 'a (a/1_seed1)': [1]}


def test_a_word_with_several_configs_is_several_sides(runs: Path) -> None:
    assert [len(side) for side in sides_of(['a', 'b']).values()] == [2, 1, 1]
    assert list(sides_of(['b'])) == ['b learning_rate=0.1', 'b learning_rate=0.2']


def test_more_words_are_grouped_by_their_config(runs: Path) -> None:
    sides = sides_of(['a/1_seed0', 'b/2_rate0.1', 'a/1_seed1'])
    assert {label: len(side) for label, side in sides.items()} == {'a': 2, 'b': 1}


@pytest.mark.parametrize(('word', 'said'), [('a', 'all 2 runs are'), ('a/1_seed0', 'the one run is')])
def test_one_side_is_nothing_to_compare(word: str, said: str, runs: Path) -> None:
    with pytest.raises(UserError, match=f'{said} of one config, a;'):
        sides_of([word])


def test_runs_of_different_envs_are_refused_unless_they_are_allowed() -> None:
    runs = [made_run([1], [1]), made_run([1], [1], name='other', env='Acrobot-v1')]
    with pytest.raises(UserError, match='made/0 is of the env CartPole-v1 but .*other/0 of Acrobot-v1'):
        check_same_env(runs)
    check_same_env(runs, allow=True)
    check_same_env(runs[:1])


def test_last_is_the_newest_run(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level('INFO')
    os.utime(runs / 'b' / '2_rate0.1' / 'metrics.jsonl', (2e9, 2e9))
    assert [run.path for run in named_runs(['last'])] == [Path('runs/b/2_rate0.1')]
    assert caplog.messages == ['last is runs/b/2_rate0.1, the newest of 4 runs']


def test_repeated_runs_of_one_config_and_seed_are_one_sample(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level('INFO')
    for k, state in enumerate(('done', 'done', 'killed')):  # the second is the newest that is done
        write_run(runs / 'a' / f'2_again{k}', made_run([1], [k], seed=0, name='a'))
        (runs / 'a' / f'2_again{k}' / 'result.json').write_text(f'{{"state": "{state}"}}')
        os.utime(runs / 'a' / f'2_again{k}' / 'metrics.jsonl', (2e9 + k, 2e9 + k))
    assert [run.path.name for run in named_runs(['a'])] == ['1_seed1', '2_again1']
    left = 'runs/a/1_seed0, runs/a/2_again0, runs/a/2_again2'
    assert caplog.messages == [f'left out, since another run has the same config and seed: {left}']
    assert [len(side) for side in sides_of(['a', 'b']).values()] == [2, 1, 1]


def test_long_log_is_read_in_part_with_its_evaluations_and_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, 'MAX_ROW', 100)
    lines = [{'env_step': i, 'wall_s': i / 10, 'collect/return_mean': float(i)} for i in range(1_000)]
    for i in range(50, 1_000, 100):  # 10 evaluations
        lines[i]['eval/return_mean'] = -float(i)
    path = tmp_path / 'metrics.jsonl'
    path.write_text(''.join(f'{json.dumps(line)}\n' for line in lines))
    columns = read.columns_of_log(path)
    steps = columns['env_step'].tolist()
    assert len(steps) <= 210 and steps == sorted(steps) and steps[-1] == 999
    there = columns['eval/return_mean'][~np.isnan(columns['eval/return_mean'])]
    assert there.tolist() == [-float(i) for i in range(50, 1_000, 100)]
    assert np.array_equal(columns['collect/return_mean'], columns['env_step'])


def test_log_with_other_names_in_every_line_takes_a_limited_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, 'MAX_CELL', 10_000)
    path = tmp_path / 'metrics.jsonl'
    path.write_text(''.join(f'{{"env_step": {i}, "wall_s": 1, "m{i}": 1}}\n' for i in range(1_000)))
    assert list(read.columns_of_log(path)) == [
        'env_step',
        'wall_s',
        *(f'm{i}' for i in range(8)),
    ]  # 10 columns x 1,000 lines


@pytest.mark.parametrize('make', [Path.mkdir, os.mkfifo])
def test_folder_or_pipe_with_the_name_of_a_config_makes_no_run(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path('runs/a'), made_run([1], [5.0]))
    Path('runs/b').mkdir()
    make(Path('runs/b/config.yaml'))
    assert [run.path for run in named_runs(['runs'])] == [Path('runs/a')]
    with pytest.raises(UserError, match='no run at runs/b: neither it nor a folder in it has a config.yaml'):
        named_runs(['runs/b'])


def test_readable_runs_are_named_as_for_other_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ('x/a', 'x/b', 'y'):
        write_run(Path('runs') / name, made_run([1], [5.0]))
    assert [run.path for run in read.readable_runs(['x'])] == [Path('runs/x/a'), Path('runs/x/b')]
    assert len(read.readable_runs(['last'])) == 1


def test_option_that_an_older_run_lacks_makes_no_group_if_it_is_0(tmp_path: Path) -> None:
    one, other = made_run([1], [5.0]), made_run([1], [5.0])
    assert len(groups([one, other])) == 1
    label = list(groups([one]))
    other.config.setdefault('policy', {})['noise_color'] = 0.0
    assert list(groups([one, other])) == label


@pytest.mark.parametrize(
    ('agents', 'other', 'warns'),
    [
        ({}, {}, False),
        ({}, {'score': 'team'}, True),  # the mean over the agents of the only policy, and the sum over all
        ({'policies': {'p': {}, 'q': {}}}, {'score': 'team'}, False),
        ({'policies': {'p': {}, 'q': 'random'}, 'mapping': {'a': 'q', '*': 'p'}}, {}, True),  # the mean without a
    ],
)
def test_returns_of_other_agents_are_told_apart(
    agents: dict[str, Any], other: dict[str, Any], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [made_run([0, 10], [1, 2]) for _ in range(2)]
    for run, section in zip(runs, (agents, other), strict=True):
        run.config = {**run.config, 'agents': section}
    warn_of_other_returns(runs, 'eval/return_mean')
    assert ('are returns of other agents' in caplog.text) == warns
    caplog.clear()
    warn_of_other_returns(runs, 'eval/team_return_mean')
    assert not caplog.text
