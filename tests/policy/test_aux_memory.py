"""Memory of the auxiliary phase: exactly the appended rows and the expected number of bytes, at every location."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.policy.aux_batches import (
    CPU,
    PLACES,
    all_rows,
    assert_holds,
    filled,
    joined,
    of_seeds,
    part,
    places,
    weighted_places,
)
from zoo.core.errors import UserError
from zoo.policy.options.resumed_memory import make_memory
from zoo.policy.ppg_config import MemoryLocation
from zoo.run.checkpoint.file import load_checkpoint, save_checkpoint


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
