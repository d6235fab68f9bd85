"""Memory that ranks share: exact sums, gradient steps in C, and ranks that end; training on ranks is in test_torch_ranks_runs.py."""

from __future__ import annotations

import os
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cluster.memory_runs import ORDERED, SHORT_S, STEPS, numbers_of, steps
from tests.forked import run_python
from tests.processes import once
from zoo.cluster.rank_memory import SLOT, Offer, opened, share_memory
from zoo.core.ranks import ALONE

pytestmark = [
    pytest.mark.skipif(not hasattr(os, 'memfd_create'), reason='ranks share memory on Linux'),
    pytest.mark.long,  # the fixture takes seconds
]

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-6  # absolute, of a parameter after some steps: sums of the rows are in another order
SIZES = (2, 3, 4)


@pytest.fixture(scope='module')
def folder(native: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the ranks have done all works."""

    def make(path: Path) -> None:
        done = run_python('-m', 'tests.cluster.memory_runs', str(path), cwd=ROOT, PYTHONPATH=str(ROOT))
        assert done.returncode == 0, done.stderr

    return once(tmp_path_factory, 'memory', make)


def found_by(folder: Path, work: str, size: int) -> list[dict[str, Any]]:
    """What each rank found that lived to the end."""
    paths = [folder / f'{work}_{size}_{rank}.pt' for rank in range(size)]
    return [torch.load(path) for path in paths if path.exists()]


@pytest.mark.parametrize(
    ('work', 'size', 'expected'),
    [
        ('sums', 2, [(torch.tensor(0.1) + torch.tensor(0.2)).item()]),
        # 1e8 + 1 is 1e8: (1e8 + 1) - 1e8 = 0, (1 + 1e8) - 1e8 = 0, (1e8 - 1e8) + 1 = 1
        ('sums', 3, [0.0, 0.0, 1.0]),
        ('sums', 4, [1.0]),  # ((1e8 + 1) - 1e8) + 1 = 0 + 1
        ('machines', 4, [0.0]),  # (1e8 + 1) + (-1e8 + 1), of two machines with two ranks each
    ],
)
def test_sum_is_in_the_order_of_the_ranks_hand_worked(
    work: str, size: int, expected: list[float], folder: Path
) -> None:
    for each in found_by(folder, work, size):
        assert each['ordered'].tolist() == pytest.approx(expected, abs=0)
    assert len(ORDERED[size]) == len(found_by(folder, work, size)) == size


@pytest.mark.parametrize('size', SIZES)
def test_sums_of_all_lengths_have_the_bits_of_one_loop_over_the_ranks(size: int, folder: Path) -> None:
    rows = [numbers_of(rank) for rank in range(size)]
    for each in found_by(folder, 'sums', size):
        for n in (
            1,
            17,
            100_003,
            len(rows[0]),
        ):  # the last is more than a slot, and each rank sums a part of the last two
            assert torch.equal(each[f'float {n}'], reduce(torch.add, [row[:n] for row in rows])), n
        # 0.1 + 1.1 + ..; the whole numbers are beyond the exact ones of float64
        assert each['double'].tolist() == [reduce(float.__add__, [0.1 + rank for rank in range(size)])] * 5
        total = size * (size - 1) // 2
        assert each['integer'].tolist() == [size * 2**53 + total, -total]


@pytest.mark.parametrize(('work', 'size'), [('machines', 4), ('lonely', 2)])
def test_sums_over_machines_are_those_of_the_sums_of_each(work: str, size: int, folder: Path) -> None:
    rows = [numbers_of(rank)[:100_003] for rank in range(size)]
    if work == 'machines':
        rows = [rows[0] + rows[1], rows[2] + rows[3]]
    for each in found_by(folder, work, size):
        assert torch.equal(each['float 100003'], rows[0] + rows[1])
        assert each['integer'].tolist()[1] == -size * (size - 1) // 2


@pytest.mark.parametrize('size', SIZES)
def test_bytes_of_all_ranks_come_whole_in_pieces_too(size: int, folder: Path) -> None:
    for each in found_by(folder, 'sums', size):
        assert each['bytes'] == [(rank * SLOT + 3, True) for rank in range(size)]
        assert each['words'] == [[f'{i} of {rank}'.encode() for rank in range(size)] for i in range(3)]


@pytest.fixture(scope='module')
def one() -> dict[str, Any]:
    """Each case of STEPS in one process, eagerly."""
    return steps(ALONE)


@pytest.mark.parametrize(('work', 'size'), [('steps', 2), ('steps', 3), ('steps', 4), ('steps on machines', 4)])
def test_steps_in_c_end_as_those_of_one_process_and_equal_on_all_ranks(
    work: str, size: int, folder: Path, one: dict[str, Any]
) -> None:
    ranks = found_by(folder, work, size)
    names = [name for name, case in STEPS.items() if case.batch_size % size == 0]
    assert len(ranks) == size and list(ranks[0]) == names and 'thirds' in names
    for name in names:
        for key, x in one[name].items():
            torch.testing.assert_close(ranks[0][name][key], x, rtol=1e-5 if key == 'norm' else 0, atol=TOLERANCE)
            assert all(torch.equal(ranks[0][name][key], each[name][key]) for each in ranks), (name, key)


LOST = 'rank 0 waited for {} of {} ranks, but the connection to them was lost; another rank ended or hangs'


def test_ranks_see_at_once_that_one_was_killed_and_every_later_call_says_so(folder: Path) -> None:
    first, second = found_by(folder, 'kill_in_sum', 3)
    assert first['0'].startswith(LOST.format('the sum', 3))
    assert first['1'].startswith(LOST.format('what all ranks say', 3))
    assert second['0'].startswith('rank 1 waited for the sum of 3 ranks, but the connection to them was lost')


@pytest.mark.parametrize('work', ['kill_in_steps', 'leave'])
def test_rank_that_ends_during_steps_or_leaves_is_said(work: str, folder: Path) -> None:
    assert found_by(folder, work, 2)[0]['0'].startswith(LOST.format('the sum', 2))


def test_rank_that_comes_late_is_said_by_both(folder: Path) -> None:
    first, second = found_by(folder, 'come_late', 2)
    for again in ('0', '1'):  # the reason is kept
        assert first[again].startswith(
            f'rank 0 waited for the sum of 2 ranks, but they did not come within {SHORT_S:g} s;'
        )
    assert second['0'].startswith('rank 1 waited for the sum of 2 ranks, but')


def test_time_in_which_all_ranks_were_stopped_does_not_count(folder: Path) -> None:
    assert [each['sum'] for each in found_by(folder, 'stop', 2)] == [2.0, 2.0]


def test_cause_between_machines_is_said_where_it_was_seen(folder: Path) -> None:
    ranks = found_by(folder, 'fail_between_machines', 4)
    for rank, each in enumerate(ranks):
        cause = ' (the cable was cut)' if rank in (0, 2) else ''
        assert f'rank {rank} waited for the sum of 4 ranks, but the connection to them was lost{cause};' in each['0']


def test_memory_has_no_name_that_could_be_left(folder: Path) -> None:
    for size in SIZES:
        assert not any('zoo' in name for each in found_by(folder, 'sums', size) for name in each['memory'])


def test_memory_of_a_process_that_ended_or_is_another_is_not_opened() -> None:
    fd = os.memfd_create('other')
    try:
        os.pwrite(fd, b'token', 0)
        same = opened(Offer(os.getpid(), fd, b'token'))
        assert same is not None
        os.close(same)
        assert opened(Offer(os.getpid(), fd, b'other')) is None
    finally:
        os.close(fd)
    assert opened(Offer(os.getpid(), fd, b'token')) is None


def test_ranks_share_nothing_if_one_lacks_the_library() -> None:
    assert share_memory(0, lambda value: [value, None], 1.0, lambda firsts: lambda x: None) is None
