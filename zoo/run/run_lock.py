"""A lock on the folder of a run, which the system releases when the process that holds it ends in any way."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from zoo.config.messages import printable
from zoo.core.errors import UserError
from zoo.core.files import is_in_place

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAME = 'run.lock'
TRIES = 5

logger = logging.getLogger(__name__)


class RunFolderInUseError(UserError):
    """Another process, or another job of this one, writes to the run folder."""


class RunLock:
    """The lock on a run folder, held from its making to `close`; the file `run.lock` says by which process.

    Where files cannot be locked (Windows, some network file systems) a warning says so, and there is no protection.
    Args: folder: it exists.
    Raises: RunFolderInUseError, which names the holder; OSError if the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._handle = _open_locked(self._path)
        self._stat = os.fstat(self._handle)
        _held.add(self._handle)

    def is_in_place(self) -> bool:
        """Whether it still guards the folder: neither that nor the file was removed, moved or replaced."""
        return self._handle in _held and is_in_place(self._path, self._stat)

    def close(self) -> None:
        """Releases the lock; calling it again, or in a forked process, does nothing."""
        if self._handle not in _held:
            return
        if self.is_in_place():
            with suppress(OSError):
                self._path.unlink()  # still locked: nobody else can have taken it
        _held.discard(self._handle)
        os.close(self._handle)


_held: set[int] = set()
"""Descriptors of the locks that this process holds."""


def _forget_in_child() -> None:
    """A lock belongs to all processes that share its descriptor: a forked env worker would hold it after a crash."""
    while _held:
        os.close(_held.pop())


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_forget_in_child)


def is_locked(folder: Path) -> bool:
    """Whether a process writes to a run folder now, as far as the system has locks; it is not disturbed."""
    if fcntl is None:
        return (folder / NAME).exists()
    try:
        handle = os.open(folder / NAME, os.O_RDONLY | getattr(os, 'O_NOFOLLOW', 0))
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _open_locked(path: Path) -> int:
    for _ in range(10):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, 'O_NOFOLLOW', 0), 0o666)
        try:
            _lock(handle, path)
            if is_in_place(path, os.fstat(handle)):  # else its holder removed it after it was opened here
                _write_holder(handle, path)
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    raise OSError(errno.EAGAIN, f'its file {NAME} is removed as soon as it is made')


def _lock(handle: int, path: Path) -> None:
    if fcntl is None:
        _warn_unlocked(path, 'this system has no flock')
        return
    try:
        _take(handle)
    except BlockingIOError:
        raise RunFolderInUseError(
            f'the run folder {path.parent} is in use by {_holder(handle)}; wait until that has ended or stop it, '
            'or set exp_name to continue in a folder of that name'
        ) from None
    except OSError as error:
        _warn_unlocked(path, error.strerror or str(error))


def _take(handle: int) -> None:
    """Takes the lock. `is_locked` holds it for a moment, so it is tried several times. Raises: OSError."""
    for _ in range(TRIES - 1):
        with suppress(BlockingIOError):
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.02)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _warn_unlocked(path: Path, reason: str) -> None:
    logger.warning('the run folder %s cannot be locked (%s); let no other process resume it now', path.parent, reason)


def _write_holder(handle: int, path: Path) -> None:
    holder = {'pid': os.getpid(), 'host': socket.gethostname(), 'start': f'{datetime.now():%Y-%m-%d %H:%M:%S}'}
    try:
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(holder).encode() + b'\n')
    except OSError:  # the disk is full
        path.unlink()
        raise


def _holder(handle: int) -> str:
    """Who wrote the file, in words; it may be of any content, and is empty for a moment."""
    try:
        holder = json.loads(os.pread(handle, 1000, 0))
        pid, host, start = (printable(str(holder[key])[:100]) for key in ('pid', 'host', 'start'))
    except (ValueError, LookupError, TypeError):
        return 'another process'
    return f'process {pid} on host {host} since {start}'
