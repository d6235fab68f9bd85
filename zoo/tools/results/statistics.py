"""Statistics over runs: averages, their intervals under other seeds, and curves of several runs on one grid of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from zoo.core.errors import UserError
from zoo.tools.results.read import Run

Stat = Literal['iqm', 'mean', 'median']
WORDS: dict[Stat, str] = {'iqm': 'interquartile mean', 'mean': 'mean', 'median': 'median'}

# of the bootstrap: draws, share of them inside the interval, seed
N_DRAW = 5_000
LEVEL = 0.95
SEED = 0
N_AT_ONCE = 1 << 22  # numbers drawn at a time: 32 MB
N_SPLIT = 200_000  # most ways to split runs that are all counted: 10 against 10 have 184,756


def iqm(values: ArrayLike, axis: int = 0) -> np.ndarray:
    """Interquartile mean: the mean of the middle half of the values; values at the quartiles have a partial weight.

    Of n sorted values, n/4 (with its fraction) are cut from each end: for 5 values the weights are 0, 0.75, 1, 0.75, 0.
    One outlier in five runs does not move it, and it varies less than the median.
    Raises: UserError for no value, NaN or an infinite number; `center` leaves NaN out.
    Source: Agarwal et al. 2021, arXiv:2108.13264, sec. 4.3. Departs: fractions instead of rounding down, for few runs.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=axis)
    if not ordered.size or not np.isfinite(ordered).all():
        raise UserError(
            f'iqm got {_kind(ordered)} but averages finite numbers, one or more; `center` leaves out runs of NaN'
        )
    n = ordered.shape[axis]
    position = np.arange(n)
    weight = np.clip(np.minimum(position + 1, 3 * n / 4) - np.maximum(position, n / 4), 0, None)
    return np.average(ordered, axis=axis, weights=weight)


_FUNCTIONS: dict[Stat, Callable[..., Any]] = {'iqm': iqm, 'mean': np.mean, 'median': np.median}


def center(values: ArrayLike, stat: Stat = 'iqm') -> np.ndarray:
    """Returns the average of runs.

    Args: values: [n_run, ...]; NaN means that the run has no value there: the others are averaged.
    Returns: [...], NaN where no run has a value. Raises: UserError for no run, or an infinite number.
    """
    columns, shape = _columns(values)
    found = np.full(columns.shape[1], np.nan)
    for where, present in _columns_by_runs(columns):
        found[where] = _FUNCTIONS[stat](present, axis=0)
    return found.reshape(shape)


