"""Helpers for tests that start processes: whether a process is alive, its descendants, and waiting for a condition."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 120.0  # seconds, on a busy machine
GONE_S = 10.0  # seconds within which processes must end


def stat_of(pid: int) -> list[str]:
    """State, parent, process group and more of a process; [] if there is none."""
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Whether the process is alive; a zombie, whose parent has not read its exit code yet, is not."""
    return stat_of(pid)[:1] not in ([], ['Z'], ['X'])


def left(pids: Iterable[int], seconds: float = GONE_S) -> list[int]:
    """The processes that are still alive after some seconds."""
    deadline = time.monotonic() + seconds
    alive = list(filter(is_alive, pids))
    while alive and time.monotonic() < deadline:
        time.sleep(0.02)
        alive = list(filter(is_alive, alive))
    return alive


def descendants(pid: int) -> list[int]:
    """The child processes of a process, their children and so on."""
    parents = {each: int(stat[1]) for each, stat in _all() if stat}
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def group_of(pid: int) -> list[int]:
    """The processes of a process group."""
    return [each for each, stat in _all() if stat and int(stat[2]) == pid]


def words_of(pid: int) -> list[str]:
    """The command line of a process; [] if there is none."""
    try:
        return Path(f'/proc/{pid}/cmdline').read_text(errors='replace').split('\0')
    except OSError:
        return []


def wait_until(
    condition: Callable[[], Any], process: subprocess.Popen[Any] | None = None, said: Callable[[], str] | None = None
) -> Any:
    """Waits until the condition holds; returns its value. Args: process: must not end before; said: its output, for the error."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        late, ended = time.monotonic() > deadline, process is not None and process.poll() is not None
        if late or ended:
            words = said() if said else process.communicate()[1] if process and ended and process.stderr else ''
            raise AssertionError(f'{"waited too long" if late else "the process ended"}: {words}')
        time.sleep(0.01)
    return found


def once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills once per test session: pytest-xdist may run a file's tests in several processes."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base
    folder, done = base / name, base / f'{name}.done'
    with open(base / f'{name}.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def _all() -> list[tuple[int, list[str]]]:
    pids = [int(path.name) for path in Path('/proc').glob('[0-9]*')]
    return [(pid, stat_of(pid)) for pid in pids]
