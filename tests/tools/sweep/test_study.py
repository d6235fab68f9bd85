"""The journal of a sweep: which sweep it belongs to, which process has which trial, and trials that are repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.sweep.tiny import LR, config
from zoo.core.errors import RunError, UserError
from zoo.tools.sweep.plan import Plan, make_plan
from zoo.tools.sweep.study import StorageError, Study, TrialOutcome, this_process
from zoo.tools.sweep.sweep import run_trial

optuna = pytest.importorskip('optuna')
pytestmark = pytest.mark.slow  # optuna takes a second to load

SPACE = f'{LR}=log(1e-4,1e-2)'
LAMBDA = 'policy.collect.gae_lambda'


def plan(root: Path, *texts: str, **rules: Any) -> Plan:
    return make_plan(config(root), texts or (SPACE,), **rules)


def die(study: Study, trial: Any) -> None:
    """Makes the trial look as if its process had ended."""
    trial.set_user_attr('owner', {**this_process(), 'start': 'an earlier process'})


def test_trials_in_work_and_done_are_never_more_than_asked_for(tmp_path: Path) -> None:
    one, two = Study(plan(tmp_path, n=3)), Study(plan(tmp_path, n=3))
    trials = [one.next_trial(), two.next_trial(), one.next_trial()]
    assert two.next_trial() is None and one.n_left() == 3
    assert len({trial.params[LR] for trial in trials}) == 3
    one.end(trials[0], TrialOutcome('complete', 1.0))
    two.end(trials[1], TrialOutcome('pruned'))
    assert one.next_trial() is None and one.n_left() == 1


def test_true_steps_of_an_older_journal_are_counted_in_evaluations(tmp_path: Path) -> None:
    study = Study(make_plan(config(tmp_path, 1024, stop_value=20.0), [SPACE], n=3))
    old = {'best_return': 20.0, 'wall_s': 1.0}
    for value, run in ((530.0, old | {'solved_at': 530}), (512.0, old | {'solved_at': 512, 'auc': 3.0}), (1500.0, old)):
        study.end(study.next_trial(), TrialOutcome('complete', value, [{'solved_at': None} | run]))
    # an evaluation every 256 env steps: 530 is the second one; 1,500 is of a run that never reached the goal
    assert [row.value for row in study.rows()] == [512.0, 512.0, 1500.0]


def test_lost_trial_is_tried_again_with_its_values_three_times_at_most(tmp_path: Path) -> None:
    study = Study(plan(tmp_path, n=1))
    first = study.next_trial()
    die(study, first)
    second = study.next_trial()
    assert second.params == first.params and study.next_trial() is None
    die(study, second)
    third = study.next_trial()
    die(study, third)
    assert study.next_trial() is None and study.n_left() == 0
    assert [row.state for row in study.rows()] == ['lost', 'lost', 'failed']
    assert '3 times' in study.rows()[2].reason


def test_trial_whose_process_ended_before_its_value_was_written_is_lost(tmp_path: Path) -> None:
    study = Study(plan(tmp_path, n=1))
    trial = study.next_trial()
    trial.set_user_attr('state', 'complete')
    die(study, trial)
    again = study.next_trial()
    assert again.params == trial.params
    study.end(again, TrialOutcome('complete', 0.5))
    assert [(row.state, row.value) for row in study.rows()] == [('lost', None), ('complete', 0.5)]


def test_stopped_trial_is_tried_again_as_often_as_needed(tmp_path: Path) -> None:
    study = Study(plan(tmp_path, n=1))
    params = []
    for _ in range(5):
        trial = study.next_trial()
        params.append(trial.params)
        study.end(trial, TrialOutcome('stopped'))
    assert params == params[:1] * 5


def test_owner_that_was_taken_for_lost_cannot_end_its_trial(tmp_path: Path) -> None:
    study = Study(plan(tmp_path, n=1))
    trial = study.next_trial()
    die(study, trial)
    again = study.next_trial()
    study.end(trial, TrialOutcome('complete', 9.0))
    study.end(again, TrialOutcome('complete', 1.0))
    assert [(row.state, row.value) for row in study.rows()] == [('lost', None), ('complete', 1.0)]


def test_grid_is_shared_out_and_lost_points_come_again(tmp_path: Path) -> None:
    texts = [f'{LR}=choice(1e-3,1e-2)', 'policy.learn.epoch_per_collect=int(1,2)']
    one, two = (Study(plan(tmp_path, *texts, sampler='grid')) for _ in range(2))
    trials = [study.next_trial() for study in (one, two, one, two)]
    assert one.next_trial() is None
    die(one, trials[1])
    assert one.next_trial().params == trials[1].params
    done = [tuple(row.values.values()) for row in one.rows()]
    assert sorted(set(done)) == [('1e-2', '1'), ('1e-2', '2'), ('1e-3', '1'), ('1e-3', '2')]


def test_sampled_values_depend_on_the_seed_alone(tmp_path: Path) -> None:
    first, same, other = (
        Study(plan(tmp_path / name, SPACE, f'seed={seed}')).next_trial().params
        for name, seed in (('a', 1), ('b', 1), ('c', 2))
    )
    assert first == same != other


@pytest.mark.parametrize(
    ('texts', 'rules', 'said'),
    [
        ([f'{LR}=log(1e-4,1e-3)'], {}, f'{LR}=log(0.0001,0.01), and this one log(0.0001,0.001)'),
        ([SPACE, f'{LAMBDA}=uniform(.8,1)'], {}, f'{LAMBDA}=nothing, and this one uniform'),
        ([SPACE, 'max_env_step=1024'], {}, 'max_env_step=512, and this one 1024'),
        ([SPACE], {'metric': 'last'}, 'metric=best'),
        ([SPACE], {'seeds': 2}, 'seeds=1'),
    ],
)
def test_other_sweep_in_the_storage_is_refused(
    texts: list[str], rules: dict[str, Any], said: str, tmp_path: Path
) -> None:
    Study(plan(tmp_path))
    with pytest.raises(UserError) as caught:
        Study(plan(tmp_path, *texts, **rules))
    assert 'what has changed in the config since then' in str(caught.value)
    assert 'holds another sweep' in str(caught.value) and said in str(caught.value), str(caught.value)


def in_file(folder: Path, file: Path, name: str = 'make') -> Plan:
    """The plan of a sweep whose env is in a file, which it writes."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"import gymnasium\n\n\ndef {name}():\n    return gymnasium.make('CartPole-v1')\n")
    source = config(folder)
    source['env'] = {**source['env'], 'id': f'{file}:{name}'}
    return make_plan(source, [SPACE])


