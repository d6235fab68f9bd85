"""Files that are written whole or not at all, and whether an open file is still where it was opened."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

from zoo.core.errors import UserError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file that takes the place of `path` when the context ends without an error.

    At any moment, also of a crash or power cut, `path` holds either the old file or the new one, whole.
    Raises: OSError, e.g. on a full disk; the temporary file is removed then.
    """
    partial = path.with_name(f'{path.name}.{os.getpid()}.tmp')
    try:
        with open(partial, 'wb', opener=open_without_link) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def open_without_link(path: str | Path, flags: int) -> int:
    """An `opener` for `open` of files in a run folder, which may be of somebody else: it opens regular files alone.

    No symbolic link is followed, so that none leads to another file; a pipe does not make it wait, a device has no end.
    Raises: OSError.
    """
    handle = os.open(path, flags | getattr(os, 'O_NOFOLLOW', 0) | getattr(os, 'O_NONBLOCK', 0), 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, 'it is no regular file', str(path))
    return handle


def read_small(path: Path, most: int = 1 << 24) -> bytes:
    """A regular file of at most that many bytes, see `open_without_link`. Raises: OSError."""
    with open(path, 'rb', opener=open_without_link) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f'it has more than {most:,} bytes', str(path))
    return content


def user_file(kind: Literal['cache', 'state'], name: str) -> Path:
    """A file of zoo in the user's own folder of this kind, by XDG's rules. Raises: OSError if its path is not absolute."""
    usual = {'cache': '~/.cache', 'state': '~/.local/state'}[kind]
    path = Path(os.environ.get(f'XDG_{kind.upper()}_HOME') or os.path.expanduser(usual), 'zoo', name)
    if path.is_absolute():
        return path
    raise OSError(errno.EINVAL, "in the current folder, which may be a stranger's", str(path))


def keep_user_file(kind: Literal['cache', 'state'], name: str, data: bytes) -> None:
    """Writes a `user_file`, whole or not at all; it does nothing where that is not possible."""
    with suppress(OSError):
        (path := user_file(kind, name)).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with whole_file(path) as file:
            file.write(data)


def refuse_links(folder: Path) -> None:
    """Raises: UserError if something in a run folder is a link, a pipe or a device: what is written there leads outside."""
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
    """Whether an open file is still at `path`, neither removed, moved nor replaced. Args: opened: of os.fstat."""
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
