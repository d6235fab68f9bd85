"""Numbers that a user's code gives a run by `job.log`, reduced to one number of each name in each line of the log."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from torch import Tensor

from zoo.core.errors import UserError, shown
from zoo.core.ranks import ALONE, Ranks

Reduce = Literal['mean', 'sum', 'min', 'max', 'last', 'histogram']
GROUPS_OF_ZOO = ('learn', 'collect', 'eval', 'env', 'time', 'cluster', 'agent', 'league')


@dataclass
class Fold:
    """What any of the reductions needs of the numbers so far."""

    n: int = 0
    total: float = 0.0
    least: float = math.inf
    greatest: float = -math.inf
    last: float = math.nan

    def add(self, values: np.ndarray) -> None:
        """Adds numbers, [N] f64 with N > 0."""
        self.merge(Fold(len(values), float(values.sum()), float(values.min()), float(values.max()), float(values[-1])))

    def merge(self, other: Fold) -> None:
        """Adds the numbers of another one, which come after its own."""
        if other.n == 0:
            return
        self.n += other.n
        self.total += other.total
        self.least = min(self.least, other.least)
        self.greatest = max(self.greatest, other.greatest)
        self.last = other.last

    def reduced(self, reduce: Reduce) -> float:
        """The number of the log."""
        if reduce == 'mean':
            return self.total / self.n
        return {'sum': self.total, 'min': self.least, 'max': self.greatest, 'last': self.last}[reduce]


@dataclass(frozen=True)
class Reduction:
    """How the numbers of one name are reduced, see `RunView.log`."""

    reduce: Reduce
    window: int | None
    lifetime: bool


HISTOGRAM = {'min': 0.0, 'p25': 0.25, 'p50': 0.5, 'p75': 0.75, 'max': 1.0}
"""The quantiles that the log has of a name that is reduced as a histogram, by the end of their names; and the mean."""


class Logged(NamedTuple):
    """One call of `log`, checked, in a form that travels from a runner to its learner. values: [N] f64."""

    name: str
    values: np.ndarray
    how: Reduction


class Since(NamedTuple):
    """The numbers of one name for a line of the log. values: all of them, [N] f64, if they are reduced as a histogram."""

    how: Reduction
    fold: Fold
    values: np.ndarray


class OwnNumbers:
    """The numbers since the last line of the log, by name; of a lifetime or a window those before too."""

    def __init__(self) -> None:
        self._hows: dict[str, Reduction] = {}
        self._folds: dict[str, Fold] = {}  # since the last line
        self._windows: dict[
            str, deque[float]
        ] = {}  # the last numbers; of a histogram without a window, those since the line
        self._lifetimes: dict[str, Fold] = {}  # until the last line, of all ranks

    def add(self, name: str, value: Any, how: Reduction) -> None:
        """Adds a number, or all of an array, under a name. Raises: UserError for what the log cannot take."""
        self.extend([self.checked(name, value, how)])

    def checked(self, name: str, value: Any, how: Reduction) -> Logged:
        """The entry of a number, or of all of an array; does not add it. Raises: UserError for what the log cannot take."""
        full_name = _full_name(name)
        if full_name not in self._hows:
            _check(name, how)
        self._begin(full_name, how)
        return Logged(full_name, _numbers(name, value), how)

    def _begin(self, name: str, how: Reduction) -> None:
        """Makes room for the numbers of a name. Raises: UserError if they are reduced in another way."""
        before = self._hows.get(name)
        if before is None:
            self._hows[name] = how
            self._folds[name] = Fold()
            self._windows[name] = deque(maxlen=how.window)
        elif before != how:
            raise UserError(
                f'job.log({name!r}) was called with {_words(before)} before and now with {_words(how)}; use one of the two'
            )

    def extend(self, entries: Iterable[Logged]) -> None:
        """Adds checked numbers, maybe of a runner, in their order. Raises: UserError for another reduction than before."""
        for name, values, how in entries:
            self._begin(name, how)
            if not len(values):
                continue
            if how.window is None and how.reduce != 'histogram':
                self._folds[name].add(values)
            else:
                self._windows[name].extend(values.tolist())

    def take(self, ranks: Ranks = ALONE) -> dict[str, float]:
        """The numbers of a line of the log, of all ranks together, which all make this call; begins the next line."""
        found = _merged(ranks.gather(self._since_line()))
        self._folds = {name: Fold() for name in self._hows}
        for name, how in self._hows.items():
            if how.reduce == 'histogram' and how.window is None:
                self._windows[name].clear()
        line: dict[str, float] = {}
        for name, (how, fold, values) in found.items():
            if how.reduce == 'histogram':
                if len(values):
                    line |= _histogram(name, values)
                continue
            if how.lifetime:
                whole = self._lifetimes.setdefault(name, Fold())
                whole.merge(fold)
                fold = whole
            if fold.n:
                line[name] = fold.reduced(how.reduce)
        return line

    def _since_line(self) -> dict[str, Since]:
        """The numbers of each name for the next line, and how they are reduced; those of its window, if it has one."""
        found = {}
        for name, how in self._hows.items():
            fold = self._folds[name]
            values = np.array(self._windows[name], dtype=np.float64)
            if how.reduce != 'histogram' and len(values):
                fold.add(values)
            found[name] = Since(how, fold, values)
        return found

    def state_dict(self) -> dict[str, Any]:
        """The lifetimes, which a resume continues; of other ranks, until the last line of the log."""
        lifetimes = {name: replace(fold) for name, fold in self._lifetimes.items()}
        for name, fold in self._folds.items():
            if self._hows[name].lifetime:
                lifetimes.setdefault(name, Fold()).merge(fold)
        return {name: asdict(fold) for name, fold in lifetimes.items() if fold.n}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues the lifetimes of a checkpoint."""
        self._lifetimes = {name: Fold(**values) for name, values in state.items()}


