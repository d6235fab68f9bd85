"""Guards of a run folder: one process at a time writes to it, and only a run that it continues; no link is followed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.envs import LimitEnv
from tests.policy_envs import job_config, rows
from tests.processes import wait_until
from tests.run.processes import config_file, environment, run_zoo, start_zoo
from zoo.config.yaml_io import save_yaml
from zoo.core.errors import UserError
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import CheckpointError, load_checkpoint
from zoo.run.config import resolve_config
from zoo.run.folder import NAME, RunFolderInUseError, RunLock, refuse_other_configs
from zoo.run.job import SerialJob
from zoo.tools.cli.command import main


def test_lock_that_is_held_names_its_holder(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    with pytest.raises(
        RunFolderInUseError, match=rf'{tmp_path} is in use by process {os.getpid()} on host .* since 20'
    ):
        RunLock(tmp_path)
    assert json.loads((tmp_path / NAME).read_text())['pid'] == os.getpid()  # the refused lock left the file as it was
    lock.close()
    lock.close()
    assert not (tmp_path / NAME).exists()


class ClosesFiles(LimitEnv):
    """LimitEnv that closes all files of the process at its third step, as a program that becomes a daemon does."""

    n_step = 0

    def step(self, action: Any) -> Any:
        ClosesFiles.n_step += 1
        if ClosesFiles.n_step == 3:
            os.closerange(3, 256)
        return super().step(action)


def test_run_of_an_env_that_closes_all_files_ends_as_any_other(tmp_path: Path) -> None:
    path = config_file(tmp_path / 'job.yaml', tmp_path, 'tests.run.folder.test_guards:ClosesFiles')
    done = run_zoo('train', path)
    assert done.returncode == 0 and 'Traceback' not in done.stderr, done.stderr
    RunLock(tmp_path).close()


HOLDER = """
import os, sys, time
from pathlib import Path
from zoo.run.folder import RunLock
lock = RunLock(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    lock.close()
    time.sleep(1000)
print(child, flush=True)
time.sleep(1000)
"""


@pytest.mark.long
def test_lock_of_a_killed_process_is_free_though_its_children_live(tmp_path: Path) -> None:
    command = [sys.executable, '-c', HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(RunFolderInUseError, match=f'process {holder.pid} '):
                RunLock(tmp_path)
            holder.kill()
            holder.wait()
            assert (tmp_path / NAME).exists()
            RunLock(tmp_path).close()
            os.kill(child, 0)  # raises if the child is not alive
        finally:
            holder.kill()
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize('text', ['', '{"pid": 1', '[]', '"\\u001b[2J"', '1' * 2000])
def test_lock_file_of_any_content_is_told_as_another_process(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with open(tmp_path / NAME) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunFolderInUseError, match='in use by another process;'):
            RunLock(tmp_path)
    RunLock(tmp_path).close()


def test_lock_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / 'precious').write_text('text')
    (tmp_path / NAME).symlink_to(tmp_path / 'precious')
    with pytest.raises(UserError, match=f"'{NAME}', which is a link"):
        RunLock(tmp_path)
    assert (tmp_path / 'precious').read_text() == 'text'


def test_lock_knows_that_its_file_was_replaced(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    assert lock.is_in_place()
    (tmp_path / NAME).rename(tmp_path / 'other')
    assert not lock.is_in_place()
    new = RunLock(tmp_path)
    assert new.is_in_place() and not lock.is_in_place()
    lock.close()
    assert new.is_in_place()  # the old lock did not remove the file of the new one
    new.close()


def test_system_without_locks_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr('zoo.run.folder.fcntl', None)  # as on Windows
    for lock in [RunLock(tmp_path), RunLock(tmp_path)]:
        lock.close()
    assert (
        caplog.messages
        == [
            f'the run folder {tmp_path} cannot be locked (this system has no flock); let no other process resume it now'
        ]
        * 2
    )


def test_two_jobs_of_one_process_do_not_share_a_folder(tmp_path: Path, finished: Path) -> None:
    before = rows(finished)
    cfg = resolve_config(job_config(tmp_path, max_env_step=512))
    with SerialJob(cfg, checkpoint=load_checkpoint(finished)) as job:
        with pytest.raises(RunFolderInUseError):
            SerialJob(cfg, checkpoint=load_checkpoint(finished))
        assert job.run_dir == finished
    assert rows(finished) == before
    assert not (finished / NAME).exists()


@pytest.mark.long
def test_run_killed_while_its_env_workers_hang_can_be_resumed(tmp_path: Path) -> None:
    marker = tmp_path / 'marker'
    first = serial_pipeline(
        job_config(tmp_path, 'tests.policy_envs:stuck_env', env=dict(kwargs={'marker': str(marker)}))
    )
    resume = ['train', '--resume', first.run_dir, '--import', 'tests.policy_envs', 'max_env_step=320']
    with start_zoo(*resume, 'env.kwargs.at=5', 'env.vectorization=async') as stuck:
        try:
            wait_until(marker.exists, stuck)
            stuck.kill()
            stuck.wait()
            assert serial_pipeline(resume=first.run_dir, max_env_step=320).env_step == 320
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(stuck.pid, signal.SIGKILL)
    assert rows(first.run_dir)[-1]['env_step'] == 320


# --- a folder accepts only a config that continues its run ---


@pytest.mark.parametrize(
    'before, now, said',
    [
        (['seed=0'], ['seed=0'], ''),
        (['max_env_step=4_096'], ['max_env_step=8_192', 'policy.eval.stop_value=null', 'logger.freq=5'], ''),
        (['max_env_step=8_192'], ['max_env_step=4_096'], 'max_env_step=8192, not 4096'),
        (['exp_name=a'], ['exp_name=b'], 'exp_name=a, not b'),
        ([], ['init_from=runs/x'], 'init_from=null, not runs/x'),
        (['init_from=runs/x'], [], ''),
        (['init_from=runs/x'], ['init_from=./runs/x'], ''),
        ([], ['env.on_error=restart', 'env.step_timeout=9', 'env.vectorization=async', 'policy.learn.compile=on'], ''),
        (
            ['max_env_step=2_048', 'policy.learn.learning_rate={start: 1e-3, end: 0, over: 2_048}'],
            ['max_env_step=4_096', 'policy.learn.learning_rate={start: 1e-3, end: 0, over: 2_048}'],
            '',
        ),
        (
            ['policy.learn.learning_rate={start: 1e-3, end: 0}'],
            ['policy.learn.learning_rate=3e-4'],
            'has policy.learn.learning_rate={start: 0.001, end: 0.0, over: 100000}, not 0.0003; name',
        ),
        (['env.kwargs.sutton_barto_reward=true'], [], 'env.kwargs.sutton_barto_reward=true, not nothing'),
        (
            [],
            ['policy.model.hidden_sizes=[8]', 'policy.learn.batch_size=32'],
            'policy.model.hidden_sizes=[64, 64], not [8]',
        ),
    ],
)
def test_folder_of_a_run_takes_only_a_config_that_continues_it(
    before: list[str], now: list[str], said: str, tmp_path: Path
) -> None:
    begun(tmp_path / 'run', *before)
    if not said:
        refuse_other_configs('cartpole_ppo', [now], [tmp_path / 'run'])
        return
    with pytest.raises(UserError, match=re.escape(said)):
        refuse_other_configs('cartpole_ppo', [now], [tmp_path / 'run'])


def test_project_may_be_moved_but_the_code_in_it_is_of_the_same_file(tmp_path: Path) -> None:
    file = begun(tmp_path / 'run')
    file.write_text(file.read_text().replace('CartPole-v1', '/elsewhere/my_env.py:MyEnv'))
    (tmp_path / 'my_env.py').write_text('class MyEnv: ...\nclass Other: ...\n')
    refuse_other_configs('cartpole_ppo', [[f'env.id={tmp_path}/my_env.py:MyEnv']], [tmp_path / 'run'])
    with pytest.raises(UserError, match='my_env.py:MyEnv, not .*my_env.py:Other'):
        refuse_other_configs('cartpole_ppo', [[f'env.id={tmp_path}/my_env.py:Other']], [tmp_path / 'run'])


def test_key_that_the_run_did_not_know_counts_only_if_it_is_given(tmp_path: Path) -> None:
    """A run that was trained by a version of zoo without the key has no value for it."""
    file = begun(tmp_path / 'run')
    file.write_text(''.join(line for line in file.read_text().splitlines(True) if 'dual_clip' not in line))
    refuse_other_configs('cartpole_ppo', [[]], [tmp_path / 'run'])
    with pytest.raises(UserError, match='dual_clip=nothing, not 3'):
        refuse_other_configs('cartpole_ppo', [['policy.learn.dual_clip=3']], [tmp_path / 'run'])


def files(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob('*') if file.is_file()}


def begun(folder: Path, *overrides: str) -> Path:
    """Makes a folder like that of a run: a config and an empty checkpoint, whose name is enough here; returns the config."""
    (folder / 'checkpoints').mkdir(parents=True)
    save_yaml(resolve_config('cartpole_ppo', overrides), folder / 'config.yaml')
    (folder / 'checkpoints' / 'step_2048.safetensors').touch()
    return folder / 'config.yaml'


@pytest.mark.parametrize(
    ('sections', 'options', 'said'),
    [
        (dict(policy=dict(learn=dict(learning_rate=0.5))), {}, 'policy.learn.learning_rate=0.001, not 0.5'),
        ({}, dict(seed=3), 'seed=0, not 3'),
        ({}, dict(max_env_step=128), 'max_env_step=256, not 128'),
        ({}, dict(overrides=['policy.learn.learning_rate=0.5']), 'policy.learn.learning_rate=0.001, not 0.5'),
        (dict(env=dict(id='CartPole-v1')), {}, 'env.id=tests.envs:limit_env, not CartPole-v1'),
        ({}, dict(env='CartPole-v1'), 'env.id=tests.envs:limit_env, not CartPole-v1'),
    ],
)
def test_python_is_refused_a_folder_of_other_settings_as_the_command_is(
    sections: dict[str, Any], options: dict[str, Any], said: str, tmp_path: Path, finished: Path
) -> None:
    before = files(finished)
    with pytest.raises(UserError) as refused:
        serial_pipeline(job_config(tmp_path, **sections), run_dir=finished, **options)
    wanted = f'the run in {finished} has {said}; name another --run-dir, or give the values that it has'
    way = f"(zoo train --resume {finished} KEY=VALUE continues it with other values, in Python resume='{finished}')"
    assert wanted in str(refused.value) and way in str(refused.value)
    assert files(finished) == before


def test_resume_from_python_may_change_settings_in_the_same_folder(tmp_path: Path, finished: Path) -> None:
    other = job_config(tmp_path, max_env_step=320, policy=dict(learn=dict(learning_rate=0.5)))
    by_resume = serial_pipeline(other, resume=finished)
    assert (by_resume.run_dir, by_resume.env_step) == (finished, 320)
    again = serial_pipeline(run_dir=finished, overrides=['policy.learn.learning_rate=0.1', 'max_env_step=384'])
    assert (again.run_dir, again.env_step) == (finished, 384)  # without a config, only the overrides change


# --- folders from somebody else ---


def stamps(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.rglob('*') if file.is_file()}


@pytest.mark.parametrize('name', ['checkpoints', 'tb', 'videos', 'wandb', 'trace.json', 'profile.txt', 'metrics.jsonl'])
def test_run_folder_with_a_link_is_not_continued_and_nothing_is_changed_elsewhere(
    tmp_path: Path, finished: Path, name: str
) -> None:
    run, elsewhere = finished, tmp_path / 'elsewhere' / name
    elsewhere.parent.mkdir()
    if (run / name).exists():
        (run / name).rename(elsewhere)
    else:
        elsewhere.mkdir()
    if elsewhere.is_dir():
        for victim in ('step_000000001.safetensors', 'other.tmp'):
            (elsewhere / victim).write_text('precious')
    (run / name).symlink_to(elsewhere)
    before = stamps(elsewhere.parent)
    for place in ({'resume': run}, {'run_dir': run}):
        with pytest.raises(UserError, match=f"the run folder .* has '{name}', which is a link, a pipe or a device"):
            serial_pipeline(**place, max_env_step=320)
    assert stamps(elsewhere.parent) == before


@pytest.mark.parametrize('name', ['result.json', 'profile.txt', 'run.lock'])
def test_run_folder_with_a_pipe_is_not_continued(finished: Path, name: str) -> None:
    (finished / name).unlink(missing_ok=True)
    os.mkfifo(finished / name)
    with pytest.raises(UserError, match=f"has '{name}', which is a link, a pipe or a device"):
        serial_pipeline(resume=finished, max_env_step=320)


KINDS = ['pipe', 'zeros', 'a long line']


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('first', range(3))
def test_commands_that_read_a_run_end_whatever_its_files_are(
    tmp_path: Path, finished: Path, first: int, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip('matplotlib')  # zoo report
    for i, name in enumerate(['metrics.jsonl', 'result.json', 'run.lock']):  # each kind in one of 3 cases
        (finished / name).unlink(missing_ok=True)
        kind = KINDS[(first + i) % 3]
        if kind == 'pipe':
            os.mkfifo(finished / name)
        elif kind == 'zeros':
            (finished / name).symlink_to('/dev/zero')
        else:
            with open(finished / name, 'wb') as file:
                file.truncate(1 << 36)  # 64 GB of zeros, which take no room
    assert main(['runs', str(tmp_path), '--json']) == 0
    assert main(['report', str(finished), '-o', str(tmp_path / 'report.html')]) == 0
    assert finished.name in capsys.readouterr().out


@pytest.mark.parametrize('where', ['checkpoints/step_000000001.safetensors', 'checkpoints/best.safetensors'])
def test_checkpoint_of_a_run_that_is_a_link_is_not_read(tmp_path: Path, finished: Path, where: str) -> None:
    newest = max((finished / 'checkpoints').glob('step_*'))
    kept = newest.rename(tmp_path / 'kept.safetensors')
    (finished / where).unlink(missing_ok=True)
    (finished / where).symlink_to(kept)
    assert load_checkpoint(kept).meta['env_step'] > 0  # the file itself is a checkpoint
    with pytest.raises(CheckpointError, match='is a link; pass a run folder or a .safetensors file of it'):
        load_checkpoint(finished / where)


@pytest.mark.parametrize('line', ['[' * 100_000, '{"env_step": 1' + '0' * 400 + '}', '{"env_step": null}', '[1]'])
def test_resume_ends_the_log_at_a_line_that_is_none_of_it(finished: Path, line: str) -> None:
    log = finished / 'metrics.jsonl'
    whole = log.read_text()
    log.write_text(f'{whole}{line}\n{whole}')
    serial_pipeline(resume=finished, max_env_step=320, overrides=['logger.sinks=[csv]'])
    after = log.read_text()
    assert after.startswith(whole) and line not in after
    assert (finished / 'progress.csv').read_text().count('\n') == after.count('\n') + 1
