"""Comparison of groups of runs with the first group: differences of configs, returns, and the chance to be better."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zoo.config.section import differing_keys, has_key, value_at
from zoo.config.yaml_io import value_text
from zoo.core.errors import UserError
from zoo.core.streams import columns
from zoo.run.config import with_later_keys, without_derived_values
from zoo.tools.results.read import N_NAMED, Run, State
from zoo.tools.results.settings import NO_EFFECT
from zoo.tools.results.statistics import (
    LEVEL,
    WORDS,
    Stat,
    center,
    curve_points,
    improvement_interval,
    interval,
    least_p,
    permutation_p,
    probability_of_improvement,
)

Points = tuple[np.ndarray, np.ndarray]
NAMES = ('seed', 'exp_name')
TIERS: tuple[tuple[State, ...], ...] = (('done',), ('running', 'stopped'), ('failed', 'killed'))
"""Tiers of run states. The runs in the first non-empty tier of each side decide up to which step sides are compared."""
ALPHA = round(1 - LEVEL, 9)  # significance level: a difference with a larger p value is not called a difference
SHORTER = 0.98  # if a run ends before this share of the longest, sides are also compared at the last common step


class Spread(NamedTuple):
    """A number of each run of a side, their average, and the ends of its 95% interval, None if there is one run."""

    values: tuple[float, ...]
    center: float
    low: float | None
    high: float | None


class Chance(NamedTuple):
    """The chance that a run of a side is higher than one of the first side; 0.5 means no difference.

    low, high: its 95% interval, None if there are too few runs: then even a side with all the higher runs would not be
    significant. p: how often chance alone gives such a difference, or a larger one.
    """

    value: float
    low: float | None
    high: float | None
    p: float

    @property
    def is_clear(self) -> bool:
        """Whether the difference is significant: p is at most 0.05, and 0.5 is not in the interval."""
        return self.low is not None and self.high is not None and self.p <= ALPHA and not self.low <= 0.5 <= self.high


class LeftOut(NamedTuple):
    """A run that ended so early that it is not compared: its folder, state, and the env step of its last point."""

    path: str
    state: State
    env_step: int


class Side(NamedTuple):
    """A group of runs in a comparison.

    n_run: number of its runs; env_step: env steps of each run; speed: env steps/s of the whole run, the median of its runs;
    env_step and speed are without the runs that are left out.
    last: the metric at the last point of each run that has it, None if no run has it; common: the metric at
    `Comparison.common_step`, None without one.
    chance, common_chance: to beat the first side; None for the first side itself, and if one of the two has no value.
    """

    label: str
    n_run: int
    env_step: tuple[int, ...]
    speed: float
    last: Spread | None
    common: Spread | None
    chance: Chance | None
    common_chance: Chance | None


class Comparison(NamedTuple):
    """The result of a comparison.

    common_step: the last env step that all finished runs reached, None if these ran about as long; differences: for each
    key of the config, its value by the label of the sides that have it; left_out: runs that are not finished and end
    before that step, or have no point.
    """

    metric: str
    stat: Stat
    sides: list[Side]
    common_step: float | None
    differences: dict[str, dict[str, Any]]
    left_out: list[LeftOut] = []


def compare(sides: Mapping[str, Sequence[Run]], metric: str, stat: Stat = 'iqm') -> Comparison:
    """Compares groups of runs with the first one.

    A run that failed, was killed or was stopped before the last step that all finished runs reached is left out. A side
    without a finished run is compared by its runs that are running or were stopped, or else by all its runs.
    Args: sides: two or more groups, by their names; metric: from `resolve_metric`.
    Raises: UserError if no run has the metric. A group without the metric is a side of all its runs, without values.
    """
    known = {label: [(run, curve_points(run, metric)) for run in runs] for label, runs in sides.items()}
    curves = {label: [(run, point) for run, point in each if len(point[0])] for label, each in known.items()}
    if not any(curves.values()):
        raise UserError(f'no run has a value of the metric {metric}; {way_to_values(metric)}')
    every = [one for each in curves.values() for one in each]
    deciding = {
        label: next(curve_of for tier in TIERS if (curve_of := [point for run, point in each if run.state in tier]))
        for label, each in curves.items()
        if each
    }
    step = _common_step(deciding)
    reach = SHORTER * min(float(at[-1]) for each in deciding.values() for at, _ in each)
    short = {run.path: LeftOut(str(run.path), run.state, int(at[-1])) for run, (at, _) in every if at[-1] < reach}
    points = {label: [point for run, point in each if run.path not in short] for label, each in curves.items()}
    for run in (run for label, runs in sides.items() if curves[label] for run in runs):
        if run.path not in {each.path for each, _ in every}:  # it has no point: it ended before its first evaluation
            short[run.path] = LeftOut(str(run.path), run.state, int(run.env_step))
    kept = {label: [run for run in runs if run.path not in short] for label, runs in sides.items()}
    last = {label: [float(value[-1]) for _, value in each] for label, each in points.items()}
    common = {label: [float(np.interp(step or 0, *point)) for point in each] for label, each in points.items()}
    first = next(iter(sides))
    compared = []
    for label, runs in sides.items():
        last_spread = _spread(last[label], stat)
        common_spread = None
        last_chance = None
        common_chance = None
        if step is not None:
            common_spread = _spread(common[label], stat)
        if label != first:
            last_chance = _chance(last[label], last[first])
        if label != first and step is not None:
            common_chance = _chance(common[label], common[first])
        n_steps = tuple(int(run.env_step) for run in kept[label])
        speed = float(np.median([run.speed or np.nan for run in kept[label]]))
        compared.append(Side(label, len(runs), n_steps, speed, last_spread, common_spread, last_chance, common_chance))
    differing = differences({label: runs[0].config for label, runs in kept.items()})
    return Comparison(metric, stat, compared, step, differing, list(short.values()))


def differences(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the settings that differ between configs: for each key, its value by the label of the configs that have it.

    A key that an older zoo did not have counts as its default, which does what that zoo did.
    The seed, the name, and sections that change no result (logging, saving, place of computation) are left out.
    """
    plain = {label: without_derived_values(with_later_keys(config)) for label, config in configs.items()}
    keys = differing_keys([*plain.values()])
    wholes = tuple(f'{key}.' for key in keys)  # {start: 1.0, end: 0.0} is one setting if another config has a number
    keys = [key for key in keys if key not in NAMES and not key.startswith((*NO_EFFECT, *wholes))]
    return {
        key: {label: value_at(config, key) for label, config in plain.items() if has_key(config, key)} for key in keys
    }


