"""Whole sweeps: real runs, kills, signals, two commands that share a sweep; one trial."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PATIENCE, is_alive, left, wait_until
from tests.tools.sweep.tiny import LR, config, finish, folders, hold, release, start
from zoo import read_run, serial_pipeline
from zoo.core.errors import RunError, UserError
from zoo.run.config import resolve_config
from zoo.tools.sweep import sweep
from zoo.tools.sweep.plan import make_plan
from zoo.tools.sweep.sweep import as_data, run_trial, table

pytest.importorskip('optuna')
pytestmark = pytest.mark.slow

SPACE = f'{LR}=log(1e-4,1e-2)'


def owners(root: Path) -> list[dict[str, Any]]:
    """The processes that owned the trials, in the order in which the trials were taken."""
    text = (root / 'tiny_sweep' / 'journal.log').read_text()
    attrs = [json.loads(line).get('user_attr', {}) for line in text.splitlines()]
    return [attr['owner'] for attr in attrs if 'owner' in attr]


@pytest.mark.long
def test_trials_are_runs_of_each_seed_and_the_best_is_a_config(tmp_path: Path) -> None:
    result = sweep(config(tmp_path), [SPACE, 'seed=7'], n=3, seeds=2, pruner=None)
    assert [row.state for row in result.rows] == ['complete'] * 3 and result.n_left == 0
    values = [row.value or 0.0 for row in result.rows]
    assert values == sorted(values, reverse=True)
    assert folders(tmp_path) == [f'trial_{n:03d}_seed_{seed}' for n in range(3) for seed in (7, 8)]
    best = result.best
    assert best is not None and best.value == sum(run['best_return'] for run in best.runs) / 2
    wanted = resolve_config(config(tmp_path), [f'{LR}={best.values[LR]}', 'seed=7'])
    assert resolve_config(result.best_file) == wanted
    # the same seed and values give the same run
    again = serial_pipeline(result.best_file, overrides=['logger.console=off', f'logger.root={tmp_path}/again'])
    assert again.best_return == best.runs[0]['best_return']
    assert [row[0] for row in table(result)] == ['trial', *(str(row.number) for row in result.rows)]
    # torch alone takes more than 100 MB
    assert all(run['cpu_s'] > 0 and run['memory_mb'] > 100 for row in result.rows for run in row.runs)
    assert json.loads(json.dumps(as_data(result)))['best']['value'] == best.value


def test_done_sweep_is_shown_again_without_a_run_and_can_be_extended(tmp_path: Path) -> None:
    first = sweep(config(tmp_path), [SPACE], n=2)
    assert sweep(config(tmp_path), [SPACE], n=2).rows == first.rows and len(folders(tmp_path)) == 2
    more = sweep(config(tmp_path), [SPACE], n=3)
    assert len(more.rows) == 3 and {row.number for row in first.rows} < {row.number for row in more.rows}


def test_combination_that_the_config_refuses_is_a_trial_with_its_reason(tmp_path: Path) -> None:
    # rollouts of 4 x 64 = 256 samples fit batches of 64 and 256; rollouts of 4 x 16 = 64 fit only batches of 64
    texts = ['policy.learn.batch_size=choice(64,256)', 'policy.collect.n_step=choice(64,16)']
    result = sweep(config(tmp_path), texts, sampler='grid', pruner=None)
    states = {tuple(row.values.values()): row.state for row in result.rows}
    fit = dict.fromkeys([('64', '64'), ('256', '64'), ('64', '16')], 'complete')
    assert states == {**fit, ('256', '16'): 'refused'}
    assert 'policy.learn.batch_size is 256' in result.rows[-1].reason


@pytest.mark.soak
def test_trial_worse_than_the_others_is_pruned(tmp_path: Path) -> None:
    # a learning rate of 1 gives a policy that always takes the same action; a grid runs its points in order
    rates = ','.join(['3e-3', '3.1e-3', '3.2e-3', '3.3e-3', '3.4e-3', '1.0'])
    long = config(tmp_path, 2048)
    long['policy']['eval']['n_episode'] = 3
    long['policy']['learn']['epoch_per_collect'] = 4
    result = sweep(long, [f'{LR}=choice({rates})'], sampler='grid', metric='last')
    last = next(row for row in result.rows if row.values[LR] == '1.0')
    assert last.state == 'pruned' and last.runs[0]['env_step'] < 1700


def test_steps_to_the_goal_are_compared_where_one_is_set(tmp_path: Path) -> None:
    result = sweep(config(tmp_path, 1024, stop_value=15.0), [SPACE], n=2, pruner=None)
    for row in result.rows:
        solved = row.runs[0]['solved_at']
        assert row.value is not None and (row.value == solved if solved else row.value > 1024)
    assert any('steps to 15' in head for head in table(result)[0])


def test_sweep_whose_first_trials_all_fail_ends_with_the_reason(tmp_path: Path) -> None:
    broken = config(tmp_path)
    broken['env'] = {**broken['env'], 'id': 'tests.tools.sweep.tiny:failing_env'}
    with pytest.raises(RunError, match='first 3 trials all failed.*it broke'):
        sweep(broken, [SPACE], n=20)


@pytest.mark.parametrize(('jobs', 'said'), [(0, 'jobs is 0'), ('2', "jobs is '2'")])
def test_number_of_processes_is_checked(jobs: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        sweep(config(tmp_path), [SPACE], jobs=jobs)


def test_folder_that_cannot_be_written_ends_the_sweep(tmp_path: Path) -> None:
    (tmp_path / 'file').touch()
    with pytest.raises(UserError, match='cannot be (made|written)'):
        sweep(config(tmp_path / 'file'), [SPACE], storage=str(tmp_path / 'journal'))


@pytest.mark.long
def test_killed_sweep_continues_with_the_same_command(tmp_path: Path) -> None:
    words = [SPACE, '--n', '3', '--no-prune', '--json']
    hold(tmp_path, 1)  # stops in the second trial
    killed = start(words, tmp_path)
    wait_until(lambda: 'trial_001_seed_0' in folders(tmp_path), killed)
    killed.kill()
    killed.communicate()
    release(tmp_path)
    result = finish(start(words, tmp_path))
    by_number = {trial['number']: trial for trial in result['trials']}
    states = [by_number[i]['state'] for i in range(len(by_number))]
    assert states == ['complete', 'lost', 'complete', 'complete'] and result['n_left'] == 0
    assert by_number[1]['values'] == by_number[2]['values'] != by_number[3]['values']
    pids = [owner['pid'] for owner in owners(tmp_path)]
    assert pids[0] == pids[1] == killed.pid and pids[2] == pids[3] != killed.pid  # trial 0 was not repeated


@pytest.mark.soak
def test_two_commands_at_once_share_the_trials(tmp_path: Path) -> None:
    words = [SPACE, '--n', '6', '--no-prune', '--json']
    hold(tmp_path, 0)  # until each command has a trial
    both = [start(words, tmp_path), start(words, tmp_path)]
    wait_until(lambda: len(folders(tmp_path)) == 2)
    release(tmp_path)
    results = [finish(process) for process in both]
    last = max(results, key=lambda result: len(result['trials']))
    assert len(last['trials']) == 6 and len({trial['values'][LR] for trial in last['trials']}) == 6
    assert {owner['pid'] for owner in owners(tmp_path)} == {process.pid for process in both}
    assert [len(list(path.iterdir())) for path in (tmp_path / 'tiny_sweep').glob('trial_*')] == [1] * 6


@pytest.mark.soak
def test_command_that_is_done_first_says_that_another_one_still_works(tmp_path: Path) -> None:
    words = [SPACE, '--n', '1', '--no-prune']
    hold(tmp_path, 0)
    first = start(words, tmp_path)
    wait_until(lambda: folders(tmp_path), first)
    out, err = start(words, tmp_path).communicate(timeout=PATIENCE)
    assert 'another process still works on 1 of 1 trials; the same command shows the table when it is done' in out, err
    assert 'not done' not in out
    release(tmp_path)
    out, err = first.communicate(timeout=PATIENCE)
    assert first.returncode == 0 and 'still works' not in out and 'train the best: ' in out, err


@pytest.mark.soak
def test_process_that_is_killed_is_replaced_and_its_trial_tried_again(tmp_path: Path) -> None:
    hold(tmp_path, 0)
    process = start([SPACE, '--n', '4', '--jobs', '2', '--no-prune', '--json'], tmp_path)
    wait_until(lambda: len(folders(tmp_path)) == 2, process)
    os.kill(owners(tmp_path)[-1]['pid'], signal.SIGKILL)
    release(tmp_path)
    result = finish(process)
    states = [trial['state'] for trial in result['trials']]
    assert states.count('complete') == 4 and states.count('lost') == 1


@pytest.mark.soak
@pytest.mark.parametrize(('number', 'jobs'), [(signal.SIGINT, '1'), (signal.SIGTERM, '2')])
def test_signal_ends_all_processes_and_the_same_command_continues(number: int, jobs: str, tmp_path: Path) -> None:
    words = [SPACE, '--n', '4', '--jobs', jobs, '--no-prune', '--json']
    hold(tmp_path, 1)  # the first trial is complete, or stopped too
    process = start(words, tmp_path)
    wait_until(lambda: len(folders(tmp_path)) == 2, process)
    process.send_signal(number)
    err = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 128 + number, err
    assert 'the same command continues it' in err and 'Traceback' not in err
    assert not any(is_alive(owner['pid']) for owner in owners(tmp_path))
    release(tmp_path)
    result = finish(start(words, tmp_path))
    states = [trial['state'] for trial in result['trials']]
    assert states.count('complete') == 4 and 'stopped' in states and 'lost' not in states
    name = {signal.SIGINT: 'Ctrl-C', signal.SIGTERM: 'SIGTERM'}[number]
    assert {trial['reason'] for trial in result['trials'] if trial['state'] == 'stopped'} == {f'by {name}'}


@pytest.mark.soak
def test_processes_end_with_the_command_that_is_killed(tmp_path: Path) -> None:
    hold(tmp_path, 0)
    process = start([SPACE, '--n', '9', '--jobs', '2', '--json'], tmp_path)
    wait_until(lambda: len(folders(tmp_path)) == 2, process)
    process.kill()
    process.communicate()
    pids = {owner['pid'] for owner in owners(tmp_path)}
    assert len(pids) == 2 and not left(pids)


# --- one trial: its reports to the pruner, and its end


class Trial:
    """Stands in for optuna's trial: keeps the reports and asks to be pruned from the step `ends_at` on."""

    number = 4

    def __init__(self, ends_at: int = 99) -> None:
        self.reports: dict[int, float] = {}
        self._ends_at = ends_at

    def report(self, value: float, step: int) -> None:
        assert step not in self.reports
        self.reports[step] = value

    def should_prune(self) -> bool:
        return max(self.reports) >= self._ends_at


