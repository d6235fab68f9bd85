"""Hyper-parameters that change with the env steps of a run, and learning rates that follow the KL of updates."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from zoo.config.section import ConfigLike, Section
from zoo.core.errors import shown

MIN_CLIP = 1e-6
logger = logging.getLogger(__name__)
ATTRIBUTE = re.compile(r'[^\W\d]\w*(\.[^\W\d]\w*)*')
Rate = Annotated[float, Field(ge=0)]


class Linear(Section):
    """A straight line from `start` to `end` over the first `over` env steps, then `end`."""

    start: Rate = Field(description='value at env step 0')
    end: Rate = Field(description='value at env step `over` and later')
    over: Annotated[int, Field(gt=0)] | None = Field(
        None, description='env steps from start to end; null: max_env_step'
    )

    def value(self, env_step: int) -> float:
        assert self.over is not None, 'a resolved config has it'
        return self.start + (self.end - self.start) * min(env_step / self.over, 1.0)


class Points(Section):
    """A schedule through (env_step, value) points, written as {points, kind} or as the list of points alone.

    Between points the value is interpolated linearly; with kind 'step' it is that of the last point reached.
    It is constant before the first point and after the last.
    """

    least: ClassVar[float] = 0.0

    points: list[tuple[int, float]] = Field(min_length=1, description='[[env_step, value], ...] in order of env_step')
    kind: Literal['linear', 'step'] = Field(
        'linear', description='linear: straight lines between points; step: a value holds until the next point'
    )

    @model_validator(mode='before')
    @classmethod
    def _as_tuples(cls, data: Any) -> Any:
        if isinstance(data, list):
            data = {'points': data}
        if isinstance(data, dict) and isinstance(data.get('points'), list):
            return {**data, 'points': [tuple(p) if isinstance(p, list) else p for p in data['points']]}
        return data

    @model_validator(mode='after')
    def _rising(self) -> Points:
        steps = [step for step, _ in self.points]
        if steps != sorted(set(steps)) or steps[0] < 0:
            raise ValueError(f'env steps {steps} do not rise from 0 or more; list the points in order')
        if any(value < self.least for _, value in self.points):
            raise ValueError(f'values {[v for _, v in self.points]} must be 0 or more')
        return self

    def value(self, env_step: int) -> float:
        (step_a, value_a), *rest = self.points
        for step_b, value_b in rest:
            if self.kind == 'step' and env_step < step_b:
                return value_a
            if self.kind == 'linear' and env_step <= step_b:
                return value_a + (value_b - value_a) * max(env_step - step_a, 0) / (step_b - step_a)
            step_a = step_b
            value_a = value_b
        return value_a


class KLAdaptive(Section):
    """A learning rate that changes by a factor after an update, to keep the KL divergence of updates near a target.

    rate / factor after an update with KL > 2 * kl_target, rate * factor after one with KL < kl_target / 2.
    Source: Schulman et al. 2017, arXiv:1707.06347, sec. 4, for the weight of a penalty; for the rate as in rl_games, rsl_rl.
    """

    start: Annotated[float, Field(gt=0)] = Field(3e-4, description='learning rate of the first update')
    kl_target: Annotated[float, Field(gt=0)] = Field(description='KL(old || new) of an update, nats; .008 is usual')
    min: Annotated[float, Field(gt=0)] = Field(1e-6, description='smallest learning rate')
    max: Annotated[float, Field(gt=0)] = Field(1e-2, description='largest learning rate')
    factor: Annotated[float, Field(gt=1)] = Field(1.5, description='by which the rate falls or rises after an update')

    @model_validator(mode='after')
    def _in_order(self) -> KLAdaptive:
        if not self.min <= self.start <= self.max:
            raise ValueError(
                f'start is {self.start:g} but must be within min and max, {self.min:g} and {self.max:g}; move one of them'
            )
        return self

    def value(self, env_step: int) -> float:
        """The rate before the first update."""
        return self.start

    def next(self, rate: float, kl: float) -> float:
        """The rate after an update at `rate` that changed the policy by `kl`; a KL that is NaN does not change the rate."""
        if kl > 2 * self.kl_target:
            return max(rate / self.factor, self.min)
        if kl < self.kl_target / 2:
            return min(rate * self.factor, self.max)
        return rate


class SignedLinear(Linear):
    """A straight line between numbers of any sign. If `over` is null, the value is `end` from env step 1 on."""

    start: float = Field(description='value at env step 0')
    end: float = Field(description='value at env step `over` and later')

    def value(self, env_step: int) -> float:
        if self.over is None:
            if env_step:
                return self.end
            return self.start
        return super().value(env_step)


class SignedPoints(Points):
    """Points with numbers of any sign."""

    least: ClassVar[float] = -math.inf


Schedule = Annotated[float, Field(gt=0)] | Linear | Points
"""A positive number, or {start, end, over} (linear), or {points: [[env_step, value], ...]}, or that list alone."""

ScheduleOrZero = Annotated[float, Field(ge=0)] | Linear | Points
"""As Schedule; the number may be 0 (off)."""

RateSchedule = Annotated[float, Field(gt=0)] | Linear | Points | KLAdaptive
"""The schedule of a learning rate: as Schedule, or {start, kl_target, min, max, factor}."""


def schedule_value(schedule: Any, env_step: int) -> float:
    """Value of a schedule (a number, a section or its plain form) at an env step. A KLAdaptive one has its start value."""
    schedule = _section(schedule)
    if isinstance(schedule, Linear | Points | KLAdaptive):
        return schedule.value(env_step)
    return float(schedule)


def is_signed_schedule(value: Any) -> bool:
    """Whether a value has the form {start, end, over} or {points, kind}."""
    if isinstance(value, dict):
        keys = set(value)
    else:
        keys = set()
    return {'start', 'end'} <= keys <= {'start', 'end', 'over'} or 'points' in keys <= {'points', 'kind'}


def signed_section(value: Any) -> Any:
    """Builds the section of a schedule with numbers of any sign from its plain form; a number is returned unmodified."""
    return _section(value, SignedLinear, SignedPoints)


def schedule_problem(name: str, value: Any) -> str:
    """The problem of an entry of env.schedule, as the end of a sentence; '' if there is none."""
    if not ATTRIBUTE.fullmatch(name) or '__' in name:
        return f'{shown(name)} is no name of an attribute; write it as in Python, such as wind or engine.power.'
    wanted = 'a number, {start, end, over}, or {points: [[env_step, value], ...], kind}'
    if isinstance(value, bool) or not isinstance(value, int | float | dict | list):
        return f'{name!r} is {shown(value)} but must be {wanted}.'
    if isinstance(value, dict) and not is_signed_schedule(value):
        return f'{name!r} has the keys {", ".join(map(str, value)) or "none"} but must be {wanted}.'
    try:
        signed_section(value)
    except ValueError as error:
        why = getattr(error, 'errors', list)() or [{'msg': str(error)}]
        return f'{name!r} is {shown(value)}: {why[0]["msg"].removeprefix("Value error, ")}; it must be {wanted}.'
    return ''


def values_of(schedule: float | Linear | Points) -> list[float]:
    """The values between which those of a schedule lie; of a number, the number."""
    if isinstance(schedule, Linear):
        return [schedule.start, schedule.end]
    if isinstance(schedule, Points):
        return [value for _, value in schedule.points]
    return [schedule]


def greatest(schedule: float | Linear | Points) -> float:
    """The largest value of a schedule."""
    return max(values_of(schedule))


def _at_most_1(schedule: float | Linear | Points) -> float | Linear | Points:
    most = greatest(schedule)
    if most > 1:
        raise ValueError(f'it reaches {most:g} but is a probability; use 0 to 1, e.g. {{start: 1.0, end: 0.05}}.')
    return schedule


Probability = Annotated[ScheduleOrZero, AfterValidator(_at_most_1)]
"""As ScheduleOrZero; no value is above 1."""


def adaptive_rate(schedule: Any) -> KLAdaptive | None:
    """The schedule as a section if it is a KLAdaptive one, else None."""
    schedule = _section(schedule)
    if isinstance(schedule, KLAdaptive):
        return schedule
    return None


def _section(schedule: Any, linear: type[Linear] = Linear, points: type[Points] = Points) -> Any:
    """Builds the section of a schedule from its plain form, a dict or a list; other values are returned unmodified."""
    if isinstance(schedule, list) or (isinstance(schedule, dict) and 'points' in schedule):
        return points.model_validate(schedule)
    if not isinstance(schedule, dict):
        return schedule
    return (KLAdaptive if 'kl_target' in schedule else linear).model_validate(schedule)


class Rates(dict[str, float]):
    """Current values of schedules by name.

    Args: cfg: the resolved section `policy.learn`; names: its fields that may have a schedule; at_0: what rates of 0 mean.
    """

    def __init__(self, cfg: ConfigLike, names: Sequence[str], at_0: str) -> None:
        super().__init__()
        self.names = tuple(names)
        self._at_0 = at_0
        self._cfg = cfg
        self._warned = False

    def set_env_step(self, env_step: int) -> None:
        self.update({name: schedule_value(self._cfg[name], env_step) for name in self.names})
        rates = [self[name] for name in self.names if name.endswith('learning_rate')]
        if not any(rates) and not self._warned:
            self._warned = True
            logger.warning(
                '%s 0 from env step %d on: %s; resume with another, e.g. policy.learn.learning_rate=1e-4',
                'policy.learn.learning_rate is' if len(rates) == 1 else 'the learning rates of policy.learn are',
                env_step,
                self._at_0,
            )

    @property
    def clip_range(self) -> float:
        """clip_ratio, at least MIN_CLIP: the loss needs a range above 0, and a schedule may end at 0."""
        return max(self['clip_ratio'], MIN_CLIP)
