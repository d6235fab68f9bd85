"""Files that are written whole or not at all, and whether an open file is still where it was opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from zoo.core.errors import UserError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file that takes the place of `path` when the context ends without an error.

    At any moment, also of a crash or power cut, `path` holds either the old file or the new one, whole.
    Raises: OSError, e.g. on a full disk; the temporary file is removed then.
    """
    partial = path.with_name(f'{path.name}.{os.getpid()}.tmp')
    try:
        with open(partial, 'wb') as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def open_without_link(path: str, flags: int) -> int:
    """An `opener` for `open` that follows no symbolic link: a run folder of somebody else leads to no other file."""
    return os.open(path, flags | getattr(os, 'O_NOFOLLOW', 0), 0o666)


def current_folder() -> str:
    """The current folder. Raises: UserError if it was removed: relative paths lead nowhere, and torch's MKL aborts."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise UserError('the current folder does not exist any more; change to one that does') from error


def is_in_place(path: Path, opened: os.stat_result) -> bool:
    """Whether the file that was opened, and still is, is the one at `path`.

    It is not if the file or its folder was removed, moved or replaced. Args: opened: of os.fstat.
    """
    try:
        return os.path.samestat(os.stat(path), opened)
    except OSError:
        return False


def _sync_folder(folder: Path) -> None:
    """Makes a rename in the folder survive a power cut, where the file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