def test_sweep_whose_env_file_was_moved_continues_with_the_new_one(tmp_path: Path) -> None:
    old = tmp_path / 'old.py'
    study = Study(in_file(tmp_path, old))
    study.end(study.next_trial(), TrialOutcome('complete', 1.0))
    old.unlink()
    new = tmp_path / 'envs' / 'new.py'
    study = Study(in_file(tmp_path, new))
    assert study.moved == {f'{old}:make': f'{new}:make'}
    assert [row.state for row in study.rows()] == ['complete']


def test_env_of_another_file_or_name_is_another_sweep(tmp_path: Path) -> None:
    old = tmp_path / 'old.py'
    Study(in_file(tmp_path, old))
    with pytest.raises(UserError, match=f'it has env.id={old}:make, and this one {tmp_path}/new.py:make'):
        Study(in_file(tmp_path, tmp_path / 'new.py'))  # the file of the sweep is still there
    old.unlink()
    with pytest.raises(UserError, match=f'it has env.id={old}:make, and this one {tmp_path}/new.py:build'):
        Study(in_file(tmp_path, tmp_path / 'new.py', 'build'))


def test_key_that_an_older_sweep_lacks_is_as_its_default(tmp_path: Path) -> None:
    older = plan(tmp_path)
    older.identity['config']['policy']['collect'].pop('gae_lambda')
    Study(older)
    assert Study(plan(tmp_path)).n_left() == older.n_trial
    with pytest.raises(UserError, match=f'it has {LAMBDA}=nothing, and this one 0.8'):
        Study(plan(tmp_path, SPACE, f'{LAMBDA}=0.8'))


