"""Places of PPG's memory other than the device, and a ring of its newest batches."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from tests.policy.aux_batches import (
    CPU,
    all_rows,
    assert_holds,
    filled,
    joined,
    of_seeds,
    part,
    places,
)
from zoo.core.errors import RunError
from zoo.policy.options.resumed_memory import make_memory
from zoo.policy.ppg_config import MemoryLocation


@pytest.mark.slow
@pytest.mark.skipif(not Path('/proc/self/maps').exists(), reason='the kernel does not list mappings')
def test_file_has_no_name_and_lies_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    memory = filled(2, 0, where='disk')
    mapped = [line for line in Path('/proc/self/maps').read_text().splitlines() if str(tmp_path) in line]
    assert len(mapped) == 2 and all('(deleted)' in line for line in mapped)  # obs and return_
    assert list(tmp_path.iterdir()) == []
    del memory
    gc.collect()
    assert str(tmp_path) not in Path('/proc/self/maps').read_text()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    try:
        mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=1m', 'none', str(tmp_path)], capture_output=True)
    except FileNotFoundError:
        pytest.skip('there is no mount command')
    if mounted.returncode:
        pytest.skip('this user may not mount a small file system')
    yield tmp_path
    subprocess.run(['umount', '-l', str(tmp_path)], check=True)


@pytest.mark.slow
def test_space_is_reserved_with_the_first_batch_and_given_back(small_disk: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tempfile, 'tempdir', str(small_disk))
    before = shutil.disk_usage(small_disk).free
    memory = make_memory(100, 'disk', is_ring=False)
    memory.append(part(0, 100))
    # 100 x 100 rows of 60 + 4 bytes are 640 kB; one hundredth of it is filled
    assert 640_000 <= before - shutil.disk_usage(small_disk).free < 640_000 + 3 * 4096
    del memory
    gc.collect()
    assert shutil.disk_usage(small_disk).free == before


def test_full_disk_is_named_with_the_first_batch(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, 'tempdir', str(small_disk))
    memory = make_memory(200, 'disk', is_ring=False)  # 200 x 100 x 60 bytes of observations
    with pytest.raises(RunError) as caught:
        memory.append(part(0, 100))
    assert str(caught.value) == (
        f"policy.learn.aux_memory is 'disk' but {small_disk} has no room for 1.2 MB (No space left on device); set "
        "TMPDIR to a folder with more, or use aux_memory 'cpu'"
    )
    assert isinstance(caught.value.__cause__, OSError) and list(small_disk.iterdir()) == []
    assert memory.n_since_phase == memory.n_row == 0 and memory.columns() == {}  # a checkpoint now is complete


LIMITED = """
import resource, torch
from zoo.core.errors import RunError
from zoo.policy.options.resumed_memory import make_memory
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    make_memory(10, 'disk', is_ring=False).append({'obs': torch.zeros(100, 100, dtype=torch.uint8), 'return_': torch.zeros(100)})
except RunError as error:
    print(error)
"""


@pytest.mark.long
def test_file_size_limit_is_an_error_and_no_bus_error() -> None:
    env: dict[str, Any] = {**os.environ, 'PYTHONPATH': str(Path(zoo.__file__).parents[1])}
    done = subprocess.run([sys.executable, '-c', LIMITED], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0 and 'has no room for 0.1 MB (File too large); set TMPDIR' in done.stdout, done.stderr


@places
def test_a_full_ring_has_the_newest_batches(where: MemoryLocation) -> None:
    memory = filled(3, *range(5), where=where, is_ring=True)
    assert_holds(memory, of_seeds(3, 4, 2))  # batches 3 and 4 replaced 0 and 1
    assert memory.n_filled == 3


def test_a_batch_of_another_size_begins_a_ring_again() -> None:
    memory = filled(2, 0, 1, where='device', is_ring=True)
    memory.append(part(2, 4))
    assert memory.n_row == 4 and torch.equal(all_rows(memory)['return_'], part(2, 4)['return_'])


def test_a_ring_continues_from_a_checkpoint() -> None:
    memory, other = filled(2, 0, 1, 2, where='device', is_ring=True), make_memory(2, 'device', is_ring=True)
    rows = {key: x.clone() for key, x in memory.columns().items()}
    other.load_state_dict(rows, memory.n_filled, CPU, memory.oldest)  # batch 2 replaced batch 0: batch 1 is the oldest
    for each in (memory, other):
        each.append(part(3))
    assert_holds(other, all_rows(memory))


@pytest.mark.parametrize(('n_part', 'n_appended'), [(2, 3), (2, 6), (3, 4), (3, 6), (6, 3), (6, 6)])
def test_ring_of_another_size_takes_the_newest_batches_and_continues(n_part: int, n_appended: int) -> None:
    was, now = filled(4, *range(n_appended), where='device', is_ring=True), make_memory(n_part, 'device', is_ring=True)
    now.load_state_dict(was.columns(), was.n_filled, CPU, was.oldest)
    kept = list(range(n_appended))[-4:][-n_part:]
    assert_holds(now, of_seeds(*kept))
    assert now.n_filled == len(kept)
    for seed in range(10, 10 + n_part):  # as many as it holds: no old batch is left
        now.append(part(seed))
    want = of_seeds(*range(10, 10 + n_part))['return_']
    assert sorted(all_rows(now)['return_'].tolist()) == sorted(want.tolist())


def test_smaller_ring_begins_empty_where_batches_had_several_sizes(caplog: pytest.LogCaptureFixture) -> None:
    memory = make_memory(2, 'device', is_ring=True)
    memory.load_state_dict(joined([part(0, 6), part(1, 5), part(2, 5)], 'obs', 'return_'), 3, CPU)
    assert memory.n_row == 0 and 'begins empty' in caplog.text
