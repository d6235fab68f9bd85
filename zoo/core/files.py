"""Atomic writes, reads of regular files only, failures of the disk, and whether an open file is still at its path."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, Literal

from zoo.core.errors import UserError

_unsynced: ContextVar[dict[Path, None] | None] = ContextVar('unsynced', default=None)
"""Files that the current context of `synced_together` has written so far; None: each is on the disk when it is written."""


@contextmanager
def synced_together() -> Iterator[None]:
    """Files that `whole_file` writes in this context reach the disk together when it ends, also after an error.

    For work that is repeated as a whole if it was interrupted: to wait for the disk takes milliseconds each time. A process
    may be killed at any moment: each file is still the complete old or new one. Only a power cut in this context may leave
    files without their content.
    Raises: UserError if the disk refuses a file.
    """
    if _unsynced.get() is not None:  # the outer context does it
        yield
        return
    files: dict[Path, None] = {}
    token = _unsynced.set(files)
    try:
        yield
    finally:
        _unsynced.reset(token)
        for path in files:
            with refuse_failure(f'{path} cannot be written', 'make that possible'), suppress(FileNotFoundError):
                _sync(path)  # unless it was removed since
        for folder in dict.fromkeys(path.parent for path in files):
            _sync_folder(folder)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file that replaces `path` when the context ends without an error.

    At any moment, even in a crash or power cut, `path` is either the complete old file or the complete new one; in a context
    of `synced_together` a power cut is an exception.
    Raises: OSError, e.g. on a full disk; the temporary file is then removed.
    """
    unsynced = _unsynced.get()
    partial = path.with_name(f'{path.name}.{os.getpid()}.tmp')
    try:
        with open(partial, 'wb', opener=open_without_link) as file:
            yield file
            file.flush()
            if unsynced is None:
                os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    if unsynced is None:
        _sync_folder(path.parent)
    else:
        unsynced[path.absolute()] = None


def open_without_link(path: str | Path, flags: int) -> int:
    """An `opener` for `open` that opens regular files only: a run folder may come from somebody else.

    A symbolic link could lead to another file, opening a pipe could wait for ever, a device may have no end.
    Raises: OSError.
    """
    handle = os.open(path, flags | getattr(os, 'O_NOFOLLOW', 0) | getattr(os, 'O_NONBLOCK', 0), 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, 'it is no regular file', str(path))
    return handle


def read_small(path: Path, most: int = 1 << 24) -> bytes:
    """Reads a regular file of at most `most` bytes, see `open_without_link`. Raises: OSError."""
    with open(path, 'rb', opener=open_without_link) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f'it has more than {most:,} bytes', str(path))
    return content


def is_private(path: Path) -> bool:
    """Whether a file or folder is of this user and not writable for everybody. Raises: OSError."""
    if not hasattr(os, 'getuid'):  # Windows
        return True
    found = os.stat(path, follow_symlinks=False)
    return found.st_uid == os.getuid() and not found.st_mode & stat.S_IWOTH


def user_file(kind: Literal['cache', 'state'], name: str) -> Path:
    """The path of a file in the user's folder for zoo's cache or state, by XDG's rules. Raises: OSError if it is relative."""
    usual = {'cache': '~/.cache', 'state': '~/.local/state'}[kind]
    path = Path(os.environ.get(f'XDG_{kind.upper()}_HOME') or os.path.expanduser(usual), 'zoo', name)
    if path.is_absolute():
        return path
    raise OSError(errno.EINVAL, "in the current folder, which may be a stranger's", str(path))


def keep_user_file(kind: Literal['cache', 'state'], name: str, data: bytes) -> None:
    """Writes a `user_file` atomically; does nothing if that is not possible."""
    with suppress(OSError):
        (path := user_file(kind, name)).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with whole_file(path) as file:
            file.write(data)


@contextmanager
def refuse_failure(what: str, remedy: str) -> Iterator[None]:
    """Turns an OSError of this context into a UserError: '<what> (<the system's reason>); <remedy>'."""
    try:
        yield
    except OSError as error:
        raise UserError(f'{what} ({error.strerror or error}); {remedy}') from error


def refuse_links(folder: Path) -> None:
    """Raises: UserError if a run folder contains a link, a pipe or a device: writing to it would write outside the folder."""
    with os.scandir(folder) as entries:
        names = [x.name for x in entries if not (x.is_file(follow_symlinks=False) or x.is_dir(follow_symlinks=False))]
    if names:
        raise UserError(
            f'the run folder {folder} has {min(names)!r}, which is a link, a pipe or a device: a run writes only to files of '
            'its own folder; remove it, or put what it leads to in its place'
        )


def current_folder() -> str:
    """The current folder. Raises: UserError if it was removed: relative paths lead nowhere, and torch's MKL aborts."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise UserError('the current folder does not exist any more; change to one that does') from error


def is_in_place(path: Path, opened: os.stat_result) -> bool:
    """Whether an open file is still at `path`, neither removed, moved nor replaced. Args: opened: its os.fstat."""
    try:
        return os.path.samestat(os.stat(path), opened)
    except OSError:
        return False


def _sync(path: Path) -> None:
    """Waits until the content of a file is on the disk. Raises: OSError."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    """Makes a rename in the folder survive a power cut, where the file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
