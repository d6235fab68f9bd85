"""The numbers of a report: of each run and each group of runs, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from zoo.run.result import is_time
from zoo.tools.results.curves import curve_points
from zoo.tools.results.read import Run
from zoo.tools.results.statistics import Stat, center, interval

NBSP = '\u00a0'
PARTS = {
    'env': 'stepping the envs',
    'act': 'choosing actions',
    'sample': 'making samples',
    'learn': 'learning',
    'evaluate': 'evaluating',
    'log': 'logging and saving',
}
"""Parts of a run by the name in `time/share_<part>`, and what they do."""
NEARLY_ALL = 0.95
"""Share of the time of a run that must be known to count as all: a checkpoint is older than the end of its process."""


class RunNumbers(NamedTuple):
    """A run with its metric at the last point and at the highest one, None without points."""

    run: Run
    last: float | None
    highest: float | None


class GroupNumbers(NamedTuple):
    """Runs of one config: the average of their last values and its 95% interval, all None without values."""

    label: str
    runs: list[RunNumbers]
    last: float | None
    low: float | None
    high: float | None
    highest: float | None

    @property
    def n_with(self) -> int:
        """Runs that have the metric."""
        return sum(numbers.last is not None for numbers in self.runs)


def numbers_of(groups: Mapping[str, Sequence[Run]], metric: str | None, stat: Stat) -> list[GroupNumbers]:
    """The numbers of all groups. Args: metric: None where no run logged a return."""
    found = []
    for label, runs in groups.items():
        curves = [(run, curve_points(run, metric)[1] if metric else np.empty(0)) for run in runs]
        rows = [RunNumbers(run, *((float(y[-1]), float(y.max())) if len(y) else (None, None))) for run, y in curves]
        last = [row.last for row in rows if row.last is not None]
        highest = [row.highest for row in rows if row.highest is not None]
        values = (
            [float(x) for x in (center(last, stat), *interval(last, stat), center(highest, stat))]
            if last
            else [None] * 4
        )
        found.append(GroupNumbers(label, rows, *values))
    return found


def time_shares(runs: Sequence[Run]) -> dict[str, float]:
    """The share of the time that each part of a run took, the mean over runs, by the names of PARTS; {} if unknown.

    That of a run which has ended is of all its processes, from their start to their end, the last evaluation included, as far
    as they are known, see `has_all_times`; that of one which runs, or was killed, takes its last process from its last line.
    """
    found = [shares for run in runs if (shares := _shares(run)) is not None]
    total = sum(means := np.mean(found, axis=0)) if found else 0.0
    return {name: float(share / total) for name, share in zip(PARTS, means, strict=True)} if total > 0 else {}


def has_all_times(run: Run) -> bool:
    """Whether the shares of `time_shares` are of the whole run: no process was killed before, or wrote to another folder."""
    timed_s = run.result.get('timed_s')
    if is_time(timed_s):
        return not run.result.get('n_killed') if _goes_on(run) else timed_s >= NEARLY_ALL * run.wall_s
    return False


def number(value: float | None, missing: str = '–') -> str:
    """A number to read: 0.9664, 475.3, 12,345."""
    if value is None or not math.isfinite(value):
        return missing
    return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'


def steps(value: float) -> str:
    """Env steps in few characters: 950, 40.7k, 1.5M."""
    value = float(f'{value:.3g}')  # first, so that 999,999 is 1M
    for size, letter in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
        if value >= size:
            return f'{value / size:.3g}{letter}'
    return f'{value:.0f}'


def duration(seconds: float) -> str:
    """A time to read, that no line break divides: '0.8 s', '12 s', '3 min 20 s', '2 h 5 min'."""
    if not math.isfinite(seconds):
        return '–'
    if seconds < 59.5:
        return f'{seconds:.0f}{NBSP}s' if seconds >= 9.95 else f'{seconds:.1f}{NBSP}s'
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes + (rest >= 30 if minutes >= 60 else 0), 60)
    parts = ((hours, 'h'), (minutes, 'min'), (0 if hours else rest, 's'))
    return NBSP.join(f'{n}{NBSP}{unit}' for n, unit in parts if n)


def seeds(runs: Sequence[Run]) -> str:
    """The seeds of runs: 'seed 3', 'seeds 0 to 4', 'seeds 1, 5 and 9'."""
    values = sorted({run.seed for run in runs})
    if len(values) == 1:
        return f'seed {values[0]}'
    if len(values) > 2 and all(b == a + 1 for a, b in pairwise(values)):
        return f'seeds {values[0]} to {values[-1]}'
    return f'seeds {", ".join(map(str, values[:-1]))} and {values[-1]}' if len(values) < 9 else f'{len(values)} seeds'


def spread(values: Sequence[float], write: Callable[[float], str]) -> str:
    """One value, or the lowest and highest: '1.0 s', '0.6 s to 1.1 s'."""
    words = list(dict.fromkeys(map(write, (min(values), max(values)))))
    return ' to '.join(words)


def _shares(run: Run) -> np.ndarray | None:
    """The share of each of PARTS; None if it is not known."""
    seconds = _seconds(run)
    if seconds is None or _goes_on(run):
        logged = (run.columns.get(f'time/share_{name}', np.empty(0)) for name in PARTS)
        known = [values[np.isfinite(values)] for values in logged]
        if all(map(len, known)):
            last = np.array([values[-1] for values in known])
            rest = 1.0 if seconds is None else max(run.wall_s - run.result['timed_s'], 0.0)
            seconds = last * rest + (0.0 if seconds is None else seconds)
    return None if seconds is None or not seconds.sum() > 0 else seconds / seconds.sum()


def _seconds(run: Run) -> np.ndarray | None:
    """Seconds of each of PARTS in the processes that have ended; None if they are not known."""
    found = run.result.get('seconds')
    seconds = [found.get(name) for name in PARTS] if isinstance(found, dict) else [None]
    is_known = all(map(is_time, seconds)) and (not _goes_on(run) or is_time(run.result.get('timed_s')))
    return np.array(seconds, dtype=np.float64) if is_known else None


def _goes_on(run: Run) -> bool:
    """Whether its last process has not ended, or was killed."""
    return run.result.get('state') == 'running'
