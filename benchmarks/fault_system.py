"""Processes that one can find again, their memory, and a disk that is full for a while; of Linux."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from report import REPO, one_thread_env

MARKER = 'ZOO_FAULTS_RUN'
"""An environment variable: every process of a run has it, its orphans too."""


def environment(mark: str) -> dict[str, str]:
    """The environment of a run: one thread, this checkout, the marker."""
    env = one_thread_env()
    return {**env, MARKER: mark, 'PYTHONPATH': os.pathsep.join([str(REPO / 'benchmarks'), env['PYTHONPATH']])}


def marked(mark: str) -> list[int]:
    """Ids of the processes, of this user, that have the marker in their environment and are no zombies."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir('/proc'))) if _is_marked(pid, mark.encode())]


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f'/proc/{pid}/environ').read_bytes() and status(pid)['State'][0] not in 'ZX'
    except OSError:  # it has ended, or is another user's
        return False


def is_helper(pid: int) -> bool:
    """Whether a process is one that Python's multiprocessing keeps for itself."""
    try:
        words = Path(f'/proc/{pid}/cmdline').read_bytes()
    except OSError:
        return True
    return b'resource_tracker' in words or b'forkserver' in words


def status(pid: int) -> dict[str, str]:
    """The lines of /proc/<pid>/status."""
    lines = Path(f'/proc/{pid}/status').read_text().splitlines()
    return {key: value.strip() for key, value in (line.split(':', 1) for line in lines)}


def rss_mb(pid: int) -> float | None:
    """Resident memory of a process; None if it has ended."""
    try:
        return int(status(pid)['VmRSS'].split()[0]) * 1024 / 1e6
    except (OSError, KeyError):
        return None


class FullDisk:
    """A place for a run folder whose disk can be full for a while: a small file system if one may be mounted.

    Elsewhere no file of the process may grow beyond 64 kB, less than a checkpoint, which gives the same errors from the system's calls.
    """

    def __init__(self, folder: Path, n_mb: int = 64) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        mount = ['mount', '-t', 'tmpfs', '-o', f'size={n_mb}m', 'zoo_faults', str(folder)]
        try:
            self.is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        except OSError:
            self.is_mounted = False
        self.how = f'a tmpfs of {n_mb} MB, filled' if self.is_mounted else 'RLIMIT_FSIZE of 64 kB'

    @contextlib.contextmanager
    def full(self, pid: int) -> Iterator[None]:
        """Within this context nothing more can be written by the process."""
        fillers = [self.folder / f'filler_{i}' for i in range(3)]
        if self.is_mounted:
            for filler in fillers:  # again: what was being written is removed, which makes room
                _fill(filler)
                time.sleep(0.5)
        else:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
        try:
            yield
        finally:
            for filler in fillers:
                filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Gives the file system back; what was on it is gone."""
        if self.is_mounted:
            subprocess.run(['umount', '-l', str(self.folder)], capture_output=True, check=False)


def _fill(path: Path) -> None:
    with open(path, 'wb', buffering=0) as file:
        for n_byte in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(b'\0' * n_byte) == n_byte:
                    pass


def wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Whether the condition came true in time; it is asked very often, to meet short moments."""
    deadline = time.monotonic() + timeout
    while not (is_true := condition()) and time.monotonic() < deadline:
        time.sleep(0.0002)
    return is_true
