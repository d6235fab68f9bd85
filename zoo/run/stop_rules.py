"""Rules that end a run before max_env_step: by time, by count, on a plateau, by a bound on any metric, or the user's own."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from zoo.config.section import Section
from zoo.core.registry import STOP_REGISTRY, closest

if TYPE_CHECKING:
    from zoo.run.job import SerialJob

logger = logging.getLogger(__name__)


class StopRule:
    """Says when a run is to end: derive a class with options as keyword-only parameters of its constructor.

    A config names it, `stop: ['my_module:MyRule']` or `stop: [{type: 'my_module:MyRule', n: 3}]`. `see` is given every line of
    the log, `reason` is asked after each round of collecting and learning, and when a run continues.
    """

    def see(self, job: SerialJob, metrics: Mapping[str, float]) -> None:
        """One line of the log: training metrics, or those of an evaluation, which have 'eval/return_mean'."""

    def reason(self, job: SerialJob) -> str | None:
        """Why the run is to end now, as part of a sentence; None: it continues."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Numbers, texts and None by name, which a resume needs."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave."""


class WallTimeConfig(Section):
    """Its options."""

    s: float = Field(gt=0, description='seconds of the run, those before a resume included')


@STOP_REGISTRY.register('wall_time')
class WallTime(StopRule):
    """Ends the run after s seconds: with the round that is under way then, its evaluation included."""

    config = WallTimeConfig

    def __init__(self, cfg: WallTimeConfig) -> None:
        self._limit = cfg.s

    def reason(self, job: SerialJob) -> str | None:
        return f'{job.wall_s:,.0f} of {self._limit:,.0f} seconds have passed' if job.wall_s >= self._limit else None


class IterationsConfig(Section):
    """Its options."""

    n: int = Field(ge=1, description='rounds of collecting and learning, those before a resume included')


@STOP_REGISTRY.register('iterations')
class Iterations(StopRule):
    """Ends the run after n rounds of collecting and learning."""

    config = IterationsConfig

    def __init__(self, cfg: IterationsConfig) -> None:
        self._n = cfg.n

    def reason(self, job: SerialJob) -> str | None:
        return f'{job.n_iteration:,} rounds are done' if job.n_iteration >= self._n else None


class TrainIterConfig(Section):
    """Its options."""

    n: int = Field(ge=1, description='optimiser steps, those before a resume included; the round is finished')


@STOP_REGISTRY.register('train_iter')
class TrainIter(StopRule):
    """Ends the run with the round that takes the n-th optimiser step."""

    config = TrainIterConfig

    def __init__(self, cfg: TrainIterConfig) -> None:
        self._n = cfg.n

    def reason(self, job: SerialJob) -> str | None:
        return f'{job.train_iter:,} optimiser steps are done' if job.train_iter >= self._n else None


class MetricRule(StopRule):
    """A rule on one metric of the log. Attributes: metric: its name; the state of another one is not this rule's."""

    metric: str


class PatienceConfig(Section):
    """Its options."""

    n: int = Field(ge=1, description='evaluations in a row without a new best')
    min_eval: int = Field(0, ge=0, description='evaluations before which the run is never ended')
    min_delta: float = Field(0.0, ge=0, description='a new best is more than this above the best one before')
    metric: str = Field('eval/return_mean', description='metric of evaluations that is to rise')


@STOP_REGISTRY.register('patience')
class Patience(MetricRule):
    """Ends the run at the n-th evaluation in a row that brings no new best."""

    config = PatienceConfig

    def __init__(self, cfg: PatienceConfig) -> None:
        self._cfg, self.metric = cfg, cfg.metric
        self._best = -math.inf
        self._n_eval, self._n_since = 0, 0

    def see(self, job: SerialJob, metrics: Mapping[str, float]) -> None:
        value = metrics.get(self._cfg.metric)
        if value is None:
            return
        is_best = value > self._best + self._cfg.min_delta
        self._n_eval, self._n_since = self._n_eval + 1, 0 if is_best else self._n_since + 1
        self._best = value if is_best else self._best

    def reason(self, job: SerialJob) -> str | None:
        if self._n_since < self._cfg.n or self._n_eval < self._cfg.min_eval:
            return None
        return f'{self._n_since} evaluations in a row had no {self._cfg.metric} above {self._best:.6g}'

    def state_dict(self) -> dict[str, Any]:
        best = self._best if math.isfinite(self._best) else None
        return {'best': best, 'n_eval': self._n_eval, 'n_since': self._n_since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._best = -math.inf if state['best'] is None else float(state['best'])
        self._n_eval, self._n_since = int(state['n_eval']), int(state['n_since'])


class BoundConfig(Section):
    """Its options."""

    metric: str = Field(description='name of a metric as the log has it, e.g. learn/approx_kl')
    above: float | None = Field(None, description='the run ends when the metric is above this')
    below: float | None = Field(None, description='the run ends when the metric is below this')

    @model_validator(mode='after')
    def _has_a_bound(self) -> BoundConfig:
        if self.above is None and self.below is None:
            raise ValueError(
                f'the rule on {self.metric} has neither above nor below; give one of them, e.g. above: 0.1.'
            )
        return self


@STOP_REGISTRY.register('bound')
class Bound(MetricRule):
    """Ends the run when a metric of the log is above or below a bound; NaN is neither."""

    config = BoundConfig

    def __init__(self, cfg: BoundConfig) -> None:
        self._cfg, self.metric = cfg, cfg.metric
        self._value: float | None = None
        self._others: set[str] = set()  # metrics that were seen before this one was

    def see(self, job: SerialJob, metrics: Mapping[str, float]) -> None:
        if self._cfg.metric in metrics:
            self._value = metrics[self._cfg.metric]
        elif self._value is None:
            self._warn(metrics)

    def reason(self, job: SerialJob) -> str | None:
        name, value, above, below = self._cfg.metric, self._value, self._cfg.above, self._cfg.below
        if value is not None and above is not None and value > above:
            return f'{name} is {value:.6g}, above {above:g}'
        if value is not None and below is not None and value < below:
            return f'{name} is {value:.6g}, below {below:g}'
        return None

    def state_dict(self) -> dict[str, Any]:
        return {'value': self._value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._value = None if state['value'] is None else float(state['value'])

    def _warn(self, metrics: Mapping[str, float]) -> None:
        """Warns once that no line has had the metric, after lines of both kinds: it may be misspelt."""
        had = self._others
        is_first = not {'eval/return_mean', 'learn/train_iter'} <= had
        had.update(metrics)
        if is_first and {'eval/return_mean', 'learn/train_iter'} <= had:
            close = closest(self._cfg.metric, had)
            guess = f'did you mean {" or ".join(close)}?' if close else f'it had {", ".join(sorted(had))}.'
            logger.warning('stop: no line of the log has had the metric %r so far: %s', self._cfg.metric, guess)
