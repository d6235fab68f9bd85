"""Memory of the auxiliary phase: exactly the appended rows and the expected number of bytes, at every location."""

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
from torch import Tensor

import zoo
from zoo.core.errors import RunError, UserError
from zoo.policy.aux_memory import AuxMemory
from zoo.policy.options.aux_memory import make_memory
from zoo.policy.ppg_config import MemoryLocation
from zoo.run.checkpoint.file import load_checkpoint, save_checkpoint

CPU = torch.device('cpu')
PLACES: list[MemoryLocation] = ['device', 'cpu', 'disk']
places = pytest.mark.parametrize('where', PLACES)
weighted_places = pytest.mark.parametrize(
    ('where', 'weighted'), [('device', True), ('cpu', False), ('disk', True), ('disk', False)]
)


def part(seed: int, n: int = 6, weighted: bool = False, dtype: torch.dtype = torch.uint8) -> dict[str, Tensor]:
    """A batch: images, returns, and columns that the memory does not keep."""
    generator = torch.Generator().manual_seed(seed)
    data = {
        'obs': torch.randint(256, (n, 4, 5, 3), generator=generator).to(dtype),
        'return_': torch.randn(n, generator=generator),
        'adv': torch.zeros(n),
        'logit': torch.zeros(n, 15),
    }
    if weighted:
        data['weight'] = torch.rand(n, generator=generator)
    return data


def all_rows(memory: AuxMemory) -> dict[str, Tensor]:
    return {key: x.cpu() for key, x in memory.columns().items()}


def joined(parts: list[dict[str, Tensor]], *keys: str) -> dict[str, Tensor]:
    return {key: torch.cat([p[key] for p in parts]) for key in keys}


def assert_holds(memory: AuxMemory, want: dict[str, Tensor]) -> None:
    got = all_rows(memory)
    assert got.keys() == want.keys() and memory.n_row == len(want['return_'])
    for key, x in want.items():
        assert got[key].dtype == x.dtype and torch.equal(got[key], x), key


@weighted_places
def test_rows_are_what_was_appended_in_order_and_nothing_else(where: MemoryLocation, weighted: bool) -> None:
    memory, parts = make_memory(3, where, is_ring=False), [part(i, weighted=weighted) for i in range(3)]
    keys = ('obs', 'return_', 'weight') if weighted else ('obs', 'return_')
    for i, batch in enumerate(parts):
        memory.append(batch)
        assert_holds(memory, joined(parts[: i + 1], *keys))
    first, again = memory.columns(), memory.columns()
    assert all(x.data_ptr() == again[key].data_ptr() for key, x in first.items())  # both are views of the block


@pytest.mark.parametrize(
    ('where', 'dtype', 'obs_bytes', 'weighted', 'rest'),
    [
        ('device', torch.uint8, 60, False, 4),
        ('cpu', torch.float32, 240, True, 8),
        ('disk', torch.int64, 480, False, 4),
        ('disk', torch.bool, 60, True, 8),
    ],
)
def test_block_has_the_bytes_of_the_observations_and_of_one_or_two_floats(
    where: MemoryLocation, dtype: torch.dtype, obs_bytes: int, weighted: bool, rest: int
) -> None:
    memory = make_memory(5, where, is_ring=False)
    memory.append(part(0, 6, weighted, dtype))
    # 5 batches of 6 rows, each of 4 x 5 x 3 numbers; the first append allocates room for all of them
    assert sum(x.untyped_storage().nbytes() for x in memory.columns().values()) == 5 * 6 * (obs_bytes + rest)
    assert all_rows(memory)['obs'].dtype == dtype


@places
def test_append_copies_and_later_phases_use_the_same_block(where: MemoryLocation) -> None:
    memory, batch = make_memory(2, where, is_ring=False), part(0)
    memory.append(batch)
    want = batch['obs'].clone()
    batch['obs'].zero_()  # the collector fills its block again
    assert torch.equal(all_rows(memory)['obs'], want)
    place = memory.columns()['obs'].data_ptr()
    for i in (1, 2, 3):
        memory.append(part(i))
        assert memory.columns()['obs'].data_ptr() == place
        if i % 2:
            memory.end_phase()
            assert memory.n_row == 0 and memory.columns() == {}


def filled(n_batch: int, *seeds: int, where: MemoryLocation = 'cpu', is_ring: bool = False) -> Any:
    """A memory for n_batch batches that has the batches of these seeds."""
    memory = make_memory(n_batch, where, is_ring)
    for seed in seeds:
        memory.append(part(seed))
    return memory


def of_seeds(*seeds: int) -> dict[str, Tensor]:
    """What a memory of the batches of these seeds holds."""
    return joined([part(seed) for seed in seeds], 'obs', 'return_')


def test_more_batches_than_a_phase_has_are_refused() -> None:
    memory = filled(2, 0, 1)
    with pytest.raises(RuntimeError, match=r'has its 2 batches already; call learn_aux\(\)'):
        memory.append(part(2))
    assert_holds(memory, of_seeds(0, 1))