def way_to_values(metric: str) -> str:
    """Returns the end of a sentence with the remedy if no run has a value of a metric."""
    wait = ''
    if metric.startswith('eval/'):
        wait = 'let one run until its first evaluation, or '
    if metric != 'collect/return_mean':
        other = 'collect/return_mean'
    else:
        other = 'eval/return_mean'
    return f'{wait}name another with --metric, e.g. --metric {other}'


def _common_step(points: Mapping[str, Sequence[Points]]) -> float | None:
    """Returns the last step that all runs reached; None if all end near it, a run begins after it, or there is one side."""
    if len(points) < 2:
        return None
    starts, ends = ([float(at[i]) for each in points.values() for at, _ in each] for i in (0, -1))
    if max(starts) <= min(ends) < SHORTER * max(ends):
        return min(ends)
    return None


def _spread(values: Sequence[float], stat: Stat) -> Spread | None:
    if not values:
        return None
    middle = float(center(values, stat))
    if len(values) == 1:
        return Spread(tuple(values), middle, None, None)
    low, high = interval(values, stat)
    return Spread(tuple(values), middle, float(low), float(high))


def _chance(values: Sequence[float], first: Sequence[float]) -> Chance | None:
    if not values or not first:
        return None
    is_few = least_p(len(values), len(first)) > ALPHA
    if is_few:
        low = None
        high = None
    else:
        low, high = improvement_interval(values, first)
    return Chance(probability_of_improvement(values, first), low, high, permutation_p(values, first))


def as_data(found: Comparison) -> dict[str, Any]:
    """Returns the comparison as data, for --json."""
    sides = [
        {
            **side._asdict(),
            **{
                name: (value := getattr(side, name)) and value._asdict()
                for name in ('last', 'common', 'chance', 'common_chance')
            },
            'speed': side.speed if math.isfinite(side.speed) else None,
        }
        for side in found.sides
    ]
    return {**found._asdict(), 'sides': sides, 'left_out': [run._asdict() for run in found.left_out]}


def comparison_text(found: Comparison) -> str:
    """Returns the comparison as text: a table, its meaning, and the differences of the configs."""
    has_interval = any(side.last is not None and side.last.low is not None for side in found.sides)
    head = (
        f'{found.metric} at the last point of each run, {WORDS[found.stat]} of runs{" [95% interval]" * has_interval}'
    )
    return '\n'.join([head, '', columns(_table(found)), '', *_notes(found), '', _difference_text(found)])