def test_run_that_reaches_its_goal_early_is_reported_at_all_later_steps_too(tmp_path: Path) -> None:
    # an episode of CartPole has 8 steps or more, so the first evaluation reaches 5; a run has 4 evaluations, and 1 at its end
    plan, trial = make_plan(config(tmp_path, 1024, stop_value=5.0), [SPACE], seeds=2), Trial()
    outcome = run_trial(plan, trial, {LR: '1e-3'})
    assert outcome.state == 'complete' and sorted(trial.reports) == [1, 2, 3, 4, 6, 7, 8, 9]
    assert trial.reports[2] == trial.reports[4] == outcome.runs[0]['solved_at'] < 1024
    assert trial.reports[9] == outcome.value == sum(run['solved_at'] for run in outcome.runs) / 2


def test_pruned_trial_ends_with_the_evaluation_and_trains_no_further_seed(tmp_path: Path) -> None:
    plan, trial = make_plan(config(tmp_path, 2048), [SPACE], seeds=3), Trial(ends_at=2)
    outcome = run_trial(plan, trial, {LR: '1e-3'})
    assert outcome.state == 'pruned' and len(outcome.runs) == 1 and outcome.runs[0]['env_step'] < 1024
    assert max(trial.reports) == 2 and outcome.value is None
    run = read_run(outcome.runs[0]['run_dir'])
    assert run.reason == 'the sweep pruned it, since other trials were better at the same step'


