"""Two real processes over gloo: what they train is what one process of twice the batch trains."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cluster import rank_cases
from tests.cluster.rank_cases import CASES, EQUAL_ONLY, SIZE, as_rank, differences, free_port, in_one_process
from zoo.cluster.torch_ranks import join
from zoo.core.errors import RunError, UserError
from zoo.core.ranks import ALONE, Ranks

TOLERANCE = 1e-6  # of any parameter, moment or statistic after the rollouts of a case: sums in another order


def run_ranks(work: Callable[[Ranks, Path], None], path: Path, timeout: float = 60.0) -> list[Any]:
    """The processes of SIZE ranks after they have ended."""
    context, port = multiprocessing.get_context('spawn'), free_port()
    processes = [context.Process(target=as_rank, args=(work, rank, port, path, timeout)) for rank in range(SIZE)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        if process.is_alive():
            process.kill()
    return processes


@pytest.fixture(scope='module')
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank has after all cases."""
    path = tmp_path_factory.mktemp('ranks')
    assert [process.exitcode for process in run_ranks(rank_cases.train_all, path)] == [0] * SIZE
    return [torch.load(path / f'rank_{rank}.pt', weights_only=True) for rank in range(SIZE)]


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_two_ranks_end_as_one_process_of_twice_the_batch(name: str, found: list[dict[str, Any]]) -> None:
    one, ranks = in_one_process(CASES[name]), [each['cases'][name] for each in found]
    assert one.keys() == ranks[0].keys() - {'time'}
    for key in ('learn.train_iter', 'metric/n_epoch', 'metric/skipped_step'):
        assert one.get(key) == ranks[0].get(key)
    off = differences(one, ranks[0])
    worst = max(off, key=lambda key: off[key])
    print(f'\n{name}: at most {off[worst]:.1e} apart, in {worst}; {int(one["learn.train_iter"])} steps')
    assert off[worst] <= TOLERANCE, off


@pytest.mark.slow
@pytest.mark.parametrize('name', [*CASES, *EQUAL_ONLY])
def test_ranks_are_equal_to_the_bit(name: str, found: list[dict[str, Any]]) -> None:
    one, other = (each['cases'][name] for each in found)
    assert set(differences(one, other).values()) == {0.0}
    steps = [key for key in one if key.startswith('metric/') and key.endswith('grad_norm')]
    assert steps and all(torch.equal(one[key], other[key]) for key in steps if 'accumulate' not in name)


@pytest.mark.slow
def test_the_cases_show_what_they_are_for(found: list[dict[str, Any]]) -> None:
    cases = found[0]['cases']
    for name in ('target_kl', 'target_kl at minibatches'):
        assert 1 < cases[name]['metric/n_epoch'] < 8  # it stopped in the middle
    adaptive = cases['adaptive rate and penalty']
    assert adaptive['learn.adaptive_rate.learning_rate'] != 1e-3 and adaptive['learn.penalty_weight.kl'] != 0.5
    assert cases['three normalisers']['normalizer.reward.count'] < SIZE * 256  # rows that only reset are left out
    assert 'metric/aux_kl_after' in cases['ppg with its auxiliary phase']


@pytest.mark.slow
def test_sums_and_moments_are_of_all_ranks_and_the_same_bits_on_each(found: list[dict[str, Any]]) -> None:
    one, other = (each['operations'] for each in found)
    generators = [torch.Generator().manual_seed(rank) for rank in range(SIZE)]
    for a, b, n in zip(one['sums'], other['sums'], [n for n in (1, 7, 1000, 100_003) for _ in range(2)], strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, sum(torch.randn(n, generator=each) for each in generators), rtol=0, atol=1e-6)
    assert one['strided'].tolist() == [[3.0] * 4] * 2
    rows = torch.arange(6.0, dtype=torch.float64).view(3, 2)
    both = torch.cat((rows, rows + 10))
    for operations in (one, other):
        n, mean, var = operations['moments']
        assert n == 6 and torch.equal(mean, both.mean(0))
        torch.testing.assert_close(var, both.var(0, correction=0), rtol=0, atol=1e-12)
        n, mean, var = operations['empty']  # of rank 0 there are no rows
        assert n == 3 and torch.equal(mean, rows.mean(0) + 10)
        torch.testing.assert_close(var, rows.var(0, correction=0), rtol=0, atol=1e-12)
        assert operations['counts'][0].tolist() == [6, 1]
        assert operations['gather'] == [{'rank': 0}, {'rank': 1}] and operations['share'] == ['of 0', 'of 1']
        assert all(operations['copy'])
        assert {key: x.item() for key, x in operations['metrics'].items()} == {
            'loss': 1.5,
            'ratio_max': 3,
            'reward_min': 0,
        }
        assert operations['no metrics'] == {}


