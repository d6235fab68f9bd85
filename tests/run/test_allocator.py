"""That freed memory is used again without the system: counted in pages that it had to give."""

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

# a block of 40 MB, as an update makes and frees them: glibc by itself keeps none from 32 MB on
CODE = """
import resource, sys, torch
from zoo.run.resources import keep_freed_memory
def step():
    block = torch.ones(10 << 20)
told = keep_freed_memory() if sys.argv[1] == 'keep' else None
for _ in range(20):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(told, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
pytestmark = [
    pytest.mark.slow,  # most tests start processes
    pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='malloc is not that of glibc'),
]


def faults(mode: str, **env: str) -> tuple[str, int]:
    """What keep_freed_memory returned, and the pages that 5 steps were given."""
    bare = {name: x for name, x in os.environ.items() if not name.startswith(('MALLOC_', 'GLIBC_'))}
    done = subprocess.run(
        [sys.executable, '-c', CODE, mode],
        env={**bare, **env, 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
        check=True,
    )
    told, n = done.stdout.split()
    return told, int(n)


def takes_large_thresholds() -> bool:
    code = f'import ctypes; print(ctypes.CDLL(None).mallopt(-3, {MAPPED_FROM}))'
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    return done.stdout.strip() == '1'


@pytest.mark.long
def test_steps_ask_the_system_for_nothing_once_freed_memory_is_kept():
    pages = 5 * (40 << 20) // 4096  # 51,200 if nothing is kept
    assert faults('leave')[1] > pages / 600  # a page may be one of 2 MB, which is 512 small ones
    told, n = faults('keep')
    assert told == 'True'
    if not takes_large_thresholds():
        pytest.skip('an older glibc maps blocks of 32 MB or more whatever it is told')
    assert n < pages / 1000


@pytest.mark.long
@pytest.mark.parametrize(
    'name, value',
    [
        ('MALLOC_TRIM_THRESHOLD_', '131072'),
        ('MALLOC_MMAP_THRESHOLD_', '131072'),
        ('GLIBC_TUNABLES', 'glibc.malloc.trim_threshold=131072'),
    ],
)
def test_what_the_user_has_set_is_left(name, value):
    assert faults('keep', **{name: value})[0] == 'False'


@pytest.mark.long
def test_blocks_larger_than_any_of_a_step_go_back_to_the_system():
    code = CODE.replace('10 << 20', str((MAPPED_FROM >> 2) + 1024))  # numbers of 4 bytes
    done = subprocess.run(
        [sys.executable, '-c', code, 'keep'],
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout.split()[1]) > 5 * MAPPED_FROM // 4096 / 600


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
