"""Ranks: a single rank changes nothing; merged moments of several blocks equal those of all rows."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.thread_ranks import on_ranks
from zoo.core.ranks import ALONE, RunInfo, mean_over, merged_moments, weight_scale


def test_alone_gives_back_what_it_is_given() -> None:
    x, n = torch.ones(3), torch.tensor(4)
    assert ALONE.sum_(x) is x and mean_over(x, ALONE) is x
    assert ALONE.merge(n, x, x) == (n, x, x)
    assert ALONE.gather(5) == [5] and ALONE.share('a', 0) == 'a'
    assert (ALONE.rank, ALONE.size) == (0, 1) and RunInfo().ranks is ALONE


def test_copies_of_alone_are_it() -> None:
    assert copy.deepcopy(ALONE) is ALONE and pickle.loads(pickle.dumps(ALONE)) is ALONE


def test_merged_moments_hand_worked() -> None:
    """Blocks (1, 3) and (5): the rows 1, 3, 5 have mean 3 and variance (4 + 0 + 4) / 3."""
    n, mean, var = merged_moments(*(torch.tensor(x, dtype=torch.float64) for x in ([2.0, 1.0], [2.0, 5.0], [1.0, 0.0])))
    assert (n.item(), mean.item()) == (3, 3) and var.item() == pytest.approx(8 / 3, abs=1e-15)


@pytest.mark.parametrize('sizes', [(4, 0, 3), (0, 5), (0, 0), (1, 1, 1, 1), (7,)])
def test_merged_moments_are_those_of_all_rows(sizes: tuple[int, ...]) -> None:
    rows = torch.randn(sum(sizes), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 100
    blocks = rows.split(list(sizes))
    zero = torch.zeros(2, dtype=torch.float64)
    moments = [(x.mean(0), x.var(0, correction=0)) if len(x) else (zero, zero) for x in blocks]
    mean, var = (torch.stack(x) for x in zip(*moments, strict=True))
    n, mean, var = merged_moments(torch.tensor(sizes, dtype=torch.float64).view(-1, 1), mean, var)
    assert n.item() == len(rows)
    if len(rows):
        torch.testing.assert_close(mean, rows.mean(0), rtol=0, atol=1e-12)
        torch.testing.assert_close(var, rows.var(0, correction=0), rtol=0, atol=1e-11)
    else:
        assert not mean.any() and not var.any()


def test_weight_scale_makes_the_mean_1_and_keeps_zeros() -> None:
    valid = torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert (valid * weight_scale(valid, ALONE)).tolist() == [0, 2, 2, 0]
    assert weight_scale(torch.zeros(3), ALONE).item() == 3  # no weight to scale
    # two ranks have 8 rows with the weights (0, 1, 1, 0) and (1, 1, 1, 1), whose sum is 6
    both = [valid, torch.ones(4)]
    assert [x.item() for x in on_ranks(lambda ranks: weight_scale(both[ranks.rank], ranks))] == pytest.approx(
        [8 / 6] * 2
    )


def test_weight_scale_of_several_ranks_copies_no_number_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.tensor and new_tensor copy a number from the host, which waits for a GPU."""
    ranks: Any = SimpleNamespace(size=2, sum_=lambda x: x)
    monkeypatch.setattr(torch.Tensor, 'new_tensor', None)
    assert weight_scale(torch.tensor([1.0, 0.0, 2.0]), ranks) == 1
