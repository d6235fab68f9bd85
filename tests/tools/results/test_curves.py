"""Curves on one grid, against points worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.real_runs import made_run
from zoo.tools.results.statistics import band, curve_points, curves_on_grid

METRIC = 'eval/return_mean'
NAN = np.nan


def test_curves_meet_at_the_points_of_all_runs_without_values_outside_of_each() -> None:
    grid = curves_on_grid([made_run([0, 10, 20], [0, 100, 50]), made_run([5, 15], [7, 9])], METRIC)
    assert grid.steps.tolist() == [0, 5, 10, 15, 16, 20]  # 16: where the second has ended
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
    # killed after step 40, continued from a checkpoint of step 20; an evaluation and a line of training share step 50
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
    # gaps of some 2,500: ends at 4,950 to 4,967 are one end, that of the first run to get there
    runs = [made_run([at, 2_500 + at, 4_950 + at], [1, 2, 3]) for at in (0, 11, 17)]
    curve = band(runs, METRIC)
    assert curve.steps[[0, -1]].tolist() == [17, 4_950] and set(curve.n_run) == {3}


def test_band_goes_on_with_fewer_runs_after_the_end_of_one() -> None:
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
    assert set(curve.n_run) == {2} and curve.center[-1] == 8.5 and curve.n_kept == 1
    ended = band(runs, 'learn/entropy', stat='mean')
    assert (
        ended.n_run[-1] == 1 and ended.center[-1] == 9 and ended.n_kept == 0
    )  # an optimiser that has stopped has none


def test_band_counts_runs_without_the_metric_apart() -> None:
    curve = band([made_run([1, 2], [3, 4]), made_run([1, 2], [5, 6], metric='other')], METRIC)
    assert (curve.n_with, curve.n_without) == (1, 1) and curve.center.tolist() == [3, 4]
    nothing = band([made_run([], [])], METRIC)
    assert (nothing.n_with, nothing.n_without) == (0, 1) and not len(nothing.steps) and nothing.parts() == []


def test_band_of_runs_with_one_point_each_is_one_point() -> None:
    # evaluated once, at slightly different steps: one average of all runs, whose interval reaches from 1 to 3
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