@pytest.mark.slow
def test_steps_are_with_the_mean_gradient_and_skipped_by_all_hand_worked(found: list[dict[str, Any]]) -> None:
    for each in found:
        steps = each['operations']['steps']
        assert steps['seen'][0].tolist() == [3, 4] and steps['norms'][0] == 5  # the mean of (6, 0) and (0, 8)
        torch.testing.assert_close(steps['moved'], torch.full((2,), -0.1), rtol=0, atol=1e-6)  # Adam's first step is lr
        assert steps['norms'][1].isnan() and steps['skipped'] == 1  # also on rank 0, whose own gradient was finite
        assert torch.equal(steps['after'], steps['moved'])


@pytest.mark.slow
def test_ranks_draw_as_often_as_the_one_with_fewest_draws(found: list[dict[str, Any]]) -> None:
    counts = list(zip(*(each['operations']['draws'] for each in found), strict=True))
    assert any(one[0] != other[0] for one, other in counts)  # by themselves they would differ
    for (alone, agreed), (other_alone, other_agreed) in counts:
        assert agreed == other_agreed == min(alone, other_alone)


@pytest.mark.parametrize('environ', [{}, {'WORLD_SIZE': '1'}, {'WORLD_SIZE': '1', 'RANK': '0'}])
def test_one_process_is_alone(environ: dict[str, str]) -> None:
    assert join('cpu', environ=environ) is ALONE


@pytest.mark.parametrize(
    ('environ', 'said'),
    [
        ({'WORLD_SIZE': '4'}, 'WORLD_SIZE=4 but no RANK, MASTER_ADDR, MASTER_PORT; start the processes with torchrun'),
        ({'WORLD_SIZE': 'four'}, "WORLD_SIZE='four', which should be the number of processes"),
        ({'WORLD_SIZE': '0'}, "WORLD_SIZE='0'"),
    ],
)
def test_environment_that_is_not_torchruns_is_one_sentence(environ: dict[str, str], said: str) -> None:
    with pytest.raises(UserError) as error:
        join('cpu', environ=environ)
    assert said in str(error.value)


def hang(ranks: Ranks, path: Path) -> None:
    """Rank 1 does not come to a sum in time; then to none at all."""
    if ranks.rank == 1:
        time.sleep(4)
        return
    try:
        ranks.sum_(torch.ones(3))
    except RunError as error:
        (path / 'late').write_text(str(error))
    try:
        time.sleep(3)
        ranks.gather(1)
    except RunError as error:
        (path / 'gone').write_text(str(error))


@pytest.mark.slow
def test_rank_that_does_not_come_is_said_after_the_time_out(tmp_path: Path) -> None:
    run_ranks(hang, tmp_path, timeout=2.0)
    late, gone = ((tmp_path / name).read_text() for name in ('late', 'gone'))
    assert late.startswith('rank 0 waited for the sum of 2 ranks, but they did not come within 2 s')
    assert gone.startswith('rank 0 waited for what all ranks say of 2 ranks, but')


@pytest.mark.slow
def test_ranks_that_nobody_meets_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    for name, value in {'RANK': '1', 'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RunError, match=rf'rank 1 did not meet the other 1 at 127.0.0.1:{port} within 1 s'):
        join('cpu', timeout=1.0)
