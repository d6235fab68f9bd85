"""Memory of consent: the envs that this user has trained on, and the runs that the user started.

An env that is unchanged since needs no consent again; a run that is resumed in its folder reaches the trackers and the cluster
that it had.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from zoo.config.source import digest_that_ran
from zoo.config.user_code import installed_files, is_in_file, split_name
from zoo.core.files import current_folder, is_private, keep_user_file, open_without_link, read_small, user_file

MODULE = re.compile(r'[^\W\d]\w*(\.[^\W\d]\w*)*')
ENVS = 'trained_on.json'
RUNS = 'started_runs.txt'  # a line for each run: `_line_of`
MOST_CODE = 1 << 28  # bytes of a file of code; modules of machine code have some 10 MB
MOST_BYTES = 1 << 20  # of the memory: about 16,000 runs; then the older half is forgotten
logger = logging.getLogger(__name__)


def remember_env(name: str) -> None:
    """Remembers an env that is in a file or an installed package, by what its code is; does nothing for any other."""
    # of the text that ran: the file may have been replaced since
    ran = None
    if is_in_file(name):
        ran = digest_that_ran(split_name(name)[0])
    entry = ran or _hash_of(name)
    if entry is None:
        kept = {}
    else:
        kept = _envs()
    if entry is not None and kept.get(name) != entry:
        keep_user_file('state', ENVS, json.dumps(kept | {name: entry}, indent=1).encode())


def _envs() -> dict[str, Any]:
    """The remembered hashes, see `_hash_of`, by the names of envs; empty if the memory file cannot be read.

    A file that another user owns or may write is not believed: it would give consent in this user's place.
    """
    with suppress(OSError, TypeError, ValueError, RecursionError):
        path = user_file('state', ENVS)
        found = dict(json.loads(read_small(path)))
        if all(is_private(each) for each in (path, path.parent)):
            return found
        logger.warning('%s may be written by another user, and is not read: it remembers consent', path)
    return {}


def is_known_env(name: object) -> bool:
    """Whether a name is of an env in a file of the current folder, or in an installed package, on which the user has trained,
    and which is unchanged since.

    The memory is read for such names alone: a run of another env opens no file outside of its folder.
    """
    if not isinstance(name, str):
        return False
    if is_in_file(name):
        may_be_known = Path(name).is_relative_to(current_folder())
    else:
        module = split_name(name)[0]
        may_be_known = MODULE.fullmatch(module) is not None and bool(installed_files(module))
    kept = None
    if may_be_known:
        kept = _envs().get(name)
    return kept is not None and kept == _hash_of(name)


def _hash_of(name: str) -> str | dict[str, str] | None:
    """The hash of the file in a name, or the hashes of the files of an installed module by path; None without such a file."""
    module = split_name(name)[0]
    with suppress(OSError, ValueError):
        if is_in_file(name):
            return _digest(Path(module))
        return {str(path): _digest(path) for path in installed_files(module)} or None
    return None


def _digest(path: Path) -> str:
    return hashlib.sha256(read_small(path, MOST_CODE)).hexdigest()


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
        keep_user_file('state', RUNS, ''.join(f'{each}\n' for each in lines[len(lines) // 2 :]).encode())
    with suppress(OSError):
        path = user_file('state', RUNS)
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
        path = user_file('state', RUNS)
        lines = read_small(path).decode().splitlines()
        if all(is_private(each) for each in (path, path.parent)):
            return lines
        logger.warning('%s may be written by another user, and is not read: it remembers consent', path)
    return []
