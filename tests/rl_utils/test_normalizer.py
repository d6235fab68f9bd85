"""Running statistics against the statistics of the whole set and against numbers by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from zoo.rl_utils.normalizer import RunningMeanStd, WindowMeanStd


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_statistics(stats: RunningMeanStd, rows: Tensor) -> None:
    """The module holds mean, variance and count of these rows, and reads shift and scale from them."""
    torch.testing.assert_close(stats.mean, rows.mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(stats.var, rows.var(0, correction=0), rtol=1e-9, atol=1e-12)
    assert stats.count == len(rows)
    torch.testing.assert_close(stats.shift, stats.mean.float())
    torch.testing.assert_close(stats.scale, (stats.var + 1e-8).rsqrt().float())


def test_two_blocks_by_hand():
    # 1, 3 and 8: mean 4, variance (9 + 1 + 16) / 3
    stats = RunningMeanStd()
    stats.update(torch.tensor([1.0, 3.0]))
    assert (stats.mean.item(), stats.var.item(), stats.count.item()) == (2.0, 1.0, 2.0)
    stats.update(torch.tensor([8.0]))
    assert stats.mean.item() == pytest.approx(4.0) and stats.var.item() == pytest.approx(26 / 3) and stats.count == 3
    # standard deviation 2.943920: (13 - 4) / 2.943920 = 3.057148; `rescale` keeps the mean: 13 / 2.943920 = 4.415881
    x = torch.tensor(13.0)
    found = [function(x).item() for function in (stats, stats.standardize, stats.rescale, stats.restore)]
    assert found == pytest.approx([3.057148, 3.057148, 4.415881, 4 + 13 * 2.943920], abs=1e-4)


def test_rescale_keeps_the_sign_and_a_constant_becomes_zero():
    stats = RunningMeanStd((2,), clip=2.0)
    stats.update(torch.tensor([[100.0, 3.0], [102.0, 3.0]]))  # mean 101, deviation 1; mean 3, deviation 0
    x = torch.tensor([[0.5, 3.0], [-0.5, 3.0], [102.5, 3.0], [105.0, 3.0], [-5.0, 3.0]])
    torch.testing.assert_close(stats.rescale(x)[:, 0], torch.tensor([0.5, -0.5, 2.0, 2.0, -2.0]))
    torch.testing.assert_close(stats(x), torch.tensor([[-2.0, 0], [-2.0, 0], [1.5, 0], [2.0, 0], [-2.0, 0]]))
    torch.testing.assert_close(stats.standardize(x)[:, 0], x[:, 0] - 101)  # standardize has no bounds
    torch.testing.assert_close(stats.restore(stats.standardize(x)), x)


@pytest.mark.slow
@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    seed=st.integers(0, 999),
    shape=st.sampled_from([(), (3,), (2, 2)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_blocks_of_any_size_give_the_statistics_of_the_whole(sizes, seed, shape, dtype):
    rows = (5 + 3 * draws(sum(sizes), *shape, seed=seed)).to(dtype)
    stats = RunningMeanStd(shape)
    for block in rows.split(sizes):
        stats.update(block)
    assert_statistics(stats, rows.double())  # merged in float64


def test_a_large_offset_does_not_eat_the_variance():
    # the naive E[x^2] - E[x]^2 would lose the variance: numbers near 1e8^2 have a spacing of 2 in float64
    rows = 1e8 + draws(1000, 2)
    stats = RunningMeanStd((2,))
    for block in rows.split(100):
        stats.update(block)
    torch.testing.assert_close(stats.var, (rows - 1e8).var(0, correction=0), rtol=1e-5, atol=0)


@pytest.mark.parametrize('scale', [1.0, 0.25, 4.0])
@pytest.mark.parametrize('shape', [(), (3,)])
def test_rows_of_weight_zero_enter_no_statistic(scale, shape):
    # the weights scale the other rows to a mean of 1 over the block; a row must still count once
    rows = draws(20, *shape)
    weight = scale * (torch.arange(20) % 3 > 0).float()
    rows[weight == 0] = 1e6
    stats = RunningMeanStd(shape)
    for block, block_weight in zip(rows.split(8), weight.split(8), strict=True):
        stats.update(block, block_weight)
    assert_statistics(stats, rows[weight > 0])


@pytest.mark.parametrize(
    'value, shape', [(torch.nan, ()), (torch.inf, (3,)), (-torch.inf, (2, 2)), (torch.nan, (2, 2))]
)
def test_rows_that_are_not_finite_enter_no_statistic(value, shape):
    rows = draws(20, *shape)
    broken = torch.arange(20) % 7 == 3
    spoilt = rows.clone()
    spoilt.view(20, -1)[broken, 0] = value  # one number spoils the row
    stats = RunningMeanStd(shape)
    for block in spoilt.split(8):
        stats.update(block)
    assert_statistics(stats, rows[~broken])


def test_before_the_first_update_it_is_the_identity_within_the_clip():
    stats, x = RunningMeanStd((3,)), draws(5, 3).float()
    for function in (stats, stats.rescale, stats.standardize, stats.restore):
        assert torch.equal(function(x), x)
    assert stats(torch.tensor([99.0, -99.0, 1.0])).tolist() == [10.0, -10.0, 1.0]


@pytest.mark.parametrize('block, weight', [(torch.full((4, 2), 7.0), torch.zeros(4)), (torch.empty(0, 2), None)])
def test_a_block_of_no_weight_changes_nothing(block, weight):
    fresh, used = RunningMeanStd((2,)), RunningMeanStd((2,))
    used.update(3 + draws(5, 2))
    for stats in (used, fresh):
        before = {name: x.clone() for name, x in stats.state_dict().items()}
        stats.update(block, weight)
        torch.testing.assert_close(dict(stats.state_dict()), before, rtol=1e-15, atol=0)


@pytest.mark.parametrize('lead', [(), (4,), (2, 3)])
def test_forward_takes_any_leading_shape_and_changes_nothing(lead):
    stats = RunningMeanStd((2,))
    stats.update(draws(10, 2))
    x = draws(*lead, 2).float()
    before, state = x.clone(), {name: t.clone() for name, t in stats.state_dict().items()}
    want = ((x.double() - stats.mean) / stats.var.sqrt()).float()
    torch.testing.assert_close(stats(x), want, rtol=1e-5, atol=1e-6)
    assert torch.equal(x, before) and all(torch.equal(t, state[name]) for name, t in stats.state_dict().items())


def test_update_leaves_the_block_alone_and_keeps_no_graph():
    stats, block = RunningMeanStd((2,)), draws(5, 2).requires_grad_()
    before = block.detach().clone()
    stats.update(block, torch.ones(5))
    assert torch.equal(block, before) and not any(t.requires_grad for t in stats.state_dict().values())
    assert stats(block.float()).requires_grad  # the gradient flows through the normalisation itself


def test_state_dict_round_trip_continues_identically():
    one, other = RunningMeanStd((3,)), RunningMeanStd((3,))
    one.update(2 + draws(10, 3))
    other.load_state_dict(one.state_dict())
    block, x = draws(6, 3, seed=1), draws(4, 3, seed=2).float()
    assert torch.equal(one(x), other(x))
    one.update(block)
    other.update(block)
    assert torch.equal(one(x), other(x))
    assert all(torch.equal(t, other.state_dict()[name]) for name, t in one.state_dict().items())


def test_places_of_a_window_are_summed_in_double_precision() -> None:
    stats = WindowMeanStd((2,))
    x = torch.tensor([[2.0**24, 5.0], [1.0, 7.0]])  # float32 has 2^24 and 2^24 + 2, but not their sum 2^24 + 1
    stats.update_places(x, torch.tensor([[True, False], [True, True]]))
    assert stats.mean.tolist() == [2.0**23 + 0.5, 7.0] and stats.var.tolist() == [(2.0**23 - 0.5) ** 2, 0.0]


def test_state_without_counts_of_places_is_loaded_again_and_again() -> None:
    """As where the weights of a resumed older run are sent to its collectors after each round."""
    old = WindowMeanStd((2,))
    old.update_places(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor(True))
    state = {name: x for name, x in old.state_dict().items() if name != 'entry_count'}
    stats = WindowMeanStd((2,))
    for _ in range(2):
        stats.load_state_dict(state)
        assert stats.entry_count is None and stats.mean.tolist() == [2.0, 4.0]
    stats.load_state_dict(old.state_dict())
    assert stats.entry_count is not None and stats.entry_count.tolist() == [2.0, 2.0]
