"""Averages over runs and their intervals, against numbers worked by hand and loops in numpy."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest

from zoo.tools.results.statistics import (
    Stat,
    center,
    improvement_interval,
    interval,
    iqm,
    least_p,
    permutation_p,
    probability_of_improvement,
)

NAN = np.nan


def iqm_by_hand(values: np.ndarray) -> float:
    """Every value 4 times, so that a quarter of them is a whole number: the mean of the middle half."""
    fourfold = np.sort(np.repeat(values, 4))
    return float(fourfold[len(values) : 3 * len(values)].mean())


def test_iqm_of_eight_is_the_mean_of_the_middle_four() -> None:
    assert iqm([1000, 3, 4, 5, 6, 1, 2, -1000]) == pytest.approx((2 + 3 + 4 + 5) / 4)


def test_iqm_of_five_counts_the_quartiles_in_part() -> None:
    # 5/4 = 1.25 values cut from either end: weights 0, .75, 1, .75, 0 -> (.75*20 + 30 + .75*60) / 2.5 = 36
    assert iqm([0, 20, 30, 60, 900]) == pytest.approx(36.0)


@pytest.mark.parametrize('n_run', range(1, 12))
def test_iqm_of_any_number_of_runs_is_that_of_four_copies_of_each(n_run: int) -> None:
    values = np.random.default_rng(n_run).normal(size=(n_run, 3))
    assert iqm(values) == pytest.approx([iqm_by_hand(column) for column in values.T], abs=1e-12)


def test_center_leaves_out_runs_without_a_value() -> None:
    values = [[1, NAN, NAN], [3, 4, NAN], [8, 6, NAN]]
    assert center(values, 'mean').tolist()[:2] == [4, 5] and np.isnan(center(values, 'mean')[2])
    assert center(values, 'median').tolist()[:2] == [3, 5]
    assert center(values, 'iqm')[0] == pytest.approx((0.25 * 1 + 3 + 0.25 * 8) / 1.5)


def test_center_has_the_shape_of_one_run() -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    assert center(values, 'mean').tolist() == values.mean(axis=0).tolist()
    assert center([5.0, 7.0], 'mean') == 6 and center([5.0, 7.0]).shape == ()


def test_center_of_no_run_is_refused() -> None:
    with pytest.raises(ValueError, match=r'must be \[n_run, ...\]'):
        center([])


@pytest.mark.parametrize('stat', get_args(Stat))
def test_interval_is_that_of_a_loop_over_draws(stat: str) -> None:
    values = np.random.default_rng(1).normal(size=(5, 7))
    functions = {'iqm': iqm_by_hand, 'mean': np.mean, 'median': np.median}
    drawn = np.random.default_rng(3).integers(5, size=(300, 5))
    averages = [[functions[stat](values[rows, i]) for i in range(7)] for rows in drawn]
    expected = np.quantile(averages, [0.05, 0.95], axis=0)
    assert np.allclose(interval(values, stat, n_draw=300, level=0.9, seed=3), expected, rtol=0, atol=1e-12)


def test_interval_of_columns_in_portions_is_that_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).normal(size=(4, 9))
    values[0, 5:] = NAN  # two kinds of columns
    whole = interval(values, n_draw=50)
    monkeypatch.setattr('zoo.tools.results.statistics.N_AT_ONCE', 400)  # 2 columns of 50 x 4 at a time
    assert np.array_equal(interval(values, n_draw=50), whole)
    assert [float(interval(values[:, i], n_draw=50)[0]) for i in range(9)] == whole[0].tolist()


def test_interval_of_two_runs_reaches_from_one_to_the_other() -> None:
    # all draws of (0, 10) have the means 0, 5 or 10 with probabilities 1/4, 1/2, 1/4: the ends are 0 and 10
    assert interval([0.0, 10.0], 'mean') == (0, 10)


def test_interval_without_spread_or_with_one_run_has_no_width() -> None:
    assert interval([5.0, 5.0, 5.0], n_draw=50) == (5, 5)
    low, high = interval([[5.0, NAN], [NAN, NAN]], n_draw=50)
    assert (low[0], high[0]) == (5, 5) and np.isnan([low[1], high[1]]).all()


def test_interval_of_many_runs_matches_the_normal_approximation() -> None:
    # the mean of the middle half of n normal values has the variance 1.19/n (efficiency 0.84), n = 400:
    # half width 1.96 * sqrt(1.19) / 20 = 0.107; one sample and 2,000 draws estimate it to some 5%, so 15% is safe
    low, high = interval(np.random.default_rng(0).normal(size=400), n_draw=2_000)
    assert (high - low) / 2 == pytest.approx(0.107, rel=0.15)


def test_probability_of_improvement_counts_pairs_and_half_of_ties() -> None:
    # 3 beats 1 and 2, ties 3; 1 ties 1, loses twice: (2 + .5 + .5) / 6
    assert probability_of_improvement([3, 1], [1, 2, 3]) == pytest.approx(0.5)
    assert probability_of_improvement([5], [1, 2]) == 1 and probability_of_improvement([0], [1, 2]) == 0


def test_improvement_interval_draws_runs_of_both_sides() -> None:
    # a = (1, 3) against b = (2): a draw has 0, 1 or 2 runs of 3 with probabilities 1/4, 1/2, 1/4: from 0 to 1
    assert improvement_interval([1, 3], [2]) == (0, 1) == improvement_interval([2], [1, 3])
    assert improvement_interval([5, 6], [1, 2]) == (1, 1)


def test_permutation_p_counts_the_ways_to_part_the_runs() -> None:
    assert permutation_p([4, 5, 6], [1, 2, 3]) == permutation_p([1, 2, 3], [4, 5, 6]) == 2 / 20 == least_p(3, 3)
    assert permutation_p([1, 1], [1, 1]) == 1 and least_p(1, 1) == 1
    # 3 beats 1 and 2, 2.5 too; 1.5 beats 1: 5 of 6. The ways of 3 of {1, 1.5, 2, 2.5, 3}: ranks 1 to 5, sums 6 to 12 about 9;
    # the sum is 2 + 4 + 5 = 11, and 6, 7, 11, 12 of the 10 are as far from 9 or farther, one each
    assert permutation_p([3, 2.5, 1.5], [1, 2]) == 4 / 10


def test_permutation_p_of_many_runs_is_near_the_normal_approximation() -> None:
    # of 20 against 20, the pairs that a wins have the mean 200 and the variance 20 * 20 * 41 / 12 = 36.97^2;
    # a step of one pair moves p by some .005, and 20,000 draws have the standard error .002
    a, b = np.arange(20) + 3.4, np.arange(20)
    n_won = sum(x > y for x in a for y in b)
    assert permutation_p(a, b) == pytest.approx(math.erfc((n_won - 200) / 36.97 / math.sqrt(2)), abs=0.01)


@pytest.mark.parametrize(
    ('wrong', 'words'),
    [
        (lambda: iqm([]), 'iqm got no number'),
        (lambda: iqm([1.0, NAN]), '1 NaN of 2 numbers'),
        (lambda: iqm([1.0, np.inf]), '1 infinite of 2 numbers'),
        (lambda: center([1.0, -np.inf, 2.0]), 'values hold 1 infinite of 3 numbers'),
        (lambda: interval([[1.0, np.inf]]), 'values hold 1 infinite of 2 numbers'),
        (lambda: interval([]), r'must be \[n_run, ...\]'),
        (lambda: interval([1.0], level=1.0), 'level 1.0'),
        (lambda: interval([1.0], n_draw=0), 'n_draw is 0'),
        (lambda: probability_of_improvement([], [1.0]), 'a has no number'),
        (lambda: probability_of_improvement([1.0], [NAN, 2.0]), 'b has 1 NaN of 2 numbers'),
        (lambda: probability_of_improvement([[1.0]], [2.0]), r'a has the shape \[1, 1\]'),
        (lambda: improvement_interval([1.0], []), 'b has no number'),
        (lambda: improvement_interval([1.0], [2.0], level=95), 'level 95'),
    ],
)
@pytest.mark.filterwarnings('error')
def test_numbers_that_have_no_average_are_refused_in_one_sentence(wrong: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        wrong()
    assert '; ' in str(caught.value) or 'must be' in str(caught.value)
    assert '\n' not in str(caught.value)


def test_infinite_runs_can_be_higher() -> None:
    assert probability_of_improvement([np.inf, np.inf], [np.inf, 1.0]) == 0.75  # two wins and two ties
