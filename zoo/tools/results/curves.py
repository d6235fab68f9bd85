"""Curves of several runs on one grid of steps, so that they can be averaged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from zoo.tools.results.read import Run
from zoo.tools.results.statistics import Stat, center, interval

Axis = Literal['env_step', 'wall_s']
N_POINT = 400
NEXT: dict[Axis, float] = {'env_step': 1, 'wall_s': 0.001}  # the smallest distance that a log has


class Grid(NamedTuple):
    """Curves of runs at the same steps.

    steps: [n], rising, in env steps or seconds; values: [n_run, n], NaN before the first and after the last point of a run.
    """

    steps: np.ndarray
    values: np.ndarray


class Band(NamedTuple):
    """The average of the curves of runs.

    steps: [n], rising; center, low, high: [n], the average and its 95% interval, NaN where no run has a value, between runs
    that do not overlap; n_run: [n], runs that have a value there.
    n_with, n_without: runs that have the metric at all, and that have not.
    """

    steps: np.ndarray
    center: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n_run: np.ndarray
    n_with: int
    n_without: int

    def parts(self) -> list[tuple[slice, int]]:
        """Stretches of steps with the same number of runs, and that number."""
        starts = [0, *(np.flatnonzero(np.diff(self.n_run)) + 1), len(self.steps)] if len(self.steps) else []
        return [(slice(a, b), int(self.n_run[a])) for a, b in pairwise(starts)]


def curves_on_grid(runs: Sequence[Run], metric: str, n_point: int = N_POINT, x: Axis = 'env_step') -> Grid:
    """The curves of a metric at the same steps: straight lines between the points of a run, nothing outside of them.

    The steps are those of all points of all runs, so that no point is lost, and the next one after the end of each run,
    where the others are without it. If they are more than n_point, they are n_point evenly spaced ones from the first to the
    last. A run without the metric has a row of NaN.
    """
    points = [curve_points(run, metric, x) for run in runs]
    steps = np.unique(np.concatenate([np.append(at, at[-1:] + NEXT[x]) for at, _ in points] or [np.empty(0)]))
    steps = steps[steps <= max((at[-1] for at, _ in points if len(at)), default=0)]
    if len(steps) > n_point:
        steps = np.linspace(steps[0], steps[-1], n_point)
    values = np.full((len(points), len(steps)), np.nan)
    for row, (at, value) in zip(values, points, strict=True):
        if len(at):
            row[:] = np.interp(steps, at, value, left=np.nan, right=np.nan)
    return Grid(steps, values)


def curve_points(run: Run, metric: str, x: Axis = 'env_step') -> tuple[np.ndarray, np.ndarray]:
    """The points of a run: steps, strictly rising, and finite values.

    A run that was continued from an older checkpoint has steps twice: what it did last holds.
    """
    steps, values = run.columns[x], run.columns.get(metric)
    if values is None:
        return np.empty(0), np.empty(0)
    known = np.isfinite(steps) & np.isfinite(values)
    steps, values = steps[known], values[known]
    later = np.minimum.accumulate(np.append(steps, np.inf)[::-1])[::-1][1:]  # the lowest step of all lines that follow
    return steps[steps < later], values[steps < later]


def band(runs: Sequence[Run], metric: str, x: Axis = 'env_step', stat: Stat = 'iqm', n_point: int = N_POINT) -> Band:
    """The average of the curves of runs at each step of their grid, with its interval.

    Runs with a single point each, at about one step, are averaged at the last of these steps.
    """
    grid = _joined_points(curves_on_grid(runs, metric, n_point, x), [curve_points(run, metric, x) for run in runs])
    has_metric = ~np.isnan(grid.values).all(axis=1)
    kept = _without_ragged_ends([curve_points(run, metric, x)[0] for run in runs], grid.steps)
    steps, values = grid.steps[kept], grid.values[:, kept]
    return Band(
        steps,
        center(values, stat),
        *interval(values, stat),
        n_run=np.sum(~np.isnan(values), axis=0),
        n_with=int(has_metric.sum()),
        n_without=int((~has_metric).sum()),
    )


def _joined_points(grid: Grid, points: Sequence[tuple[np.ndarray, np.ndarray]]) -> Grid:
    """One step in place of several, if all runs have a single point and these lie within half of the first one's step.

    That is their distance to the step 0: with one point, a run has no other gap.
    """
    lengths = {len(at) for at, _ in points}
    steps = np.array([at[0] for at, _ in points if len(at)])
    if max(lengths, default=0) != 1 or steps.max() - steps.min() >= steps.min() / 2:
        return grid
    values = np.array([value if len(value) else [np.nan] for _, value in points])
    return Grid(steps.max(keepdims=True), values)


def _without_ragged_ends(points: Sequence[np.ndarray], steps: np.ndarray) -> np.ndarray:
    """Which steps to keep, [n] bool: not those before the first or after the last point of a run by less than half a gap.

    Runs evaluate at slightly different steps, e.g. 4950, 4961 and 4967: between the ends of the first and the last of them
    the average would be one of ever fewer runs. A gap is the median distance of two points that follow each other in a run.
    """
    points = [at for at in points if len(at)]
    gaps = np.concatenate([np.diff(at) for at in points]) if points else np.empty(0)
    if not len(gaps):
        return np.ones(len(steps), dtype=bool)
    near, first, last = np.median(gaps) / 2, np.array([at[0] for at in points]), np.array([at[-1] for at in points])
    return (steps >= first[first < first.min() + near].max()) & (steps <= last[last > last.max() - near].min())
