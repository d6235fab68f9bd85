"""result.json: its content after each way in which a run can end."""

import json
import os
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.policy_envs import job_config
from tests.run.processes import without_override
from zoo.core.errors import CallbackError
from zoo.pipeline import serial_pipeline
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.run.result import ResultFile, command, commit


@pytest.fixture
def cfg(tmp_path: Path) -> Any:
    """The config of a run of two rounds."""
    return resolve_config(job_config(tmp_path, max_env_step=128))


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / 'result.json').read_text())


def test_run_that_ends_says_done_with_its_numbers(tmp_path: Path) -> None:
    result = serial_pipeline(job_config(tmp_path))
    found = read(result.run_dir)
    assert found['state'] == 'done' and found['stop_reason'] == '' and 'error' not in found
    assert (found['env_step'], found['last_return']) == (result.env_step, result.last_return)
    assert set(found['versions']) >= {'zoo', 'python', 'torch'} and found['machine']['cpu']
    assert found['threads'].keys() == {'collect', 'learn', 'evaluate'} and min(found['threads'].values()) >= 1
    assert found['seconds'].keys() == {'env', 'act', 'sample', 'learn', 'evaluate', 'log'}
    evaluate_s, all_s = found['seconds']['evaluate'], sum(found['seconds'].values())
    assert 0 < evaluate_s < all_s <= result.wall_s  # the only evaluation is the last


def test_last_finish_counts(cfg: Any) -> None:
    with SerialJob(cfg) as job:
        job.iteration()
        job.finish()
        first = read(job.run_dir)
        job.iteration()
        job.finish()
        second = read(job.run_dir)
        with pytest.raises(ZeroDivisionError), job:  # an error after the end changes nothing
            raise ZeroDivisionError
    assert (first['state'], second['state']) == ('done', 'done')
    assert (second['env_step'], second['train_iter']) == (job.env_step, job.train_iter) and first != second
    assert read(job.run_dir) == second


