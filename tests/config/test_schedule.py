"""Schedules: values that change with the number of env steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.tables import is_said, rows_of
from zoo.config.schedule import (
    KLAdaptive,
    Linear,
    Points,
    RateSchedule,
    Schedule,
    ScheduleOrZero,
    adaptive_rate,
    schedule_value,
)
from zoo.config.section import ConfigError, Section, validate


class Rates(Section):
    rate: Schedule = 1.0
    weight: ScheduleOrZero = 0.0
    adaptive: RateSchedule = 1.0


@pytest.mark.parametrize(
    'schedule, env_step, value',
    [
        (0.5, 10**9, 0.5),
        (Linear(start=1.0, end=0.0, over=100), 0, 1.0),
        (Linear(start=1.0, end=0.0, over=100), 25, 0.75),
        (Linear(start=1.0, end=0.2, over=100), 100, 0.2),
        (Linear(start=1.0, end=0.2, over=100), 10**9, 0.2),
        (Linear(start=0.0, end=3.0, over=3), 1, 1.0),
        (Points(points=[(10, 1.0), (20, 3.0), (40, 0.0)]), 0, 1.0),  # before the first point
        (Points(points=[(10, 1.0), (20, 3.0), (40, 0.0)]), 15, 2.0),  # half way from 1 to 3
        (Points(points=[(10, 1.0), (20, 3.0), (40, 0.0)]), 20, 3.0),
        (Points(points=[(10, 1.0), (20, 3.0), (40, 0.0)]), 35, 0.75),  # a quarter of 3 remains
        (Points(points=[(10, 1.0), (20, 3.0), (40, 0.0)]), 99, 0.0),  # after the last
        (Points(points=[(10, 1.5)]), 3, 1.5),
        (Points(points=[(0, 0.01), (1000, 0.001)], kind='step'), 999, 0.01),
        (Points(points=[(0, 0.01), (1000, 0.001)], kind='step'), 1000, 0.001),
        (Points(points=[(10, 1.0), (20, 3.0), (40, 0.0)], kind='step'), 0, 1.0),
        (Points(points=[(10, 1.0), (20, 3.0), (40, 0.0)], kind='step'), 39, 3.0),
        (Points(points=[(10, 1.0), (20, 3.0), (40, 0.0)], kind='step'), 99, 0.0),
    ],
)
def test_schedule_value_is_as_worked_by_hand(schedule, env_step, value):
    assert schedule_value(schedule, env_step) == pytest.approx(value, rel=1e-12)
    as_plain = schedule if isinstance(schedule, float) else schedule.model_dump()
    assert schedule_value(as_plain, env_step) == schedule_value(schedule, env_step)


@pytest.mark.slow
@given(start=st.floats(0, 10), end=st.floats(0, 10), over=st.integers(1, 10**9), env_step=st.integers(0, 10**10))
def test_linear_is_points_with_two_points(start, end, over, env_step):
    two = Points(points=[(0, start), (over, end)])
    assert schedule_value(Linear(start=start, end=end, over=over), env_step) == pytest.approx(
        schedule_value(two, env_step), abs=1e-9
    )  # the two add in another order


REFUSED = """
{rate: 0}
    - rate is 0 (integer) but must be a number > 0 or {start, end, over} or {points, kind}; leave it out for 1.0, the
      default.
{rate: {start: 1.0e-3}}
    - rate.end is missing: give a number >= 0 (value at env step `over` and later).
{rate: {start: 1.0e-3, end: 0, over: 0}}
    - rate.over is 0 (integer) but must be an integer > 0 or null; leave it out for null, the default.
{rate: {start: -1, end: 0}}
    - rate.start is -1 (integer) but must be a number >= 0; it is the value at env step 0.
{rate: {points: [[5, 1], [5, 2]]}}
    - rate: env steps [5, 5] do not rise from 0 or more; list the points in order
{rate: {points: [[0, 1], [5, -2]]}}
    - rate: values [1.0, -2.0] must be 0 or more
{rate: {points: [[0, 1]], kind: steps}}
    - rate.kind is 'steps' (string) but must be one of 'linear', 'step'; leave it out for 'linear', the default.
{adaptive: {start: 0.1, kl_target: 0.01}}
    - adaptive: start is 0.1 but must be within min and max, 1e-06 and 0.01; move one of them
{adaptive: {kl_target: 0}}
    - adaptive.kl_target is 0 (integer) but must be a number > 0; it is the KL(old || new) of an update, nats; .008 is
      usual.
{adaptive: {start: 1.0e-3}}
    - adaptive.end is missing: give a number >= 0 (value at env step `over` and later).
{adaptive: {}}
    - adaptive.start is missing: give a number >= 0 (value at env step 0).
{adaptive: {start: 1.0e-3, max: 0.1}}
    - adaptive.kl_target is missing: give a number > 0 (KL(old || new) of an update, nats; .008 is usual).
{rate: {point: [[0, 1]]}}
    - unknown key rate.point: did you mean rate.points?
