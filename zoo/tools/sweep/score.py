"""The score of a trial: one number of the evaluations of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

Metric = Literal['steps', 'best', 'last', 'auc']
METRICS: dict[Metric, str] = {
    'steps': 'env steps until policy.eval.stop_value is reached (fewer are better; who never reaches it ranks behind)',
    'best': 'the highest mean return of an evaluation',
    'last': 'the mean return of the last evaluation',
    'auc': 'the mean return over the env steps of the run (area under its curve)',
}


class Curve(NamedTuple):
    """The evaluations of one run: env steps and mean returns."""

    steps: list[int]
    returns: list[float]

    def solved_at(self, stop_value: float | None) -> int | None:
        """Env steps of the first evaluation that reached stop_value; None if none did."""
        reached = (
            s for s, r in zip(self.steps, self.returns, strict=True) if stop_value is not None and r >= stop_value
        )
        return next(reached, None)


class Score(NamedTuple):
    """Turns curves into the number that a sweep compares.

    Args: max_step: env steps of a run at most; stop_value: of the config's section policy.eval.
    """

    metric: Metric
    stop_value: float | None
    max_step: int

    @property
    def minimises(self) -> bool:
        """Whether lower is better."""
        return self.metric == 'steps'

    def of(self, curves: Sequence[Curve]) -> float:
        """The value of a trial: the mean over its runs, each with one evaluation or more."""
        if self.metric == 'steps':
            return self._steps(curves)
        one = {'best': lambda c: max(c.returns), 'last': lambda c: c.returns[-1], 'auc': self._area}[self.metric]
        return float(np.mean([one(curve) for curve in curves]))

    def words(self, value: float) -> str:
        """The value of a trial as a person reads it: 'best 481.3', '31,200 steps to 475'."""
        if self.metric != 'steps':
            return f'{self.metric} {value:.5g}'
        goal = f'{self.stop_value:g}'
        return f'{value:,.0f} steps to {goal}' if value <= self.max_step else f'not all seeds reached {goal}'

    def _steps(self, curves: Sequence[Curve]) -> float:
        """Mean env steps to stop_value, at most max_step, if all runs reached it; else a number above max_step.

        That is max_step * (1 + share + gap): the share of runs that did not, so that more solved runs always rank first,
        and how far these stayed below, from 0 to 1 / runs.
        """
        assert self.stop_value is not None, 'checked by the plan'
        solved = [curve.solved_at(self.stop_value) for curve in curves]
        if None not in solved:
            return float(np.mean([min(step, self.max_step) for step in solved if step is not None]))
        missed = [self.stop_value - max(c.returns) for c, step in zip(curves, solved, strict=True) if step is None]
        gap = float(np.mean([short / (short + abs(self.stop_value) + 1) for short in missed]))
        return self.max_step * (1 + (len(missed) + gap * 0.999) / len(curves))

    def _area(self, curve: Curve) -> float:
        """The mean return over env steps 0 to max_step: straight lines between evaluations, constant before and after."""
        steps, returns = [0, *curve.steps], [curve.returns[0], *curve.returns]
        if steps[-1] < self.max_step:
            steps, returns = [*steps, self.max_step], [*returns, returns[-1]]
        points = list(zip(steps, returns, strict=True))
        area = sum((b - a) * (x + y) / 2 for (a, x), (b, y) in pairwise(points))
        return area / steps[-1]
