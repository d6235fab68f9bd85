"""Freed memory is used again without asking the system: the pages that the system had to give are counted."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from tests.policy_envs import job_config
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.run.resources import KEPT, MAPPED_FROM, keep_freed_memory

# blocks of 40 MB, like those that an update makes and frees; by default glibc keeps no freed block of 32 MB or more
CODE = """
import ctypes, resource, sys, torch
from zoo.run.resources import MAPPED_FROM, keep_freed_memory
told = keep_freed_memory() if sys.argv[1] == 'keep' else None
def pages(n, n_before):  # that the system gave for 2 blocks of n numbers of 4 bytes
    for i in range(n_before + 2):
        if i == n_before:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = torch.ones(n)
        del block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(told, pages(10 << 20, 10), pages((MAPPED_FROM >> 2) + 1024, 1), ctypes.CDLL(None).mallopt(-3, MAPPED_FROM))
"""
pytestmark = [
    pytest.mark.slow,  # most tests start processes
    pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='malloc is not that of glibc'),
]


def faults(mode: str) -> tuple[str, int, int, bool]:
    """Returns (result of keep_freed_memory, pages for blocks of an update, pages for larger ones, whether it could be set)."""
    bare = {name: x for name, x in os.environ.items() if not name.startswith(('MALLOC_', 'GLIBC_'))}
    done = subprocess.run(
        [sys.executable, '-c', CODE, mode],
        env={**bare, 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
        check=True,
    )
    told, n, n_large, is_taken = done.stdout.split()
    return told, int(n), int(n_large), is_taken == '1'


@pytest.mark.soak
def test_steps_ask_the_system_for_nothing_once_freed_memory_is_kept():
    pages = 2 * (40 << 20) // 4096  # 20,480 if nothing is kept
    assert faults('leave')[1] > pages / 600  # a page may have 2 MB: 512 small pages
    told, n, n_large, is_taken = faults('keep')
    assert told == 'True' and n_large > 2 * MAPPED_FROM // 4096 / 600  # larger blocks go back to the system
    if not is_taken:
        pytest.skip('an older glibc maps blocks of 32 MB or more whatever it is told')
    assert n < pages / 1000


@pytest.mark.parametrize('name', ['MALLOC_TRIM_THRESHOLD_', 'MALLOC_MMAP_THRESHOLD_', 'GLIBC_TUNABLES'])
def test_what_the_user_has_set_is_left(name, monkeypatch):
    monkeypatch.setenv(name, '131072')
    monkeypatch.setattr(ctypes, 'CDLL', None)  # malloc is not told anything
    assert keep_freed_memory() is False


def test_older_glibc_which_refuses_large_thresholds_is_told_the_largest_it_takes(monkeypatch):
    taken = {}

    class Older:
        gnu_get_libc_version = None

        def mallopt(self, what: int, size: int) -> int:
            if what == -3 and size > 32 << 20:  # M_MMAP_THRESHOLD: HEAP_MAX_SIZE / 2 at most, with heaps of 64 MB
                return 0
            taken[what] = size
            return 1

    monkeypatch.setattr(ctypes, 'CDLL', lambda name: Older())
    for name in ('MALLOC_TRIM_THRESHOLD_', 'MALLOC_MMAP_THRESHOLD_', 'GLIBC_TUNABLES'):
        monkeypatch.delenv(name, raising=False)
    assert keep_freed_memory() and taken == {-3: 32 << 20, -1: KEPT}


@pytest.mark.parametrize('keep', [True, False])
def test_run_keeps_freed_memory_unless_the_config_says_otherwise(keep, tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr('zoo.run.build.keep_freed_memory', lambda: called.append(True))
    with SerialJob(resolve_config(job_config(tmp_path, keep_freed_memory=keep))):
        pass
    assert called == [True] * keep