def test_run_that_cannot_begin_says_failed(cfg: Any, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        FailsAtStart(cfg)
    found = read(next(tmp_path.glob('*/*')))
    assert (found['state'], found['error']) == ('failed', 'ZeroDivisionError: at the start')


def fails_later(job: Any, rollout: Any) -> None:
    if job.train_iter:
        raise ValueError('mine')


# by name: (what happens within `with SerialJob(..)`, the state and the error afterwards); the run has 2 rounds
ENDS: dict[str, tuple[Callable[[SerialJob], Any], str, str]] = {
    'left after a round': (lambda job: job.iteration(), 'stopped', ''),
    'left after its length': (lambda job: (job.iteration(), job.iteration()), 'done', ''),
    'a signal': (lambda job: (setattr(job, 'stop_requested', lambda: True), job.finish(evaluate=False)), 'stopped', ''),
    'Ctrl-C': (lambda job: raising(KeyboardInterrupt()), 'stopped', ''),
    'an error': (lambda job: raising(ZeroDivisionError('by hand')), 'failed', 'ZeroDivisionError: by hand'),
    'an error after a round beyond a finish': (
        lambda job: (job.iteration(), job.finish(), job.iteration(), raising(ZeroDivisionError('late'))),
        'failed',
        'ZeroDivisionError: late',
    ),
    'an error in the round beyond a finish': (
        lambda job: (job.iteration(), job.finish(evaluate=False), job.iteration()),
        'failed',
        'mine',
    ),
}


def raising(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize('how', ENDS)
def test_state_of_a_run_at_its_end(how: str, cfg: Any) -> None:
    act, state, error = ENDS[how]
    callbacks = [SimpleNamespace(on_rollout=fails_later)] if 'in the round' in how else []
    with suppress(ZeroDivisionError, KeyboardInterrupt, CallbackError), SerialJob(cfg, callbacks=callbacks) as job:
        assert read(job.run_dir)['state'] == 'running'
        act(job)
    found = read(job.run_dir)
    assert found['state'] == state and found['train_iter'] == job.train_iter and found['env_step'] == job.env_step
    assert error in found.get('error', '') and bool(error) == ('error' in found)


def test_job_closed_by_hand_says_its_state_and_has_no_return(cfg: Any) -> None:
    job = SerialJob(cfg)
    job.iteration()
    job.close()
    job.close()
    assert read(job.run_dir)['state'] == 'stopped' and read(job.run_dir)['env_step'] == job.env_step > 0
    with closing(SerialJob(cfg)) as job:
        while not job.done:
            job.iteration()
        job.finish(evaluate=False)
    assert read(job.run_dir)['state'] == 'done' and read(job.run_dir)['last_return'] is None


@pytest.mark.slow
def test_run_that_is_done_keeps_its_end_where_the_same_command_finds_nothing_to_do(tmp_path: Path) -> None:
    config = job_config(tmp_path)
    folder = serial_pipeline(config, run_dir=tmp_path / 'a').run_dir
    files = [folder / name for name in ('result.json', 'config.yaml')]
    before = [file.read_text() for file in files]
    again = serial_pipeline(config, overrides=['checkpoint.keep_last=4'], run_dir=folder)
    assert again.env_step_per_s == 0 < read(folder)['env_step_per_s']
    assert [file.read_text() for file in files] == before
    longer = serial_pipeline(config, overrides=['max_env_step=512'], run_dir=folder)
    assert read(folder)['env_step'] == longer.env_step == 512


def test_times_of_processes_add_up_and_one_that_was_killed_is_counted(tmp_path: Path) -> None:
    times = {'seconds': {'env': 1.0, 'learn': 3.0}, 'timed_s': 5.0}
    file = ResultFile(tmp_path)
    assert read(tmp_path)['timed_s'] == 0.0
    file.end(times)
    file.end(times)  # the last of several calls counts
    assert (read(tmp_path)['seconds'], read(tmp_path)['timed_s']) == ({'env': 1.0, 'learn': 3.0}, 5.0)
    ResultFile(tmp_path)  # a process that is killed: it never calls `end`
    assert read(tmp_path)['state'] == 'running' and read(tmp_path)['seconds'] == {'env': 1.0, 'learn': 3.0}
    file = ResultFile(tmp_path)
    file.end({'seconds': {'env': 2.0, 'log': 0.5}, 'timed_s': 4.0}, is_done=True)
    found = read(tmp_path)
    assert (found['seconds'], found['timed_s'], found['n_killed']) == ({'env': 3.0, 'learn': 3.0, 'log': 0.5}, 9.0, 1)


class FailsAtStart(SerialJob):
    def reset_env(self) -> None:
        raise ZeroDivisionError('at the start')


@pytest.mark.parametrize(
    'argv, orig, words',
    [
        (['/a/bin/zoo', 'train', 'x'], ['python', '/a/bin/zoo', 'train', 'x'], ['zoo', 'train', 'x']),
        (['/a/zoo/__main__.py', 'runs'], ['python', '-m', 'zoo', 'runs'], ['zoo', 'runs']),
        (['my.py', '3'], ['python', '-O', 'my.py', '3'], ['python', '-O', 'my.py', '3']),
        (['my.py', '3'], ['python', '-c', 'spawn_main()', '--multiprocessing-fork'], ['python', 'my.py', '3']),
        (['/a/ipykernel_launcher.py', '-f', 'x'], ['python', '-m', 'ipykernel_launcher', '-f', 'x'], []),
        ([''], ['python'], []),
        ([], [], []),
    ],
)
def test_command_is_what_was_typed(
    argv: list[str], orig: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('sys.argv', argv)
    monkeypatch.setattr('sys.orig_argv', orig)
    assert command() == words


def test_file_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ResultFile(tmp_path / 'not_there').end({}, is_done=True)
    assert 'cannot be written' in caplog.text


def test_commit_is_that_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = tmp_path / '.git'
    (git / 'refs' / 'heads').mkdir(parents=True)
    (tmp_path / 'inside').mkdir()
    monkeypatch.chdir(tmp_path / 'inside')
    (git / 'HEAD').write_text('ref: refs/heads/main\n')
    first, second, third = '1234' * 10, '5678' * 10, '9abc' * 16
    (git / 'packed-refs').write_text(f'# pack-refs\n{first} refs/heads/main\n')
    assert commit() == first
    (git / 'refs' / 'heads' / 'main').write_text(f'{second}\n')
    assert commit() == second
    (git / 'HEAD').write_text(f'{third}\n')
    assert commit() == third
    os.chdir('/')
    assert commit() is None


@pytest.mark.parametrize(
    'files',
    [
        {'HEAD': b'\xff\xfe'},
        {'HEAD': b'ref: refs/heads/main\n', 'packed-refs': b'\xff\xfe\n'},
        {'HEAD': b'ref: ../secret\n'},
        {'HEAD': b'ref: refs/../../secret\n'},
        {'HEAD': b'1234\n'},
        {'HEAD': b'ref: refs/a\0b\n'},
        {'HEAD': b'a' * (1 << 25)},
        {'HEAD': b'the state of a run'},
    ],
    ids=['bytes', 'packed bytes', 'another file', 'another file in refs', 'short', 'nul', 'large', 'text'],
)
def test_checkout_of_any_content_gives_nothing_but_a_commit(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / '.git').mkdir()
    (tmp_path / 'secret').write_text(f'my password\n{"1234" * 10}\n')
    for name, content in files.items():
        (tmp_path / '.git' / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    assert commit() is None


def test_commit_below_a_checkout_of_somebody_else_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / '.git').mkdir(mode=0o600)
    monkeypatch.chdir(tmp_path)
    with without_override():
        assert commit() is None
