"""result.json: what it says at each end of a run."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from zoo.pipeline import serial_pipeline
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.run.observers.callbacks import CallbackError
from zoo.run.result import ResultFile, command, commit

SHORT = ['max_env_step=2_048', 'policy.eval.n_episode=1', 'logger.tensorboard=false', 'logger.console=off']


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / 'result.json').read_text())


def test_run_that_ends_says_done_with_its_numbers(tmp_path: Path) -> None:
    result = serial_pipeline('cartpole_ppo', overrides=SHORT, run_dir=tmp_path / 'a')
    found = read(tmp_path / 'a')
    assert found['state'] == 'done' and found['stop_reason'] == '' and 'error' not in found
    assert (found['env_step'], found['last_return']) == (result.env_step, result.last_return)
    assert set(found['versions']) >= {'zoo', 'python', 'torch'} and found['machine']['cpu']
    assert found['threads'].keys() == {'collect', 'learn', 'evaluate'} and min(found['threads'].values()) >= 1
    assert found['seconds'].keys() == {'env', 'act', 'sample', 'learn', 'evaluate', 'log'}
    assert (
        0 < found['seconds']['evaluate'] < sum(found['seconds'].values()) <= result.wall_s
    )  # the only evaluation is the last


def test_run_says_running_until_it_ends_and_stopped_if_left(tmp_path: Path) -> None:
    cfg = resolve_config('cartpole_ppo', [*SHORT, f'logger.root={tmp_path}'])
    with SerialJob(cfg) as job:
        assert read(job.run_dir)['state'] == 'running'
        job.iteration()
    assert read(job.run_dir)['state'] == 'stopped' and read(job.run_dir)['train_iter'] == job.train_iter


def test_run_that_reached_its_length_says_done_however_it_is_left(tmp_path: Path) -> None:
    cfg = resolve_config('cartpole_ppo', [*SHORT, f'logger.root={tmp_path}'])
    with SerialJob(cfg) as job:
        while not job.done:
            job.iteration()
    assert read(job.run_dir)['state'] == 'done' and read(job.run_dir)['train_iter'] == job.train_iter
    by_hand = SerialJob(cfg)
    while not by_hand.done:
        by_hand.iteration()
    by_hand.finish(evaluate=False)
    by_hand.close()
    found = read(by_hand.run_dir)
    assert found['state'] == 'done' and found['env_step'] == by_hand.env_step and found['last_return'] is None


def test_job_closed_by_hand_says_stopped_and_signalled_too(tmp_path: Path) -> None:
    cfg = resolve_config('cartpole_ppo', [*SHORT, f'logger.root={tmp_path}'])
    job = SerialJob(cfg)
    job.iteration()
    job.close()
    job.close()
    assert read(job.run_dir)['state'] == 'stopped' and read(job.run_dir)['env_step'] == job.env_step > 0
    with SerialJob(cfg) as job:
        job.stop_requested = lambda: True  # as the pipeline sets it
        while not job.done:
            job.iteration()
        job.finish(evaluate=False)
    assert read(job.run_dir)['state'] == 'stopped'


def test_last_finish_counts(tmp_path: Path) -> None:
    cfg = resolve_config('cartpole_ppo', [*SHORT, f'logger.root={tmp_path}'])
    with SerialJob(cfg) as job:
        job.iteration()
        job.finish()
        first = read(job.run_dir)
        job.iteration()
        job.finish()
        second = read(job.run_dir)
        with pytest.raises(ZeroDivisionError), job:  # of code after the end of the run, which it does not change
            raise ZeroDivisionError
    assert (first['state'], second['state']) == ('done', 'done')
    assert (second['env_step'], second['train_iter']) == (job.env_step, job.train_iter) and first != second
    assert read(job.run_dir) == second


def test_run_that_fails_after_a_finish_says_failed(tmp_path: Path) -> None:
    cfg = resolve_config('cartpole_ppo', [*SHORT, f'logger.root={tmp_path}'])
    with pytest.raises(ZeroDivisionError), SerialJob(cfg) as job:
        job.iteration()
        job.finish()
        job.iteration()
        raise ZeroDivisionError('by hand')
    assert read(job.run_dir)['state'] == 'failed' and read(job.run_dir)['env_step'] == job.env_step


def test_run_that_goes_on_after_a_finish_and_fails_at_once_says_failed(tmp_path: Path) -> None:
    class Fails:
        def on_rollout(self, job: Any, rollout: Any) -> None:
            if job.train_iter:
                raise ValueError('mine')

    cfg = resolve_config('cartpole_ppo', [*SHORT, f'logger.root={tmp_path}'])
    with pytest.raises(CallbackError, match='mine'), SerialJob(cfg, callbacks=[Fails()]) as job:
        job.iteration()
        job.finish(evaluate=False)
        job.iteration()
    assert read(job.run_dir)['state'] == 'failed' and 'mine' in read(job.run_dir)['error']


@pytest.mark.slow
def test_run_that_is_done_keeps_its_end_where_the_same_command_finds_nothing_to_do(tmp_path: Path) -> None:
    serial_pipeline('cartpole_ppo', overrides=SHORT, run_dir=tmp_path / 'a')
    files = [tmp_path / 'a' / name for name in ('result.json', 'config.yaml')]
    before = [file.read_text() for file in files]
    again = serial_pipeline('cartpole_ppo', overrides=[*SHORT, 'checkpoint.keep_last=4'], run_dir=tmp_path / 'a')
    assert again.env_step_per_s == 0 < read(tmp_path / 'a')['env_step_per_s']
    assert [file.read_text() for file in files] == before
    longer = serial_pipeline('cartpole_ppo', overrides=[*SHORT, 'max_env_step=4_096'], run_dir=tmp_path / 'a')
    assert read(tmp_path / 'a')['env_step'] == longer.env_step > 2_048


def test_times_of_processes_add_up_and_one_that_was_killed_is_counted(tmp_path: Path) -> None:
    times = {'seconds': {'env': 1.0, 'learn': 3.0}, 'timed_s': 5.0}
    file = ResultFile(tmp_path)
    assert read(tmp_path)['timed_s'] == 0.0
    file.end('stopped', times)
    file.end('stopped', times)  # of several calls the last one counts
    assert (read(tmp_path)['seconds'], read(tmp_path)['timed_s']) == ({'env': 1.0, 'learn': 3.0}, 5.0)
    ResultFile(tmp_path)  # of a process that was killed
    assert read(tmp_path)['state'] == 'running' and read(tmp_path)['seconds'] == {'env': 1.0, 'learn': 3.0}
    file = ResultFile(tmp_path)
    file.end('done', {'seconds': {'env': 2.0, 'log': 0.5}, 'timed_s': 4.0})
    found = read(tmp_path)
    assert (found['seconds'], found['timed_s'], found['n_killed']) == ({'env': 3.0, 'learn': 3.0, 'log': 0.5}, 9.0, 1)


def test_run_that_raises_says_failed_and_why(tmp_path: Path) -> None:
    cfg = resolve_config('cartpole_ppo', [*SHORT, f'logger.root={tmp_path}'])
    with pytest.raises(ZeroDivisionError), SerialJob(cfg) as job:
        raise ZeroDivisionError('by hand')
    found = read(job.run_dir)
    assert found['state'] == 'failed' and found['error'] == 'ZeroDivisionError: by hand'


def test_run_that_cannot_begin_says_failed_and_one_by_hand_stopped(tmp_path: Path) -> None:
    cfg = resolve_config('cartpole_ppo', [*SHORT, f'logger.root={tmp_path}'])
    with pytest.raises(ZeroDivisionError):
        FailsAtStart(cfg)
    folder = next(tmp_path.glob('*/*'))
    assert read(folder)['state'] == 'failed' and read(folder)['error'] == 'ZeroDivisionError: at the start'
    with pytest.raises(KeyboardInterrupt), SerialJob(cfg) as job:
        raise KeyboardInterrupt
    assert read(job.run_dir)['state'] == 'stopped' and 'error' not in read(job.run_dir)


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
    ResultFile(tmp_path / 'not_there').end('done', {})
    assert 'cannot be written' in caplog.text


def test_commit_is_that_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = tmp_path / '.git'
    (git / 'refs' / 'heads').mkdir(parents=True)
    (tmp_path / 'inside').mkdir()
    monkeypatch.chdir(tmp_path / 'inside')
    (git / 'HEAD').write_text('ref: refs/heads/main\n')
    (git / 'packed-refs').write_text('# pack-refs\n1234 refs/heads/main\n')
    assert commit() == '1234'
    (git / 'refs' / 'heads' / 'main').write_text('5678\n')
    assert commit() == '5678'
    (git / 'HEAD').write_text('9abc\n')
    assert commit() == '9abc'
    os.chdir('/')
    assert commit() is None