def _notes(found: Comparison) -> Iterator[str]:
    """Yields sentences: the runs that are left out and why, the sides without values and a remedy, the chances of sides."""
    runs = [f'{run.path} ({run.state} at env step {run.env_step:,})' for run in found.left_out]
    if runs:
        more = ''
        if len(runs) > N_NAMED:
            more = f' and {len(runs) - N_NAMED} more'
        yield f'left out, since they are at an earlier env step than the others: {", ".join(runs[:N_NAMED])}{more}'
    letters = [_letter(i) for i, side in enumerate(found.sides) if side.last is None]
    if letters:
        said = f'no run of {" or ".join(letters)} has a value of {found.metric}, so that is not compared'
        yield f'{said}; {way_to_values(found.metric)}'
    yield from verdicts(found, [_letter(i) for i in range(len(found.sides))])


def verdicts(found: Comparison, names: Sequence[str]) -> Iterator[str]:
    """Yields a sentence on the chance of each side that has one to beat the first side. Args: names: of the sides."""
    for side, name in zip(found.sides, names, strict=True):
        said = _meaning(side, name, found, names[0])
        if said:
            yield said


def _table(found: Comparison) -> list[tuple[str, ...]]:
    if found.common_step is None:
        at = []
    else:
        at = [f'at {found.common_step:,.0f} steps']
    rows = [('', 'name', 'runs', 'env steps', 'env steps/s', 'last', *at, 'chance to beat A')]
    for i, side in enumerate(found.sides):
        low = min(side.env_step)
        high = max(side.env_step)
        words = [
            _letter(i),
            side.label,
            str(side.n_run) if len(side.env_step) == side.n_run else f'{len(side.env_step)} of {side.n_run}',
            f'{high:,}' if low > 0.98 * high else f'{low:,} to {high:,}',
            f'{side.speed:,.0f}' if math.isfinite(side.speed) else '-',
            _with_ends(side.last and side.last.center, side.last, '.5g'),
        ]
        if found.common_step is not None:
            words.append(_with_ends(side.common and side.common.center, side.common, '.5g'))
        if found.common_step is None:
            chance = side.chance
        else:
            chance = side.common_chance
        rows.append((*words, _with_ends(chance and chance.value, chance, '.2f')))
    return rows


def _meaning(side: Side, name: str, found: Comparison, first: str) -> str | None:
    """Returns a sentence on the chance of a side, at equal env steps if the runs are not equally long; None without it."""
    if found.common_step is None:
        chance = side.chance
    else:
        chance = side.common_chance
    if chance is None:
        return None
    if found.common_step is None:
        at = ''
    else:
        at = f'after {found.common_step:,.0f} env steps '
    n, n_first = (len(one.last.values) if one.last else 0 for one in (side, found.sides[0]))
    if n == n_first == 1:
        return f'{first} and {name} have one run each, which says nothing about their difference; train 5 seeds of both'
    said = f'{at}{name} is higher than {first} in {chance.value:.0%} of the pairs of runs'
    if chance.p >= 0.1:
        percent = f'{chance.p:.0%}'
    else:
        percent = f'{chance.p:.1%}'
    luck = f'chance alone gives such a difference in {percent if chance.p >= 0.001 else "less than 0.1%"} of cases'
    if chance.low is None or chance.high is None:
        return f'{said}: {n} and {n_first} runs are too few to tell them apart ({luck}; 5 or more of each are usual)'
    if chance.is_clear:
        verdict = 'a clear difference'
    else:
        verdict = 'no clear difference'
    return f'{said} (95% interval {chance.low:.0%} to {chance.high:.0%}): {verdict} ({luck})'


def _difference_text(found: Comparison) -> str:
    if not found.differences:
        return 'the configs are the same, but for seeds, names and logging'
    head = ('differs in the config', *(_letter(i) for i in range(len(found.sides))))
    rows = (
        (key, *(value_text(values[x.label]) if x.label in values else '-' for x in found.sides))
        for key, values in found.differences.items()
    )
    return columns([head, *rows])


def _letter(i: int) -> str:
    return f'{chr(ord("A") + i % 26)}{i // 26 or ""}'


def _with_ends(number: float | None, ends: Spread | Chance | None, form: str) -> str:
    """A number and its interval, '0.75 [0.50, 1.00]'; '-' for none."""
    if number is None or ends is None:
        return '-'
    return f'{number:{form}}' + ('' if ends.low is None else f' [{ends.low:{form}}, {ends.high:{form}}]')