def _merged(found: list[dict[str, Since]]) -> dict[str, Since]:
    """The numbers of all ranks, in their order."""
    merged: dict[str, Since] = {}
    for of_rank in found:
        for name, (how, fold, values) in of_rank.items():
            before = merged.get(name, Since(how, Fold(), values[:0]))
            before.fold.merge(fold)
            merged[name] = Since(how, before.fold, np.concatenate([before.values, values]))
    return merged


def _histogram(name: str, values: np.ndarray) -> dict[str, float]:
    """The quantiles and the mean of numbers [N], by their names in the log."""
    quantiles = np.quantile(values, list(HISTOGRAM.values()))
    line = {f'{name}_{end}': float(x) for end, x in zip(HISTOGRAM, quantiles, strict=True)}
    return {**line, f'{name}_mean': float(values.mean())}


def _full_name(name: str) -> str:
    """The name in the log: with the group 'own' if it has none."""
    if not isinstance(name, str) or not name:
        raise UserError(f'job.log got the name {shown(name)}; give a text, e.g. job.log("distance", 1.5)')
    if '/' in name:
        return name
    return f'own/{name}'


def _check(name: str, how: Reduction) -> None:
    """Raises: UserError for a name or a reduction that the log cannot have."""
    group = name.partition('/')[0]
    if '/' in name and group in GROUPS_OF_ZOO:
        raise UserError(
            f'job.log got the name {name!r}, whose group {group!r} is that of zoo; use another group, e.g. own/...'
        )
    if how.reduce not in get_args(Reduce):
        raise UserError(f'job.log got reduce={shown(how.reduce)}; use one of {", ".join(get_args(Reduce))}')
    if how.window is not None and (not isinstance(how.window, int) or how.window < 1):
        raise UserError(f'job.log got window={shown(how.window)}; use a number of values from 1 on, or None')
    if how.window is not None and how.lifetime:
        raise UserError(f'job.log({name!r}) got window and lifetime; use one of the two')
    if how.reduce == 'histogram' and how.lifetime:
        raise UserError(
            f"job.log({name!r}) got reduce='histogram' and lifetime, which would keep all numbers of the run; use window=N"
        )


def _numbers(name: str, value: Any) -> np.ndarray:
    """The numbers of a value, [N] f64. Raises: UserError if it is no number, list of numbers or array of them."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().double().numpy()
    try:
        array = np.asarray(value)
    except ValueError:  # lists of several lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in 'biuf':
        raise UserError(f'job.log({name!r}) got {shown(value)}; give a number, or a list or array of numbers')
    return array.astype(np.float64).ravel()


def _words(how: Reduction) -> str:
    return f'reduce={how.reduce!r}, window={how.window}, lifetime={how.lifetime}'