def test_more_trials_and_another_sampler_continue_the_same_sweep(tmp_path: Path) -> None:
    study = Study(plan(tmp_path, n=1))
    study.end(study.next_trial(), TrialOutcome('complete', 1.0))
    assert Study(plan(tmp_path, n=3, sampler='random')).n_left() == 2


@pytest.mark.parametrize('text', ['hello\n', '{"a": 1}\n', '[1]\n'])
def test_other_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / 'file').write_text(text)
    with pytest.raises(UserError, match='is no journal of a sweep'):
        Study(plan(tmp_path, storage=str(tmp_path / 'file')))
    assert (tmp_path / 'file').read_text() == text


def test_study_of_another_program_is_refused(tmp_path: Path) -> None:
    import optuna

    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / 'file'))
    optuna.create_study(storage=optuna.storages.JournalStorage(backend), study_name='theirs')
    with pytest.raises(UserError, match='study of another program'):
        Study(plan(tmp_path, storage=str(tmp_path / 'file')))


def test_unwritable_storage_is_refused(tmp_path: Path) -> None:
    (tmp_path / 'file').touch()
    with pytest.raises(UserError, match='cannot be written.*--storage'):
        Study(plan(tmp_path, storage=str(tmp_path / 'file' / 'journal')))


def take_and_end(study: Study) -> None:
    study.end(study.next_trial(), TrialOutcome('complete', 1.0))


@pytest.mark.parametrize('room', [0, 150, 400, 700, 1_000])
def test_storage_that_is_full_is_one_sentence_and_the_same_command_continues(room: int, tmp_path: Path) -> None:
    """A limit on the size of files is a full disk: writes fail in the middle of a line, in one call of Optuna or another."""
    resource = pytest.importorskip('resource')
    study, journal = Study(plan(tmp_path, n=3)), tmp_path / 'tiny_sweep' / 'journal.log'
    take_and_end(study)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.stat().st_size + room, most))
    try:
        with pytest.raises(
            RunError, match=r'journal.log cannot be .* \(File too large\); .* same command continues'
        ) as error:
            take_and_end(study)
            take_and_end(study)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert type(error.value) is StorageError
    again = Study(plan(tmp_path, n=3))
    while again.n_left():
        for row in again.rows():
            if row.state == 'running':  # of the command that ended
                die(again, optuna.trial.Trial(again._study, row.number))
        take_and_end(again)
    assert sum(row.state == 'complete' for row in again.rows()) == 3


def test_storage_that_disappears_in_a_trial_ends_the_sweep_and_is_no_failed_trial(tmp_path: Path) -> None:
    """The pruner's reports are written while a run trains."""
    wanted = plan(tmp_path, n=2)
    study, journal = Study(wanted), tmp_path / 'tiny_sweep' / 'journal.log'
    trial = study.next_trial()
    journal.rename(tmp_path / 'kept')
    journal.mkdir()
    for call in (study.rows, study.next_trial, study.mark_lost, lambda: study.end(trial, TrialOutcome('stopped'))):
        with pytest.raises(StorageError, match='Is a directory'):
            call()
    with pytest.raises(StorageError, match='Is a directory'):
        run_trial(wanted, trial, study.values_of(trial.params))


def test_line_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    study = Study(plan(tmp_path, n=2))
    study.end(study.next_trial(), TrialOutcome('complete', 1.0))
    journal = tmp_path / 'tiny_sweep' / 'journal.log'
    with journal.open('a') as file:
        file.write('{"op_code": 4, "worker')
    again = Study(plan(tmp_path, n=2))
    again.end(again.next_trial(), TrialOutcome('complete', 2.0))
    assert [row.value for row in again.rows()] == [1.0, 2.0]
    assert all(json.loads(line) for line in journal.read_text().splitlines())


RUN = '{"env_step": 1, "solved_at": null, "best_return": %s, "wall_s": 1.0}'
RUNS = f'{{"op_code": 8, "worker_id": "x", "trial_id": 0, "user_attr": {{"runs": [{RUN}]}}}}'