def test_trial_is_not_pruned_at_the_evaluation_that_ends_it(tmp_path: Path) -> None:
    # an episode of CartPole has 8 steps or more, so the first evaluation reaches 5 and ends the run
    solved = make_plan(config(tmp_path, 1024, stop_value=5.0), [SPACE])
    assert run_trial(solved, Trial(ends_at=1), {LR: '1e-3'}).state == 'complete'
    # rollouts have 256 env steps at most, so the evaluation of the fourth one is the last, with nothing left to save
    whole = make_plan(config(tmp_path, 1024), [SPACE])
    outcome = run_trial(whole, Trial(ends_at=4), {LR: '1e-3'})
    assert outcome.state == 'complete' and outcome.value == outcome.runs[0]['best_return']


def test_steps_to_the_goal_are_counted_in_evaluations(tmp_path: Path) -> None:
    plan = make_plan(config(tmp_path, 1024, stop_value=5.0), [SPACE])
    outcome = run_trial(plan, Trial(), {LR: '1e-3'})
    assert outcome.value == outcome.runs[0]['solved_at'] == 256  # the first evaluation, of one every 256 env steps
    assert outcome.runs[0]['env_step'] != 256  # resets are no env steps


def test_refused_values_train_nothing(tmp_path: Path) -> None:
    outcome = run_trial(make_plan(config(tmp_path), [SPACE]), Trial(), {'policy.learn.batch_size': '96'})
    assert outcome.state == 'refused' and '96' in outcome.reason and not list(tmp_path.iterdir())
