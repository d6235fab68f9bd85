"""Plan of a sweep: its config, spaces, rules and score, checked before any trial starts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from zoo.config.section import Config, ConfigError
from zoo.config.source import split_override
from zoo.config.yaml_io import storable
from zoo.core.errors import UserError
from zoo.run.base_config import JobConfig
from zoo.run.config import explain_config, resolve_config, without_derived_values
from zoo.tools.sweep.spaces import Space, default_spaces, split_spaces

Metric = Literal['steps', 'best', 'last', 'auc']
Sampler = Literal['tpe', 'random', 'grid']
Pruner = Literal['median', 'halving']
N_TRIAL = 20
MAX_POINTS = 10_000  # most points of a grid
MAX_TRIES = 100  # most combinations that are tried to find one in which a value is accepted
FIXED = ('seed', 'exp_name', 'logger', 'checkpoint', 'max_env_step', 'policy.eval')
"""Keys and sections that may have no space: the sweep sets them, or they decide how a trial is measured."""
METRICS: dict[Metric, str] = {
    'steps': 'env steps until policy.eval.stop_value is reached, counted in evaluations (fewer are better; who never reaches '
    'it ranks behind)',
    'best': 'the highest mean return of an evaluation',
    'last': 'the mean return of the last evaluation',
    'auc': 'the mean return over the env steps of the run (area under its curve)',
}
RESULT_NAMES: dict[Metric, str] = {
    'steps': 'steps to the goal',
    'best': 'best return',
    'last': 'last return',
    'auc': 'mean return over the run',
}


class Curve(NamedTuple):
    """The evaluations of one run: env steps and mean returns.

    The steps are counted in evaluations: the k-th one is at k times the distance between two. Their true steps also depend
    on the number of resets before them, which is no merit of a trial: 10,104 and 10,130 are the same evaluation.
    """

    steps: list[int]
    returns: list[float]

    def solved_at(self, stop_value: float | None) -> int | None:
        """Returns the env step of the first evaluation that reached stop_value; None if none did."""
        if stop_value is None:
            return None
        for step, return_ in zip(self.steps, self.returns, strict=True):
            if return_ >= stop_value:
                return step
        return None


class Score(NamedTuple):
    """Converts the curves of a trial to the number that a sweep compares.

    Args: max_step: most env steps of a run; stop_value: of the config's section policy.eval.
    """

    metric: Metric
    stop_value: float | None
    max_step: int

    @property
    def minimises(self) -> bool:
        """Whether lower is better."""
        return self.metric == 'steps'

    def of(self, curves: Sequence[Curve]) -> float:
        """Returns the value of a trial: the mean over its runs, each with at least one evaluation."""
        if self.metric == 'steps':
            return self._steps(curves)
        value_of = {'best': lambda c: max(c.returns), 'last': lambda c: c.returns[-1], 'auc': self.area}[self.metric]
        return float(np.mean([value_of(curve) for curve in curves]))

    def words(self, value: float) -> str:
        """Formats the value of a trial: 'best 481.3', '31,200 steps to 475'."""
        if self.metric != 'steps':
            return f'{self.metric} {value:.5g}'
        goal = f'{self.stop_value:g}'
        if value <= self.max_step:
            return f'{value:,.0f} steps to {goal}'
        return f'not all seeds reached {goal}'

    def _steps(self, curves: Sequence[Curve]) -> float:
        """Returns the mean env steps to stop_value, each at most max_step, if all runs reached it; else more than max_step.

        The larger number is max_step * (1 + share + gap). share: of the runs that did not reach it, so that more solved runs
        always rank first. gap: how far these runs stayed below, from 0 to 1 / runs.
        """
        assert self.stop_value is not None, 'checked by the plan'
        steps = []
        gaps = []
        for curve in curves:
            step = curve.solved_at(self.stop_value)
            if step is not None:
                steps.append(min(step, self.max_step))
                continue
            missed = self.stop_value - max(curve.returns)
            gaps.append(missed / (missed + abs(self.stop_value) + 1))
        if not gaps:
            return float(np.mean(steps))
        return self.max_step * (1 + (len(gaps) + float(np.mean(gaps)) * 0.999) / len(curves))

    def area(self, curve: Curve) -> float:
        """Returns the mean return from env step 0 to max_step or a later evaluation: linear between points, else constant."""
        steps = [0, *curve.steps]
        returns = [curve.returns[0], *curve.returns]
        if steps[-1] < self.max_step:
            steps.append(self.max_step)
            returns.append(returns[-1])
        points = zip(steps, returns, strict=True)
        area = sum((end - start) * (low + high) / 2 for (start, low), (end, high) in pairwise(points))
        return area / steps[-1]


class Plan(NamedTuple):
    """A checked sweep.

    identity: values that must be equal in all processes that share a storage; defaulted: keys of its config with default
      values; a sweep of an older zoo without these keys may lack them.
    """

    source: Any
    overrides: tuple[str, ...]
    spaces: dict[str, Space]
    score: Score
    name: str
    folder: Path
    storage: Path
    n_trial: int
    n_seed: int
    seed: int
    sampler: Sampler
    pruner: Pruner | None
    eval_freq: int
    identity: dict[str, Any]
    defaulted: frozenset[str]

    def resolve(self, values: dict[str, str]) -> Config:
        """Returns the config of a trial. Raises: ConfigError if its values do not fit together."""
        return resolve_config(self.source, self.overrides_of(values))

    def overrides_of(self, values: dict[str, str]) -> list[str]:
        """Returns the overrides of a trial: those of the sweep, then its values by key."""
        return [*self.overrides, *(f'{key}={value}' for key, value in values.items())]

    def grid(self) -> list[dict[str, str]]:
        """Returns all combinations of the values of a grid."""
        columns = [space.grid() for space in self.spaces.values()]
        return [dict(zip(self.spaces, values, strict=True)) for values in itertools.product(*columns)]


def finer_freq(step: float) -> int:
    """Returns a number of env steps, 1 or more, as people write it: the given one, rounded down to its first digit."""
    size = 10 ** max(0, math.floor(math.log10(max(step, 1))))
    return max(1, int(step // size * size))


def make_plan(
    source: Any,
    texts: Sequence[str],
    *,
    n: int | None = None,
    seeds: int = 1,
    metric: Metric | None = None,
    sampler: Sampler = 'tpe',
    pruner: Pruner | None = 'median',
    storage: str | None = None,
    name: str | None = None,
) -> Plan:
    """Makes the plan for the arguments of `sweep`. Raises: UserError, or ConfigError with a sentence for every problem."""
    _check_words(n, seeds, metric, sampler, pruner)
    spaces, fixed = split_spaces(texts)
    cfg = resolve_config(source, fixed)
    spaces = spaces or default_spaces_of(source, fixed, cfg)
    problems = _fixed_problems(spaces) + _grid_problems(spaces, sampler)
    if not problems:
        problems = refused_values(source, fixed, spaces)
    if problems:
        raise ConfigError(problems)
    stop_value = cfg.policy.eval.stop_value
    if metric == 'steps' and stop_value is None:
        raise UserError(
            'metric steps counts env steps until policy.eval.stop_value, which the config does not set; set it, e.g. '
            'policy.eval.stop_value=475, or choose another metric: best, last, auc'
        )
    if metric is None:
        metric = 'best' if stop_value is None else 'steps'
    name = name or f'{cfg.exp_name}_sweep'
    resolve_config(source, [*fixed, f'exp_name={name}'])  # it must name a folder
    folder = Path(cfg.logger.root).absolute() / name
    journal = folder / 'journal.log'
    if storage:
        journal = Path(storage).absolute()
    return Plan(
        source=source,
        overrides=tuple(fixed),
        spaces=spaces,
        score=Score(metric, stop_value, cfg.max_env_step),
        name=name,
        folder=folder,
        storage=journal,
        n_trial=_n_trial(n, sampler, spaces),
        n_seed=seeds,
        seed=cfg.seed,
        sampler=sampler,
        pruner=pruner,
        eval_freq=cfg.policy.eval.eval_freq,
        identity=_identity(cfg, spaces, metric, seeds),
        defaulted=frozenset(row.key for row in explain_config(source, fixed) if row.origin == 'default'),
    )


def _n_trial(n: int | None, sampler: Sampler, spaces: dict[str, Space]) -> int:
    """Returns the number of trials: n, of a grid at most all its points; by default N_TRIAL, or all points of a grid."""
    if sampler == 'grid':
        n_point = _n_point(spaces)
        return min(n or n_point, n_point)
    return n or N_TRIAL


def _n_point(spaces: dict[str, Space]) -> int:
    """Returns the number of points of a grid."""
    return math.prod(len(space.grid()) for space in spaces.values())


def _identity(cfg: JobConfig, spaces: dict[str, Space], metric: Metric, n_seed: int) -> dict[str, Any]:
    config = storable(without_derived_values(cfg.to_dict()))
    for key in ('logger', 'exp_name', 'checkpoint'):
        config.pop(key, None)
    return {
        'config': config,
        'spaces': {key: str(space) for key, space in spaces.items()},
        'metric': metric,
        'seeds': n_seed,
    }


def _check_words(n: int | None, seeds: int, metric: str | None, sampler: str, pruner: str | None) -> None:
    for word, number, example in (('n', n, N_TRIAL), ('seeds', seeds, 3)):
        if word == 'n' and number is None:
            continue
        if type(number) is not int or number < 1:
            raise UserError(f'{word} is {number!r} but must be an integer >= 1; e.g. {word}={example}')
    _check_choice('metric', metric, (None, *METRICS))
    _check_choice('sampler', sampler, get_args(Sampler))
    _check_choice('pruner', pruner, (None, *get_args(Pruner)), '; --no-prune (pruner=None) ends no trial early')


def _check_choice(word: str, value: str | None, choices: Sequence[str | None], hint: str = '') -> None:
    if value not in choices:
        raise UserError(f'{word} is {value!r} but must be one of {", ".join(filter(None, choices))}{hint}')


def default_spaces_of(source: Any, fixed: list[str], cfg: JobConfig) -> dict[str, Space]:
    """Returns the default spaces of the policy, except for keys that it lacks or of which the config refuses a value.

    A key that an override gives has that value in all trials, and no space either.
    """
    given = {split_override(text)[0] for text in fixed}
    spaces = split_spaces([f'{key}={text}' for key, text in default_spaces(cfg).items() if key not in given])[0]
    accepted = {key: space for key, space in spaces.items() if not refused_values(source, fixed, {key: space})}
    if not accepted:
        raise UserError(
            'the sweep got no space, and the policy has none of the keys of the default spaces; give one, e.g. '
            "'policy.learn.learning_rate=log(1e-4,1e-2)'"
        )
    return accepted


def _fixed_problems(spaces: dict[str, Space]) -> list[str]:
    problems = []
    for key, space in spaces.items():
        if not any(key == fixed or key.startswith(f'{fixed}.') for fixed in FIXED):
            continue
        remedy = f'write {key}={space.probes()[0]}'
        if key == 'seed':
            remedy = 'choose the number of seeds with --seeds'
        problems.append(f'{key} can have no space: it is the same in all trials of a sweep; {remedy}')
    return problems


def _grid_problems(spaces: dict[str, Space], sampler: Sampler) -> list[str]:
    if sampler != 'grid':
        return [
            f'{key}={space} has a number of points, which only the sampler grid takes; leave it out, or add --sampler grid'
            for key, space in spaces.items()
            if space.n_point
        ]
    problems = []
    for key, space in spaces.items():
        if space.kind in ('log', 'uniform') and not space.n_point:
            with_points = f'{str(space).removesuffix(")")},5)'
            problems.append(
                f'{key}={space} has no number of points, which the sampler grid needs; write {with_points}, '
                'or choice(...)'
            )
    n_point = _n_point(spaces)
    if n_point > MAX_POINTS:
        problems.append(
            f'the grid has {n_point:,} points, at most {MAX_POINTS:,} can be tried; use the sampler random or tpe'
        )
    return problems


def refused_values(source: Any, fixed: list[str], spaces: dict[str, Space]) -> list[str]:
    """Returns a sentence for each space with a value of `probes` that the config refuses for all tried values of other keys."""
    problems = []
    for key, space in spaces.items():
        for value in space.probes():
            refusal = _refusal(source, fixed, spaces, key, value)
            if refusal:
                problems.append(f'{key}={space}: {refusal[0]}{_hint_at_integers(refusal[0], space)}')
                break
    return problems


def _hint_at_integers(problem: str, space: Space) -> str:
    if 'integer' in problem and space.kind != 'choice':
        return ' (a space of integers is int(LOW,HIGH))'
    return ''


def _refusal(source: Any, fixed: list[str], spaces: dict[str, Space], key: str, value: str) -> list[str]:
    """Returns the config's problems with a value; [] if it is accepted alone or with some values of the other keys."""
    others = [[f'{other}={text}' for text in space.probes()] for other, space in spaces.items() if other != key]
    first: list[str] = []
    for texts in itertools.islice(itertools.chain([()], itertools.product(*others)), MAX_TRIES):
        try:
            resolve_config(source, [*fixed, *texts, f'{key}={value}'])
        except ConfigError as error:
            first = first or error.problems
        else:
            return []
    return first
