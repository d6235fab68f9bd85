"""Finds and opens the compiled library: `load()`. What it can do is in `calls`."""

from __future__ import annotations

import ctypes
import os
import struct
from ctypes import c_int64
from functools import cache
from pathlib import Path

from zoo.backend.native.calls import Library
from zoo.backend.native.structures import ABI, STRUCTS, Column, Level
from zoo.core.errors import UserError

SUFFIXES = ('.so', '.pyd', '.dylib', '.dll')


@cache
def load(folder: Path | None = None) -> tuple[Library | None, str]:
    """The library in a folder (default: this one), or None and the reason in a sentence.

    The environment variable ZOO_NATIVE_LEVEL (base, v3, v4) limits the level.
    Raises: UserError if that is none of the three.
    """
    folder = folder or Path(__file__).parent
    library, why = None, f'the native executor is not built: {folder} has no file _native*'
    for path in sorted(folder.glob('_native*')):
        if library is None and path.suffix in SUFFIXES:
            library, why = _open(path)
    if library is None:
        return None, f"{why}; install zoo again with a C compiler, or run 'python -m zoo.backend.native.build'"
    level = os.environ.get('ZOO_NATIVE_LEVEL')
    if level:
        if level.upper() not in Level.__members__:
            raise UserError(f'the environment variable ZOO_NATIVE_LEVEL is {level!r}; use base, v3 or v4')
        library.set_level(Level[level.upper()])
    return library, ''


def _open(path: Path) -> tuple[Library | None, str]:
    from zoo.backend.native.build import source_hash  # late: `python -m` must find that module not yet imported

    if not _is_whole(path):  # opened, it would end the process
        return None, f'the native executor is incomplete ({path.name})'
    try:
        library = Library(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        return None, f'the native executor cannot be opened ({path.name}: {error})'
    found, wanted = _abi(library.dll), (ABI, *map(ctypes.sizeof, STRUCTS), len(Column))
    if found != wanted:
        return None, f'the native executor is of another version of zoo ({path.name}: {found}, not {wanted})'
    if library.dll.zoo_source() != source_hash():
        return None, f'the native executor was compiled from other sources ({path.name})'
    return library, ''


def _is_whole(path: Path) -> bool:
    """Whether a 64-bit ELF file reaches to the end of its last table; other files are left to the loader."""
    head = path.read_bytes()[:64]
    if len(head) < 64 or head[:5] != b'\x7fELF\x02':
        return True
    (offset,), (size, n) = struct.unpack_from('<Q', head, 40), struct.unpack_from('<HH', head, 58)
    return path.stat().st_size >= offset + size * n


def _abi(dll: ctypes.CDLL) -> tuple[int, ...]:
    sizes = (c_int64 * 16)()
    return dll.zoo_abi(), *sizes[: dll.zoo_sizes(sizes)]