@weighted_places
def test_state_goes_through_a_checkpoint_and_is_filled_up_there(
    where: MemoryLocation, weighted: bool, tmp_path: Path
) -> None:
    memory, parts = make_memory(4, where, is_ring=False), [part(i, weighted=weighted) for i in range(4)]
    for batch in parts[:3]:
        memory.append(batch)
    save_checkpoint(tmp_path / 'a.safetensors', memory.columns(), {})
    state = load_checkpoint(tmp_path / 'a.safetensors').state
    other = make_memory(4, PLACES[PLACES.index(where) - 1], is_ring=False)  # a resumed run may use another location
    other.load_state_dict(state, 3, CPU)
    n_byte = [sum(x.untyped_storage().nbytes() for x in m.columns().values()) for m in (memory, other)]
    assert n_byte[0] == n_byte[1]  # again the room of one whole phase, no more
    other.append(parts[3])
    keys = ('obs', 'return_', 'weight') if weighted else ('obs', 'return_')
    assert_holds(other, joined(parts, *keys))
    with pytest.raises(RuntimeError, match='4 batches already'):
        other.append(parts[0])


def test_empty_state_empties_the_memory() -> None:
    memory = filled(2, 0)
    memory.load_state_dict({}, 0, CPU)
    assert memory.n_row == 0 and memory.columns() == {}
    memory.append(part(1))
    memory.append(part(2))
    assert_holds(memory, of_seeds(1, 2))


def test_rows_of_a_checkpoint_of_another_form_are_dropped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    memory = make_memory(3, 'cpu', is_ring=False)
    memory.load_state_dict(filled(3, 0).columns(), 1, CPU)
    memory.append(part(1, dtype=torch.float32))
    assert_holds(memory, joined([part(1, dtype=torch.float32)], 'obs', 'return_'))
    assert memory.n_filled == 1 and 'the auxiliary memory begins empty' in caplog.text
    with pytest.raises(UserError, match='obs'):
        memory.append(part(2))  # within one run a new form is an error of the policy
    assert memory.n_filled == 1


@pytest.mark.parametrize(
    ('where', 'sizes'),
    [('device', (6, 6, 9, 9)), ('disk', (6, 6, 9, 9)), ('disk', (6, 6, 3, 3)), ('cpu', (6, 6, 3, 3))],
)
def test_rollouts_of_another_size_after_a_resume_are_taken(where: MemoryLocation, sizes: tuple[int, ...]) -> None:
    parts = [part(i, n) for i, n in enumerate(sizes)]
    before, memory = make_memory(4, 'cpu', is_ring=False), make_memory(4, where, is_ring=False)
    before.append(parts[0])
    before.append(parts[1])
    memory.load_state_dict(before.columns(), 2, CPU)
    memory.append(parts[2])
    assert_holds(memory, joined(parts[:3], 'obs', 'return_'))
    again = make_memory(4, where, is_ring=False)  # a second resume, with batches of different sizes
    again.load_state_dict(memory.columns(), 3, CPU)
    again.append(parts[3])
    assert_holds(again, joined(parts, 'obs', 'return_'))
    again.end_phase()
    for batch in [part(i, sizes[-1]) for i in range(7, 11)]:
        again.append(batch)
    assert_holds(again, joined([part(i, sizes[-1]) for i in range(7, 11)], 'obs', 'return_'))


@pytest.mark.parametrize('first', [True, False])
def test_rows_without_a_weight_next_to_rows_with_one_have_weight_one(first: bool) -> None:
    """A resume in another autoreset mode leads to such rows."""
    parts = [part(0, weighted=first), part(1, weighted=not first)]
    before, memory = make_memory(2, 'cpu', is_ring=False), make_memory(2, 'cpu', is_ring=False)
    before.append(parts[0])
    memory.load_state_dict(before.columns(), 1, CPU)
    memory.append(parts[1])
    one = torch.ones(6)
    want = joined(parts, 'obs', 'return_') | {'weight': torch.cat([p.get('weight', one) for p in parts])}
    assert_holds(memory, want)


@pytest.mark.parametrize('n_batch', [2, 1])
def test_what_is_kept_beyond_a_shorter_phase_counts_as_one_batch_less_than_it(n_batch: int) -> None:
    """aux_freq was 4 and is 2 after a resume: the phase starts after one more rollout and uses all kept rows."""
    memory = make_memory(n_batch, 'cpu', is_ring=False)
    memory.load_state_dict(filled(4, 0, 1, 2).columns(), n_batch - 1, CPU)
    memory.append(part(3))
    assert_holds(memory, of_seeds(0, 1, 2, 3))


# --- the disk ---


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
from zoo.policy.options.aux_memory import make_memory
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


# --- a ring of the newest batches ---


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