# an adaptive rate is for learning rates alone
{rate: {kl_target: 0.01}}
    - unknown key rate.kl_target*
{weight: -1}
    - weight is -1 (integer) but must be a number >= 0 or {start, end, over} or {points, kind}; leave it out for 0.0, the
      default.
"""


@pytest.mark.parametrize(('data', 'sentences'), rows_of(REFUSED))
def test_schedule_out_of_range_says_got_and_wanted(data: dict[str, Any], sentences: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        validate(Rates, data)
    (sentence,) = sentences
    assert any(is_said(sentence, problem) for problem in error.value.problems), error.value.problems


def test_schedule_weight_may_be_zero():
    assert validate(Rates, {'weight': 0}).weight == 0


def test_bare_list_is_points() -> None:
    section = validate(Rates, {'rate': [[0, 1], [10, 3.0]]})
    assert section.rate == Points(points=[(0, 1.0), (10, 3.0)])
    assert schedule_value([[0, 1], [10, 3.0]], 5) == schedule_value(section.rate, 5) == 2.0


@pytest.mark.parametrize(
    'kl, rate',
    [
        (0.0161, 2e-3 / 1.5),  # more than twice .008
        (0.0159, 2e-3),
        (0.0041, 2e-3),
        (0.0039, 2e-3 * 1.5),  # less than half
        (float('inf'), 2e-3 / 1.5),
        (float('nan'), 2e-3),
    ],
)
def test_adaptive_rate_follows_the_kl_by_the_factor(kl: float, rate: float) -> None:
    assert KLAdaptive(start=1e-3, kl_target=0.008).next(2e-3, kl) == pytest.approx(rate, rel=1e-12)


def test_adaptive_rate_stays_within_its_limits() -> None:
    schedule = KLAdaptive(start=0.5, kl_target=0.008, min=0.25, max=1.0, factor=3.0)
    assert schedule.next(0.5, 1.0) == schedule.next(0.25, 1.0) == 0.25
    assert schedule.next(0.5, 0.0) == schedule.next(1.0, 0.0) == 1.0


def test_adaptive_rate_is_found_in_its_plain_form_and_begins_at_start() -> None:
    section = validate(Rates, {'adaptive': {'kl_target': 0.01}}).adaptive
    assert adaptive_rate(section) == adaptive_rate(section.model_dump()) == KLAdaptive(kl_target=0.01)
    assert schedule_value(section.model_dump(), 10**9) == 3e-4
    assert adaptive_rate({'kl_target': 0.02, 'max': 0.1}) == KLAdaptive(kl_target=0.02, max=0.1)
    assert all(adaptive_rate(x) is None for x in (0.1, {'start': 1.0, 'end': 0.0, 'over': 5}, [[0, 1.0]]))