@pytest.mark.many
@pytest.mark.parametrize(
    'line',
    [
        'garbage',
        'x' * 3_000_000,
        '',
        '[1]',
        '[' * 100_000,
        '{"op_code": 77, "worker_id": "x"}',
        '{"op_code": 8, "worker_id": "x", "trial_id": 0, "user_attr": {"state": "weird"}}',
        '{"op_code": 8, "worker_id": "x", "trial_id": 0, "user_attr": {"runs": "x"}}',
        '{"op_code": 8, "worker_id": "x", "trial_id": 0, "user_attr": {"owner": {"host": 5}}}',
        '{"op_code": 8, "worker_id": "x", "trial_id": 0, "user_attr": {"attempt": "2"}}',
        '{"op_code": 8, "worker_id": "x", "trial_id": 0, "user_attr": {"runs": [{"best_return": 1.0}]}}',
        '{"op_code": 8, "worker_id": "x", "trial_id": 0, "user_attr": {"again": [0]}}',
        RUNS % '"1"',
        RUNS % ('1' + '0' * 400),
        '{"op_code": 6, "worker_id": "x", "trial_id": 0, "state": 1, "values": []}',
        '{"op_code": 6, "worker_id": "x", "trial_id": 0, "state": 1, "values": ["x"]}',
    ],
    ids=lambda line: line[:80],
)
def test_line_that_no_sweep_writes_is_named(line: str, tmp_path: Path) -> None:
    study = Study(plan(tmp_path, n=2))
    study.end(study.next_trial(), TrialOutcome('complete', 1.0))
    journal = tmp_path / 'tiny_sweep' / 'journal.log'
    lines = journal.read_text().splitlines()
    for at in (len(lines), len(lines) - 1):  # as the last line and before the last line; trial 0 exists
        journal.write_text('\n'.join([*lines[:at], line, *lines[at:]]) + '\n')
        before = journal.read_bytes()
        with pytest.raises(UserError, match=f'the storage {journal} has a line {at + 1} that no sweep writes'):
            Study(plan(tmp_path, n=2))
        assert journal.read_bytes() == before


def test_lines_that_do_not_fit_each_other_are_one_sentence(tmp_path: Path) -> None:
    Study(plan(tmp_path, n=2))
    journal = tmp_path / 'tiny_sweep' / 'journal.log'
    journal.write_text(journal.read_text() + '{"op_code": 4, "worker_id": "x"}\n')  # a trial without a study
    with pytest.raises(UserError, match='has lines that do not fit .*; choose another with --storage'):
        Study(plan(tmp_path, n=2))


def test_trial_of_another_space_is_one_sentence(tmp_path: Path) -> None:
    study = Study(plan(tmp_path, n=2))
    study.end(study.next_trial(), TrialOutcome('complete', 1.0))
    journal = tmp_path / 'tiny_sweep' / 'journal.log'
    journal.write_text(journal.read_text().replace(r'\"log\": true', r'\"log\": false'))
    with pytest.raises(UserError, match='has lines that do not fit .*; choose another with --storage'):
        Study(plan(tmp_path, n=2))


def test_storage_that_is_a_pipe_or_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / 'pipe')
    (tmp_path / 'loop').symlink_to(tmp_path / 'loop')
    for name, words in (('pipe', 'it is no regular file'), ('loop', 'Too many levels')):
        with pytest.raises(UserError, match=f'cannot be written .{words}'):
            Study(plan(tmp_path, storage=str(tmp_path / name)))


@pytest.mark.parametrize('value', ['"x"', '[1]', '{}', '1' + '0' * 400], ids=lambda value: value[:20])
def test_tried_value_that_the_space_cannot_have_is_one_sentence(value: str, tmp_path: Path) -> None:
    study = Study(plan(tmp_path, n=2))
    lr = study.next_trial().params[LR]
    journal = tmp_path / 'tiny_sweep' / 'journal.log'
    journal.write_text(journal.read_text().replace(f'"param_value_internal":{lr}', f'"param_value_internal":{value}'))
    with pytest.raises(UserError, match='has lines that do not fit .*; choose another with --storage'):
        Study(plan(tmp_path, n=2))


@pytest.mark.long
def test_without_optuna_one_sentence_names_the_extra(tmp_path: Path) -> None:
    code = (
        'import sys; sys.modules["optuna"] = None\n'
        'from zoo.tools.cli.command import main\n'
        'sys.exit(main(["sweep", "cartpole_ppo", "--n", "1"]))'
    )
    done = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count('\n') == 1 and "'.[sweep]'" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())
