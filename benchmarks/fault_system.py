"""Linux tools for fault tests: processes found by a marker, their memory, and a disk that is full for a while."""

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
"""Environment variable that every process of a run has, orphans included."""


def environment(mark: str) -> dict[str, str]:
    """Environment variables of a run: one thread, zoo and benchmarks of this checkout, the marker."""
    env = one_thread_env()
    return {**env, MARKER: mark, 'PYTHONPATH': os.pathsep.join([str(REPO / 'benchmarks'), env['PYTHONPATH']])}


def marked(mark: str) -> list[int]:
    """Ids of this user's processes that have the marker in their environment, without zombies."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir('/proc'))) if _is_marked(pid, mark.encode())]


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f'/proc/{pid}/environ').read_bytes() and status(pid)['State'][0] not in 'ZX'
    except OSError:  # it has ended, or is another user's
        return False


def is_helper(pid: int) -> bool:
    """Whether a process is a helper of Python's multiprocessing (resource tracker, fork server), or has ended."""
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
    """Resident memory of a process in MB; None if it has ended."""
    try:
        return int(status(pid)['VmRSS'].split()[0]) * 1024 / 1e6
    except (OSError, KeyError):
        return None


class FullDisk:
    """A folder for runs whose disk can be made full for a while: a small tmpfs, if this user may mount one.

    Otherwise no file of the process may grow beyond 64 kB, less than a checkpoint: system calls then fail in the same way.
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
        """Context in which the process `pid` cannot write any more."""
        fillers = [self.folder / f'filler_{i}' for i in range(3)]
        if self.is_mounted:
            for filler in fillers:  # several times: removed unfinished files free space
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
        """Unmounts the file system; its files are lost."""
        if self.is_mounted:
            subprocess.run(['umount', '-l', str(self.folder)], capture_output=True, check=False)


def _fill(path: Path) -> None:
    with open(path, 'wb', buffering=0) as file:
        for n_byte in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(b'\0' * n_byte) == n_byte:
                    pass


def wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Whether the condition became true in time; it is checked every 0.2 ms, to catch short moments."""
    deadline = time.monotonic() + timeout
    while not (is_true := condition()) and time.monotonic() < deadline:
        time.sleep(0.0002)
    return is_true
