"""Makes glibc's malloc keep the memory that torch frees, so that the next update need not ask the system for it."""

from __future__ import annotations

import ctypes
import os
import sys

MAPPED_FROM = 128 << 20  # bytes; a larger block is returned to the system as soon as it is freed
_MAPPED_FROM_OLD = 32 << 20  # the largest value that an older glibc accepts for that: half of an arena's heap
KEPT = 512 << 20  # bytes, at most, that are kept at the end of the heap
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_SETTINGS = ('MALLOC_TRIM_THRESHOLD_', 'MALLOC_MMAP_THRESHOLD_', 'GLIBC_TUNABLES')


def keep_freed_memory() -> bool:
    """Lets glibc's malloc keep up to KEPT bytes, for the whole process and permanently; returns whether it was set.

    By default malloc returns the end of the heap to the system from some tens of MB on, and the system clears the
    pages again at every update: a tenth of the time of the Nature network (16 minibatches of 256 images on 2 threads:
    .90 s, and .81 with the memory kept). Nothing is changed where the user has set one of _SETTINGS, or where malloc
    is not glibc's.
    """
    if sys.platform != 'linux' or any(name in os.environ for name in _SETTINGS):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, 'gnu_get_libc_version'):
        return False
    is_set = any(libc.mallopt(_M_MMAP_THRESHOLD, size) for size in (MAPPED_FROM, _MAPPED_FROM_OLD))
    return is_set and bool(libc.mallopt(_M_TRIM_THRESHOLD, KEPT))
