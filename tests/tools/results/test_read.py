"""Runs read from their folders: columns, states, groups, and what is said where there is no run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import zoo
from tests.real_runs import made_run, train_seeds, write_run
from zoo.config.yaml_io import config_of_yaml, save_yaml
from zoo.core.errors import UserError
from zoo.run.config import resolve_config
from zoo.run.folder import RunLock
from zoo.tools.results.read import Run, find_runs, groups, read_run, resolve_metric
from zoo.tools.results.report import has_all_times


@pytest.fixture(scope='module')
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_seeds(tmp_path_factory.mktemp('runs'), [0, 1])


@pytest.mark.slow
def test_real_run_has_its_config_metrics_and_end(trained: Path) -> None:
    run = zoo.read_run(find_runs([trained])[1])
    assert (run.exp_name, run.policy_type, run.env_id, run.seed, run.state) == (
        'cartpole_ppo',
        'ppo',
        'CartPole-v1',
        1,
        'done',
    )
    lines = [json.loads(line) for line in (run.path / 'metrics.jsonl').read_text().splitlines()]
    steps, values = run.curve('eval/return_mean')
    expected = [(line['env_step'], line['eval/return_mean']) for line in lines if 'eval/return_mean' in line]
    assert list(zip(steps, values, strict=True)) == expected and len(expected) >= 4
    assert {len(column) for column in run.columns.values()} == {len(lines)}
    assert run.result['versions']['zoo'] == zoo.__version__ and run.result['machine']['cores'] >= 1
    assert run.env_step == run.result['env_step'] == lines[-1]['env_step']


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
    made = made_run([100, last], [1.0, 5.0])  # rollouts of 128, of 1000 env steps: from 873 on there is no further one
    made.config['max_env_step'] = 1000
    made.config['policy'] |= {'collect': {'n_sample': 128}, 'eval': {'stop_value': stop_value}}
    assert read_run(write_run(tmp_path / 'a', made)).state == state


def test_runs_that_differ_in_seed_and_place_are_a_group() -> None:
    runs = [made_run([1], [1.0], seed=k) for k in range(3)]
    runs[1].config['logger'] = {'root': 'elsewhere'}
    assert {label: len(found) for label, found in groups(runs).items()} == {'made': 3}


def test_groups_of_one_name_are_told_apart_by_what_differs() -> None:
    runs = [made_run([1], [1.0], seed=k, rate=rate, size=64) for k in range(2) for rate in (0.1, 0.2)]
    assert list(groups(runs)) == ['made rate=0.1', 'made rate=0.2']
    assert list(groups([made_run([1], [1.0], rate=0.1)], ['policy.learn.rate'])) == ['made rate=0.1']


def test_labels_name_a_key_whole_where_another_one_ends_alike() -> None:
    runs = [made_run([1], [1.0], rate=rate) for rate in (0.1, 0.2)]
    runs[0].config['policy']['aux'], runs[1].config['policy']['aux'] = {'rate': None}, {'rate': 'auto'}
    assert list(groups(runs)) == [
        'made policy.learn.rate=0.1 policy.aux.rate=null',
        'made policy.learn.rate=0.2 policy.aux.rate=auto',
    ]


def test_key_without_a_value_that_only_one_of_two_configs_has_makes_no_other_label() -> None:
    runs = [made_run([1], [1.0], rate=0.1) for _ in range(2)]
    runs[1].config['later'] = None  # of a newer zoo
    assert {label: len(found) for label, found in groups(runs).items()} == {'made': 2}


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
    with pytest.raises(
        UserError, match=rf'is no run but holds 2; name one of them, e.g. .*{find_runs([trained])[1].name}'
    ):
        read_run(trained)
    with pytest.raises(UserError, match='neither it nor a folder in it has a config.yaml'):
        find_runs([Path(__file__).parent])
    with pytest.raises(UserError, match='no return in the log yet'):
        resolve_metric([Run(Path('a'), {}, {'env_step': np.zeros(0), 'wall_s': np.zeros(0)})])


def test_configs_that_differ_in_a_key_of_one_alone_are_two_groups() -> None:
    runs = [made_run([1], [1.0], seed=k) for k in range(2)]
    runs[0].config['env']['kwargs'], runs[1].config['env']['kwargs'] = {}, {'sutton_barto_reward': True}
    assert list(groups(runs)) == ['made', 'made sutton_barto_reward=true']


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
        ('env.kwargs', {1: 2}, 'key 1 in env.kwargs is not a string'),
    ],
)
def test_config_with_wrong_content_is_no_config_of_a_run(key: str, value: Any, words: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / 'a', made_run([1], [5.0]))
    config = config_of_yaml(folder / 'config.yaml')
    section = config
    for name in key.split('.')[:-1]:
        section = section.setdefault(name, {})
    section[key.split('.')[-1]] = value
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
