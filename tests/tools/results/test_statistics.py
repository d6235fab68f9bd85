"""Averages over runs, their intervals and curves, against numbers worked by hand and loops in numpy."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest

from tests.real_runs import made_run
from zoo.tools.results.statistics import (
    Stat,
    band,
    center,
    curve_points,
    curves_on_grid,
    improvement_interval,
    interval,
    iqm,
    least_p,
    permutation_p,
    probability_of_improvement,
)

NAN = np.nan


def iqm_by_hand(values: np.ndarray) -> float:
    """The mean of the middle half of 4 copies of each value, of which a quarter is a whole number."""
    fourfold = np.sort(np.repeat(values, 4))
    return float(fourfold[len(values) : 3 * len(values)].mean())


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
    values[0, 5:] = NAN  # some columns lack a value
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
    # 3 wins against 1 and 2 and ties with 3; 1 ties with 1 and loses twice: (2 + .5 + .5) / 6
    assert probability_of_improvement([3, 1], [1, 2, 3]) == pytest.approx(0.5)
    assert probability_of_improvement([5], [1, 2]) == 1 and probability_of_improvement([0], [1, 2]) == 0


@pytest.mark.slow
def test_improvement_interval_draws_runs_of_both_sides() -> None:
    # a = (1, 3) against b = (2): a draw has the 3 never, once or twice with probabilities 1/4, 1/2, 1/4: from 0 to 1
    assert improvement_interval([1, 3], [2]) == (0, 1) == improvement_interval([2], [1, 3])
    assert improvement_interval([5, 6], [1, 2]) == (1, 1)


def test_permutation_p_counts_the_ways_to_part_the_runs() -> None:
    assert permutation_p([4, 5, 6], [1, 2, 3]) == permutation_p([1, 2, 3], [4, 5, 6]) == 2 / 20 == least_p(3, 3)
    assert permutation_p([1, 1], [1, 1]) == 1 and least_p(1, 1) == 1
    # a wins 5 of 6 pairs (1.5 loses to 2); its ranks are 2, 4, 5, with the sum 11. The 10 ways to choose 3 of the ranks 1 to 5
    # have sums from 6 to 12 with the mean 9; 6, 7, 11 and 12 are at least as far from 9 as 11, and each occurs once
    assert permutation_p([3, 2.5, 1.5], [1, 2]) == 4 / 10


def test_permutation_p_of_many_runs_is_near_the_normal_approximation() -> None:
    # for 20 against 20 runs, the number of pairs that a wins has the mean 200 and the variance 20 * 20 * 41 / 12 = 36.97^2;
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


METRIC = 'eval/return_mean'


def test_curves_meet_at_the_points_of_all_runs_without_values_outside_of_each() -> None:
    grid = curves_on_grid([made_run([0, 10, 20], [0, 100, 50]), made_run([5, 15], [7, 9])], METRIC)
    assert grid.steps.tolist() == [0, 5, 10, 15, 16, 20]  # 16: just after the end of the second
    assert grid.values[0].tolist() == [0, 50, 100, 75, 70, 50]
    assert np.array_equal(grid.values[1], [NAN, 7, 8, 9, NAN, NAN], equal_nan=True)


def test_curves_of_many_points_are_on_an_even_grid_from_the_first_to_the_last() -> None:
    grid = curves_on_grid([made_run([0, 3, 5, 8], [0, 3, 5, 8]), made_run([2, 10], [4, 20])], METRIC, n_point=6)
    assert grid.steps.tolist() == [0, 2, 4, 6, 8, 10]
    assert np.array_equal(grid.values, [[0, 2, 4, 6, 8, NAN], [NAN, 4, 8, 12, 16, 20]], equal_nan=True)


@pytest.mark.parametrize('n_point', [5, 50, 5_000])
def test_no_run_has_values_before_its_first_or_after_its_last_point(n_point: int) -> None:
    rng = np.random.default_rng(0)
    runs = [made_run(np.sort(rng.choice(1_000, 40, replace=False)), rng.normal(size=40)) for _ in range(6)]
    grid = curves_on_grid(runs, METRIC, n_point)
    for run, row in zip(runs, grid.values, strict=True):
        first, last = run.columns['env_step'][[0, -1]]
        assert np.array_equal(~np.isnan(row), (grid.steps >= first) & (grid.steps <= last))


def test_points_at_steps_below_0_which_no_run_has_are_left_out() -> None:
    at, values = curve_points(made_run([-5, 10, 20], [7, 8, 9]), METRIC)
    assert at.tolist() == [10, 20] and values.tolist() == [8, 9]


def test_steps_that_a_continued_run_did_again_count_once_as_it_did_them_last() -> None:
    # killed after step 40, continued from a checkpoint at step 20; an evaluation and a training line are both at step 50
    steps, values = curve_points(made_run([10, 20, 30, 40, 25, 35, 50, 50], [1, 2, 3, 4, 5, 6, 7, 8]), METRIC)
    assert steps.tolist() == [10, 20, 25, 35, 50] and values.tolist() == [1, 2, 5, 6, 8]


def test_values_that_are_missing_or_not_finite_are_no_points() -> None:
    steps, values = curve_points(made_run([1, 2, 3, 4], [NAN, 5, np.inf, 7]), METRIC)
    assert steps.tolist() == [2, 4] and values.tolist() == [5, 7]
    assert len(curve_points(made_run([1], [2]), 'eval/length')[0]) == 0


def test_curves_over_wall_time_have_seconds_on_the_grid() -> None:
    run = made_run([1_000, 2_000], [3, 5])
    run.columns['wall_s'] = np.array([0.5, 1.5])
    assert curves_on_grid([run], METRIC, x='wall_s').steps.tolist() == [0.5, 1.5]


def test_band_has_no_ragged_ends_where_runs_evaluate_at_slightly_different_steps() -> None:
    # there are some 2,500 steps between evaluations, so 4,950 to 4,967 count as one end: that of the first run to reach it
    runs = [made_run([at, 2_500 + at, 4_950 + at], [1, 2, 3]) for at in (0, 11, 17)]
    curve = band(runs, METRIC)
    assert curve.steps[[0, -1]].tolist() == [17, 4_950] and set(curve.n_run) == {3}


def test_band_of_steps_so_large_that_half_a_gap_is_rounded_off_has_the_last_of_them() -> None:
    curve = band([made_run([0, 10, 20, 30, 2**63], [1, 2, 3, 4, 5])], METRIC)
    assert curve.steps[[0, -1]].tolist() == [0, 2**63]


def test_band_continues_with_fewer_runs_after_the_end_of_one() -> None:
    runs = [made_run([0, 10, 20, 30, 40], [1, 1, 1, 1, 1]), made_run([0, 10, 20], [3, 3, 3])]
    curve = band(runs, METRIC, stat='mean')
    assert [(curve.steps[part].tolist(), n) for part, n in curve.parts()] == [([0, 10, 20], 2), ([21, 30, 40], 1)]
    assert curve.center.tolist() == [2, 2, 2, 1, 1, 1]
    assert curve.low.tolist() == [1, 1, 1, 1, 1, 1] and curve.high.tolist() == [3, 3, 3, 1, 1, 1]


def test_band_keeps_what_reached_stop_value_where_the_policy_is_measured_alone() -> None:
    runs = [made_run([10, 20, 30, 40], [1, 2, 3, 9]), made_run([11, 21], [5, 8])]
    for run in runs:
        run.config['policy']['eval'] = {'stop_value': 8.0}
        run.columns['learn/entropy'] = run.columns[METRIC]
    curve = band(runs, METRIC, stat='mean')
    assert set(curve.n_run) == {2} and curve.center[-1] == 8.5 and curve.n_kept == 2
    ended = band(runs, 'learn/entropy', stat='mean')
    assert (
        ended.n_run[-1] == 1 and ended.center[-1] == 9 and ended.n_kept == 0
    )  # after its end a run has no entropy to keep


def test_band_counts_runs_without_the_metric_separately() -> None:
    curve = band([made_run([1, 2], [3, 4]), made_run([1, 2], [5, 6], metric='other')], METRIC)
    assert (curve.n_with, curve.n_without) == (1, 1) and curve.center.tolist() == [3, 4]
    nothing = band([made_run([], [])], METRIC)
    assert (nothing.n_with, nothing.n_without) == (0, 1) and not len(nothing.steps) and nothing.parts() == []


def test_band_of_runs_with_one_point_each_is_one_point() -> None:
    # runs evaluated once, at slightly different steps, give one average, whose interval reaches from 1 to 3
    curve = band(
        [made_run([4_950], [1]), made_run([4_967], [3]), made_run([1], [2], metric='other')], METRIC, stat='mean'
    )
    assert (curve.steps.tolist(), curve.n_run.tolist(), curve.n_without) == ([4_967], [2], 1)
    assert (curve.center.tolist(), curve.low.tolist(), curve.high.tolist()) == ([2], [1], [3])


def test_band_has_a_gap_between_single_points_far_from_each_other() -> None:
    curve = band([made_run([10], [1]), made_run([100], [3])], METRIC)
    assert curve.steps.tolist() == [10, 11, 100] and curve.n_run.tolist() == [1, 0, 1]
    assert np.array_equal(curve.center, [1, NAN, 3], equal_nan=True)


def test_run_that_ended_an_evaluation_earlier_does_not_cut_the_others() -> None:
    """Runs of cartpole_ppo end when they are solved: at 20k, 30k, 30k, 40k and 40k env steps, evaluated every 10k."""
    ends = [(10_055, 20_270), (10_061, 20_259, 30_457), (10_060, 20_263, 30_489)]
    ends += [(10_050, 20_250, 30_450, 40_663), (10_058, 20_261, 30_460, 40_670)]
    runs = [made_run(steps, [500.0] * len(steps), seed=k) for k, steps in enumerate(ends)]
    found = band(runs, 'eval/return_mean')
    assert found.steps[-1] == 40_663 and found.n_run[-1] == 2
