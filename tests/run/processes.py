"""`zoo` in separate processes; limits on files and rights; file systems that are small or read-only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Done, run_python
from tests.policy_envs import job_config
from zoo.config.yaml_io import save_yaml
from zoo.run.config import resolve_config

ROOT = Path(__file__).parents[2]

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
PATIENCE = 300.0  # seconds, on a busy machine


def config_file(path: Path, root: Path, env_id: str = 'tests.envs:limit_env', **sections: Any) -> Path:
    """Writes the config of a quick run, whose run folder is made in `root`; returns the path of the config."""
    save_yaml(resolve_config(job_config(root, env_id, **sections)), path)
    return path


def run_zoo(*args: object) -> Done:
    """Runs `zoo ARGS` to its end."""
    return run_python('-m', 'zoo', *args, cwd=ROOT, **environment())


def start_zoo(*args: object, **env: str) -> subprocess.Popen[str]:
    """Starts `zoo ARGS` in its own process group and returns at once; `ended` waits for it."""
    return subprocess.Popen(
        [sys.executable, '-m', 'zoo', *map(str, args)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | env,
        start_new_session=True,
        preexec_fn=_as_from_a_shell,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Waits for (exit code, stderr); a process that does not end is killed, and the test fails."""
    try:
        _, stderr = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, stderr


def environment() -> dict[str, str]:
    return {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mounts a file system of this size in a new folder; the test is skipped if this user may not mount one."""
    folder.mkdir()
    try:
        mounted = subprocess.run(
            ['mount', '-t', 'tmpfs', '-o', f'size={size}', 'none', str(folder)], capture_output=True
        )
    except FileNotFoundError:
        pytest.skip('there is no mount command')
    if mounted.returncode:
        pytest.skip('this user may not mount a small file system')
    try:
        yield folder
    finally:
        subprocess.run(['umount', '-l', str(folder)], check=True)


def make_read_only(disk: Path) -> None:
    """Remounts the file system of `small_disk` as read-only."""
    subprocess.run(['mount', '-o', 'remount,ro', str(disk)], check=True)


def fill(disk: Path) -> None:
    """Fills a disk until no byte is free."""
    with open(disk / 'other', 'wb', buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1024)):
            pass


def _as_from_a_shell() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under `nohup` themselves


@contextlib.contextmanager
def without_override() -> Iterator[None]:
    """Makes root, too, obey the modes of folders within this context, for writing and for looking up. Linux only."""
    libc = ctypes.CDLL(None)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # capget(2): sets[0] is effective
    libc.capget(header, sets)
    before = sets[0]
    sets[0] &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = before
        libc.capset(header, sets)


@contextlib.contextmanager
def small_files(max_byte: int) -> Iterator[None]:
    """Limits the size of every file that this process writes within this context."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_byte, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
