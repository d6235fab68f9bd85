"""Ring storage of a buffer: kept samples after any pushes, their dtypes and shapes, and their memory."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.buffer.samples import is_whole, numbered, push_numbered
from tests.gpu import needs_gpu, no_waiting
from zoo.buffer.ring import Ring
from zoo.core.data import leaves, map_tensors
from zoo.core.errors import UserError


def moved(samples, device):
    return map_tensors(lambda x: x.to(device), samples)


def by_age(ring: Ring) -> list[tuple[int, int]]:
    """(id, push number) of all rows, oldest first."""
    state = ring.state_dict()
    rows = torch.arange(ring.n_row)
    if ring.n_row == ring.size:
        rows = rows.roll(-state['cursor'])
    return list(zip(state['data']['id'][rows].tolist(), state['push_number'][rows].tolist(), strict=True))


def test_push_past_the_end_continues_at_the_start_and_one_that_ends_there_is_one_piece() -> None:
    ring = Ring(5)
    written = [ring.push(numbered(first, 3)) for first in (0, 3)]
    # first 0 1 2 . ., then 3 4 to rows 3 4 and 5 to row 0
    assert written == [[slice(0, 3)], [slice(3, 5), slice(0, 1)]]
    state = ring.state_dict()
    assert state['data']['id'].tolist() == [5, 1, 2, 3, 4] and state['push_number'].tolist() == [2, 1, 1, 2, 2]
    assert (state['cursor'], ring.n_row, ring.n_push) == (1, 5, 2)
    assert ring.push(numbered(6, 4)) == [slice(1, 5)] and ring.state_dict()['cursor'] == 0


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(size=st.integers(1, 9), sizes=st.lists(st.integers(0, 20), max_size=12))
def test_ring_holds_what_a_list_of_the_last_samples_holds(size: int, sizes: list[int]) -> None:
    ring, model, first = Ring(size), [], 0
    for k, n in enumerate(sizes):
        ring.push(numbered(first, n))
        model = (model + [(first + i, k + 1) for i in range(n)])[-size:]
        first += n
        assert by_age(ring) == model
    if model:
        assert is_whole(ring.gather(torch.arange(ring.n_row)))


def test_every_leaf_keeps_dtype_and_shape():
    ring = Ring(8)
    push_numbered(ring, [5, 5])
    batch = ring.gather(torch.tensor([7, 0]))
    assert {key: (leaf.dtype, list(leaf.shape)) for key, leaf in leaves(batch)} == {
        'id': (torch.int64, [2]),
        'adv': (torch.float32, [2]),
        'obs': (torch.uint8, [2, 2, 3]),
        'logit.mu': (torch.float32, [2, 2]),
        'logit.sigma': (torch.float64, [2, 1]),
        'staleness': (torch.float32, [2]),
    }
    assert batch['id'].tolist() == [7, 8] and is_whole(batch)  # row 0: the ninth sample


@pytest.mark.parametrize('shape', [(), (3,)])
def test_samples_without_weights_have_weight_1_beside_others(shape: tuple[int, ...]) -> None:
    ring = Ring(6)
    ring.push(numbered(0, 2))
    assert 'weight' not in ring.state_dict()['data']
    ring.push({**numbered(2, 2), 'weight': torch.full((2, *shape), 0.5)})
    ring.push(numbered(4, 2))
    weights = ring.gather(torch.arange(6))['weight']
    assert weights.shape == (6, *shape)
    assert weights.reshape(6, -1)[:, 0].tolist() == [1.0, 1.0, 0.5, 0.5, 1.0, 1.0]
    again = Ring(6)
    again.load_state_dict(ring.state_dict())
    again.push(numbered(6, 1))  # over the oldest row
    assert again.n_row == 6
    assert again.gather(torch.tensor([0, 2]))['weight'].reshape(2, -1)[:, 0].tolist() == [1.0, 0.5]


def test_storage_is_allocated_once_and_samples_are_copied_without_their_gradient() -> None:
    ring, samples = Ring(6), numbered(0, 4)
    samples['adv'].requires_grad_()
    ring.push(samples)
    data = ring.state_dict()['data']
    places = {key: leaf.data_ptr() for key, leaf in leaves(data)}
    assert not data['adv'].requires_grad and samples['adv'].requires_grad  # otherwise every push would keep its graph
    samples['adv'].data.fill_(-1)  # the collector's block is written again
    assert ring.gather(torch.arange(4))['adv'].tolist() == [0, 0.5, 1, 1.5]
    for first in range(4, 40, 5):
        ring.push(numbered(first, 5))
        data = ring.state_dict()['data']
        assert {key: leaf.data_ptr() for key, leaf in leaves(data)} == places
    assert len(places) == 5 and all(len(leaf) == 6 for _, leaf in leaves(data))


def test_a_gathered_batch_stays_as_it_is_when_samples_are_pushed():
    ring = Ring(3)
    push_numbered(ring, [3])
    batch = ring.gather(torch.arange(3))
    push_numbered(ring, [3, 3], first=3)
    assert batch['id'].tolist() == [0, 1, 2] and is_whole(batch)


def test_samples_of_another_form_are_refused_with_both_forms():
    ring = Ring(4)
    push_numbered(ring, [2])
    other = numbered(2, 2)
    del other['adv']
    other['obs'] = other['obs'].float()
    with pytest.raises(UserError) as error:
        ring.push(other)
    assert 'samples have no adv, obs float32 [2, 3] but the buffer keeps adv float32 [], obs uint8 [2, 3]' in str(
        error.value
    )
    assert by_age(ring) == [(0, 1), (1, 1)] and ring.n_push == 1  # no column of it was stored


@pytest.mark.parametrize(
    ('column', 'words'),
    [
        ({'adv': torch.zeros(3)}, r'samples have columns of \[2, 3\] rows but a buffer takes one row for each'),
        ({'adv': torch.zeros(())}, r'samples have columns of \[-1, 2\] rows but a buffer takes one row for each'),
        ({'staleness': torch.zeros(2)}, "key 'staleness'.* rename it"),
    ],
)
def test_columns_that_no_buffer_takes_are_refused(column: dict[str, torch.Tensor], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Ring(4).push({**numbered(0, 2), **column})


def test_sequences_are_kept_whole():
    ring = Ring(3)
    ring.push({'adv': torch.arange(8.0).view(4, 2)})  # four sequences of two rows
    assert ring.gather(torch.arange(3))['adv'].tolist() == [[2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize('n', [0, 3, 5, 12])
@pytest.mark.parametrize('size', [2, 5, 9])
def test_ring_loaded_into_another_size_keeps_the_newest_that_fit(n: int, size: int) -> None:
    one, two = Ring(5), Ring(size)
    push_numbered(one, [4, n])
    rows = two.load_state_dict(one.state_dict())
    assert by_age(two) == by_age(one)[-size:]
    assert one.state_dict()['data']['id'][rows].tolist() == two.state_dict()['data']['id'].tolist()
    push_numbered(one, [3], first=50)
    push_numbered(two, [3], first=50)
    k = min(size, 5)
    assert by_age(two)[-k:] == by_age(one)[-k:]


@pytest.mark.parametrize(
    'changes',
    [
        {'n_push': -1},
        {'n_push': 1.0},
        {'cursor': -1},
        {'cursor': 5},
        {'size': 2},
        {'push_number': torch.ones(2, dtype=torch.int64)},
        {'data': {}},
    ],
    ids=str,
)
def test_state_that_no_ring_gave_is_refused(changes: dict[str, object]) -> None:
    one = Ring(4)
    push_numbered(one, [3])
    with pytest.raises(ValueError, match='a ring of [23] rows has '):
        Ring(4).load_state_dict({**one.state_dict(), **changes})


def test_ring_loaded_shares_no_memory_with_the_state():
    one, two = Ring(3), Ring(3)
    push_numbered(one, [3])
    two.load_state_dict(one.state_dict())
    push_numbered(one, [3], first=3)
    assert by_age(two) == [(0, 1), (1, 1), (2, 1)]


def test_batch_is_on_the_device_of_the_pushed_samples():
    ring = Ring(4)
    ring.push(moved(numbered(0, 3), 'meta'))  # the one device besides the CPU that every machine has
    assert {leaf.device.type for _, leaf in leaves(ring.gather(torch.arange(2)))} == {'meta'}


@needs_gpu
@pytest.mark.parametrize(('device', 'kept_on'), [('auto', 'cuda'), ('cpu', 'cpu')])
def test_samples_are_kept_where_the_config_says_and_come_back_where_they_were(device, kept_on):
    ring = Ring(4, device)
    for first in (0, 3):
        ring.push(moved(numbered(first, 3), 'cuda'))
    with no_waiting() if kept_on == 'cpu' else nullcontext():
        batch = ring.gather(torch.arange(4))
    assert ring.state_dict()['data']['obs'].device.type == kept_on
    assert all(leaf.is_cuda for _, leaf in leaves(batch)) and is_whole(moved(batch, 'cpu'))


@needs_gpu
def test_ring_loaded_from_a_file_moves_to_the_device_of_the_samples():
    one, two = Ring(4), Ring(4)
    push_numbered(one, [3])
    two.load_state_dict(one.state_dict())
    two.push(moved(numbered(3, 3), 'cuda'))
    batch = two.gather(torch.arange(4))
    assert (
        two.state_dict()['data']['obs'].is_cuda
        and batch['id'].tolist() == [4, 5, 2, 3]
        and is_whole(moved(batch, 'cpu'))
    )


def test_first_samples_of_a_run_are_no_others_than_those_of_a_checkpoint(caplog):
    push_numbered(Ring(6), [4])
    assert not caplog.records


def test_samples_of_a_checkpoint_with_other_columns_are_dropped_with_a_warning(caplog):
    old, ring = Ring(6), Ring(6)
    old.push(numbered(0, 4))
    ring.load_state_dict(old.state_dict())
    more = {**numbered(4, 3), 'price': torch.ones(3)}
    assert ring.push(more) == [slice(0, 3)]
    assert ring.state_dict()['data']['id'].tolist() == [4, 5, 6] and ring.n_push == 2
    assert 'samples now have price float32 [] where those of the checkpoint have no price' in caplog.text
    with pytest.raises(UserError, match='the buffer keeps price'):
        ring.push(numbered(7, 3))  # within one run other columns are an error of the policy
