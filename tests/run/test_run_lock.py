"""One process at a time writes to a run folder. As soon as it has ended, in any way, another one may."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.policy_envs import job_config, rows
from tests.run.processes import environment, start_zoo, wait_for
from zoo.core.errors import UserError
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import load_checkpoint
from zoo.run.config import resolve_config
from zoo.run.folder import NAME, RunFolderInUseError, RunLock
from zoo.run.job import SerialJob


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
            wait_for(marker.exists, stuck)
            stuck.kill()
            stuck.wait()
            assert serial_pipeline(resume=first.run_dir, max_env_step=320).env_step == 320
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(stuck.pid, signal.SIGKILL)
    assert rows(first.run_dir)[-1]['env_step'] == 320
