"""Memory of the runs that this user started: resumed in their folder, they reach the trackers and cluster that they had."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from zoo.core.files import is_private, keep_user_file, open_without_link, read_small, user_file

MEMORY = 'started_runs.txt'  # a line for each run: `_line_of`
MOST_BYTES = 1 << 20  # of the memory: about 16,000 runs; then the older half is forgotten
logger = logging.getLogger(__name__)


def remember_run(folder: Path, sections: Collection[Any]) -> None:
    """Remembers a run that the user started. Does nothing if that is not possible.

    Args: sections: values of the config that say what the run reaches; another process may be remembering at the same time.
    """
    line = _line_of(folder, sections)
    lines = _lines()
    if line in lines:
        return
    size = len(lines) * (len(line) + 1)
    if size > MOST_BYTES:
        keep_user_file('state', MEMORY, ''.join(f'{each}\n' for each in lines[len(lines) // 2 :]).encode())
    with suppress(OSError):
        path = user_file('state', MEMORY)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = open_without_link(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with open(handle, 'wb') as file:
            file.write(f'{line}\n'.encode())  # one write: lines of two processes do not mix


def is_remembered(folder: Path, sections: Collection[Any]) -> bool:
    """Whether the user started the run of this folder, which is still the user's own, and it reached the same."""
    with suppress(OSError):
        return _line_of(folder, sections) in _lines() and is_private(Path(os.path.realpath(folder)))
    return False


def _line_of(folder: Path, sections: Collection[Any]) -> str:
    """The hash of the path of a run folder and of what its run reaches."""
    text = json.dumps([os.path.realpath(folder), list(sections)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _lines() -> list[str]:
    """The lines of the memory; none if it cannot be read.

    A file that another user owns or may write is not believed: it would give consent in this user's place.
    """
    with suppress(OSError, ValueError):
        path = user_file('state', MEMORY)
        lines = read_small(path).decode().splitlines()
        if all(is_private(each) for each in (path, path.parent)):
            return lines
        logger.warning('%s may be written by another user, and is not read: it remembers consent', path)
    return []