def interval(
    values: ArrayLike, stat: Stat = 'iqm', *, n_draw: int = N_DRAW, level: float = LEVEL, seed: int = SEED
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap interval of an average of runs: with other seeds it would lie there in `level` of all cases.

    Each draw takes as many whole runs as there are, with replacement, and averages them. With fewer than about 10 runs the
    interval is rough; with one run it has no width.
    Args: values: [n_run, ...], NaN as for `center`; level: in (0, 1); seed: the same seed gives the same interval.
    Returns: lower and upper ends, each [...], NaN as for `center`. Raises: UserError for no run, an infinite number, a level
      outside of (0, 1), or n_draw below 1.
    Source: Agarwal et al. 2021, arXiv:2108.13264, sec. 4.1.
    """
    _check_draws(n_draw, level)
    columns, shape = _columns(values)
    low, high = np.full((2, columns.shape[1]), np.nan)
    for where, present in _columns_by_runs(columns):
        # [n_draw, n_run], which runs each draw takes
        drawn = np.random.default_rng(seed).integers(len(present), size=(n_draw, len(present)))
        n_column = max(1, N_AT_ONCE // drawn.size)
        for at in range(0, len(where), n_column):
            part = where[at : at + n_column]
            averages = _FUNCTIONS[stat](present[drawn, at : at + n_column], axis=1)  # [n_draw, n_run, n] -> [n_draw, n]
            low[part], high[part] = np.quantile(averages, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low.reshape(shape), high.reshape(shape)


def probability_of_improvement(a: Sequence[float], b: Sequence[float]) -> float:
    """Chance that a run of `a` is higher than one of `b`: the share of such pairs, a tie counted as half a pair.

    Args: a, b: [n_run] each. Raises: UserError for no run, or NaN: leave out runs without a value.
    Source: Agarwal et al. 2021, arXiv:2108.13264, sec. 4.3.
    """
    return float(_wins(a, b).mean())


def improvement_interval(
    a: Sequence[float], b: Sequence[float], *, n_draw: int = N_DRAW, level: float = LEVEL, seed: int = SEED
) -> tuple[float, float]:
    """Percentile bootstrap of `probability_of_improvement`: draws runs of both sides. Args, Raises: as `interval`."""
    _check_draws(n_draw, level)
    wins = _wins(a, b)
    rng = np.random.default_rng(seed)
    rows, cols = (rng.integers(n, size=(n_draw, n)) for n in wins.shape)
    shares = [wins[np.ix_(row, col)].mean() for row, col in zip(rows, cols, strict=True)]
    low, high = np.quantile(shares, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def permutation_p(a: Sequence[float], b: Sequence[float], *, n_draw: int = 20_000, seed: int = SEED) -> float:
    """Two-sided p value: how often chance alone gives such a `probability_of_improvement`, or one farther from 0.5.

    It is a share of all ways to split the runs into two sides of these sizes, or of n_draw random ways if there are more
    than N_SPLIT. 3 runs against 3 have 20 ways: p is 0.1 or more, see `least_p`.
    Args, Raises: as `probability_of_improvement`.
    Source: the rank-sum test, Mann and Whitney 1947, with the exact distribution under permutation, ties included.
    """
    n = len(_wins(a, b))
    n_all = len(a) + len(b)
    pooled = np.concatenate([np.asarray(x, dtype=np.float64) for x in (a, b)])
    ranks = _wins(pooled, pooled).sum(axis=1)  # one side's sum is its wins over the other, and n^2 / 2 among themselves
    if math.comb(n_all, n) <= N_SPLIT:
        sums = ranks[np.array(list(combinations(range(n_all), n)))].sum(axis=1)
        n_more = 0
    else:
        rng = np.random.default_rng(seed)
        # and this split
        sums = np.array([ranks[rng.permutation(n_all)[:n]].sum() for _ in range(n_draw)])
        n_more = 1
    middle = n * n_all / 2
    n_far = int(np.sum(np.abs(sums - middle) >= abs(ranks[:n].sum() - middle) - 1e-9))
    return (n_far + n_more) / (len(sums) + n_more)


def least_p(n_a: int, n_b: int) -> float:
    """Returns the lowest possible `permutation_p` for these numbers of runs: one side has all the higher runs."""
    return min(1.0, 2 / math.comb(n_a + n_b, n_a))


def _columns(values: ArrayLike) -> tuple[np.ndarray, tuple[int, ...]]:
    """Reshapes [n_run, ...] to [n_run, n]; also returns the shape of results. Raises: UserError for no run or infinity."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0 or len(array) == 0:
        raise UserError(f'values have the shape {array.shape} but must be [n_run, ...] with one run or more')
    if np.isinf(array).any():
        raise UserError(
            f'values hold {_kind(array)} but must be finite numbers, or NaN for a run that is to be left out; change them to NaN'
        )
    return array.reshape(len(array), -1), array.shape[1:]


def _check_draws(n_draw: int, level: float) -> None:
    if n_draw < 1 or not 0 < level < 1:
        raise UserError(f'n_draw is {n_draw} and level {level} but they must be >= 1 and in (0, 1); e.g. 5000 and 0.95')


def _kind(array: np.ndarray) -> str:
    """Returns a phrase that says what is wrong with an array that is empty or not finite."""
    if not array.size:
        return 'no number'
    n_nan = int(np.isnan(array).sum())
    n_inf = int(np.isinf(array).sum())
    if n_inf:
        return f'{n_inf} infinite of {array.size} numbers'
    return f'{n_nan} NaN of {array.size} numbers'


def _columns_by_runs(columns: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields indices of columns in which the same runs have values, and these values; omits columns without values."""
    has_value, kind = np.unique(~np.isnan(columns), axis=1, return_inverse=True)
    for i in range(has_value.shape[1]):
        if has_value[:, i].any():
            where = np.flatnonzero(kind.ravel() == i)
            yield where, columns[np.ix_(has_value[:, i], where)]


def _wins(a: ArrayLike, b: ArrayLike) -> np.ndarray:
    """Compares all pairs, [len(a), len(b)]: 1 where a is higher, 1/2 where both are equal."""
    runs, others = (np.asarray(x, dtype=np.float64) for x in (a, b))
    for name, x in (('a', runs), ('b', others)):
        if x.ndim != 1 or not len(x) or np.isnan(x).any():
            if x.ndim != 1:
                problem = f'the shape {list(x.shape)}'
            else:
                problem = _kind(x)
            raise UserError(
                f'{name} has {problem} but must be [n_run] numbers, one or more; leave out runs without a value'
            )
    return np.greater.outer(runs, others) + 0.5 * np.equal.outer(runs, others)


Axis = Literal['env_step', 'wall_s']
N_POINT = 400
N_MARK = 30  # most points of a run that are marked
NEXT: dict[Axis, float] = {'env_step': 1, 'wall_s': 0.001}  # the smallest distance in a log


class Grid(NamedTuple):
    """Curves of runs at the same steps.

    steps: [n], rising, in env steps or seconds; values: [n_run, n], NaN before the first and after the last point of a run;
    a run that keeps its last value has no NaN after its end.
    """

    steps: np.ndarray
    values: np.ndarray


class Band(NamedTuple):
    """The average of the curves of runs.

    steps: [n], rising; center, low, high: [n], the average and its 95% interval, NaN where no run has a value (between runs
    that do not overlap); n_run: [n], number of runs that have a value there.
    n_with, n_without: runs with and without the metric; n_kept: runs that keep their last value after their end, 0 if all
    others end before them; marked: [n], the points of the run with the most of them, none if it has more than N_MARK.
    """

    steps: np.ndarray
    center: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n_run: np.ndarray
    n_with: int
    n_without: int
    n_kept: int = 0
    marked: np.ndarray = np.zeros(0, dtype=bool)

    def parts(self) -> list[tuple[slice, int]]:
        """Returns stretches of steps with the same number of runs, and that number."""
        starts = []
        if len(self.steps):
            starts = [0, *(np.flatnonzero(np.diff(self.n_run)) + 1), len(self.steps)]
        return [(slice(a, b), int(self.n_run[a])) for a, b in pairwise(starts)]


def curves_on_grid(runs: Sequence[Run], metric: str, n_point: int = N_POINT, x: Axis = 'env_step') -> Grid:
    """Interpolates the curves of a metric at common steps: linear between the points of a run, NaN outside of them.

    A run keeps its last value in evaluations and episodes after its end, because its policy no longer changes: over env steps if
    it reached its stop_value, over wall time if it is done.
    The steps are those of all points of all runs, so that no point is lost, and the next step after the end of each run,
    where that run is missing. If there are more than n_point, they are n_point evenly spaced ones from the first to the
    last. A run without the metric has a row of NaN.
    """
    points = [curve_points(run, metric, x) for run in runs]
    kept = keep_last(runs, metric, x)
    ends = [at[-1:] + NEXT[x] for (at, _), keeps in zip(points, kept, strict=True) if not keeps]
    steps = np.unique(np.concatenate([*(at for at, _ in points), *ends, np.empty(0)]))
    steps = steps[steps <= max((at[-1] for at, _ in points if len(at)), default=0)]
    if len(steps) > n_point:
        steps = np.linspace(steps[0], steps[-1], n_point)
    values = np.full((len(points), len(steps)), np.nan)
    for row, (at, value), keeps in zip(values, points, kept, strict=True):
        if len(at):
            row[:] = np.interp(steps, at, value, left=np.nan, right=value[-1] if keeps else np.nan)
    return Grid(steps, values)


def keep_last(runs: Sequence[Run], metric: str, x: Axis = 'env_step') -> list[bool]:
    """Returns for each run whether it keeps its last value of a metric after its end, see `curves_on_grid`."""
    is_of_policy = metric.startswith(('eval/', 'collect/'))
    return [is_of_policy and (run.state == 'done' if x == 'wall_s' else run.is_solved) for run in runs]


def curve_points(run: Run, metric: str, x: Axis = 'env_step') -> tuple[np.ndarray, np.ndarray]:
    """Returns the points of a run: strictly rising steps, and finite values.

    A run that was continued from an older checkpoint has steps twice: the later ones count.
    """
    steps = run.columns[x]
    values = run.columns.get(metric)
    if values is None:
        return np.empty(0), np.empty(0)
    known = np.isfinite(steps) & np.isfinite(values) & (steps >= 0)
    steps = steps[known]
    values = values[known]
    later = np.minimum.accumulate(np.append(steps, np.inf)[::-1])[::-1][1:]  # the lowest step of all lines that follow
    return steps[steps < later], values[steps < later]


def band(runs: Sequence[Run], metric: str, x: Axis = 'env_step', stat: Stat = 'iqm', n_point: int = N_POINT) -> Band:
    """Averages the curves of runs at each step of their grid, with an interval.

    Over wall time it begins when all runs have a value, and ends when the first run ends that does not keep its last one.
    If each run has a single point, all at about the same step, they are averaged at the last of these steps.
    """
    points = [curve_points(run, metric, x) for run in runs]
    keeps = keep_last(runs, metric, x)
    grid = _joined_points(curves_on_grid(runs, metric, n_point, x), points)
    has_metric = ~np.isnan(grid.values).all(axis=1)
    known = [at for at, _ in points if len(at)]
    ends = [grid.steps[-1] if keep else at[-1] for (at, _), keep in zip(points, keeps, strict=True) if len(at)]
    kept = _without_ragged_ends(known, np.array(ends), grid.steps)
    if x == 'wall_s' and known:
        shared = (grid.steps >= max(at[0] for at in known)) & (grid.steps <= min(ends))
        if shared.any():
            kept = shared
    steps = grid.steps[kept]
    values = grid.values[:, kept]
    n_early = sum(at[-1] < end for at, end in zip(known, ends, strict=True))
    n_kept = sum(keep for (at, _), keep in zip(points, keeps, strict=True) if len(at))
    return Band(
        steps,
        center(values, stat),
        *interval(values, stat),
        n_run=np.sum(~np.isnan(values), axis=0),
        n_with=int(has_metric.sum()),
        n_without=int((~has_metric).sum()),
        n_kept=n_kept if n_early else 0,
        marked=_marked(known, steps),
    )


def _marked(points: Sequence[np.ndarray], steps: np.ndarray) -> np.ndarray:
    """Returns the steps to mark, [n] bool: those nearest to the points of the run with the most of them."""
    found = np.zeros(len(steps), dtype=bool)
    longest = max(points, key=len, default=np.empty(0))
    if len(steps) and len(longest) <= N_MARK:
        found[np.abs(steps[:, None] - longest).argmin(axis=0)] = True
    return found


def _joined_points(grid: Grid, points: Sequence[tuple[np.ndarray, np.ndarray]]) -> Grid:
    """Joins the points at one step if each run has a single point and their distance is below half of the first step.

    A gap between two points is not known here; the first step, its distance to step 0, replaces it.
    """
    lengths = {len(at) for at, _ in points}
    steps = np.array([at[0] for at, _ in points if len(at)])
    if max(lengths, default=0) != 1 or steps.max() - steps.min() >= steps.min() / 2:
        return grid
    values = np.array([value if len(value) else [np.nan] for _, value in points])
    return Grid(steps.max(keepdims=True), values)


def _without_ragged_ends(points: Sequence[np.ndarray], last: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Returns the steps to keep, [n] bool: without ragged ends of less than half a gap, where only some runs have values.

    Runs evaluate at slightly different steps, e.g. 4950, 4961 and 4967: between the end of the first and of the last run,
    fewer and fewer runs would be averaged. A gap is the median distance between consecutive points of a run.
    Args: last: the last step at which each run has a value.
    """
    if points:
        gaps = np.concatenate([np.diff(at) for at in points])
    else:
        gaps = np.empty(0)
    if not len(gaps):
        return np.ones(len(steps), dtype=bool)
    near = np.median(gaps) / 2
    first = np.array([at[0] for at in points])
    return (steps >= first[first - first.min() < near].max()) & (steps <= last[last.max() - last < near].min())
