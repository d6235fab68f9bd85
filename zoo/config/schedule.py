"""Hyper-parameters that change with the env steps of a run."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from zoo.config.section import Section

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
    """Straight lines between (env_step, value) points; constant before the first and after the last."""

    points: list[tuple[int, float]] = Field(min_length=1, description='[[env_step, value], ...] in order of env_step')

    @model_validator(mode='before')
    @classmethod
    def _as_tuples(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get('points'), list):
            return {**data, 'points': [tuple(p) if isinstance(p, list) else p for p in data['points']]}
        return data

    @model_validator(mode='after')
    def _rising(self) -> Points:
        steps = [step for step, _ in self.points]
        if steps != sorted(set(steps)) or steps[0] < 0:
            raise ValueError(f'env steps {steps} do not rise from 0 or more; list the points in order')
        if any(value < 0 for _, value in self.points):
            raise ValueError(f'values {[v for _, v in self.points]} must be 0 or more')
        return self

    def value(self, env_step: int) -> float:
        (step_a, value_a), *rest = self.points
        for step_b, value_b in rest:
            if env_step <= step_b:
                return value_a + (value_b - value_a) * max(env_step - step_a, 0) / (step_b - step_a)
            step_a, value_a = step_b, value_b
        return value_a


Schedule = Annotated[float, Field(gt=0)] | Linear | Points
"""A positive number, or {start, end, over} (linear), or {points: [[env_step, value], ...]}."""

ScheduleOrZero = Annotated[float, Field(ge=0)] | Linear | Points
"""As Schedule; the number may be 0 (off)."""


def schedule_value(schedule: Any, env_step: int) -> float:
    """Value of a schedule (a number, a Linear or Points section, or the plain dict of one) at an env step."""
    if isinstance(schedule, dict):
        schedule = (Points if 'points' in schedule else Linear).model_validate(dict(schedule))
    return schedule.value(env_step) if isinstance(schedule, (Linear, Points)) else float(schedule)
