"""Stop rules: each at its threshold and not before, resumed with their state, refused where they make no sense."""

from __future__ import annotations

from typing import Any

import pytest

from tests.run.observers.test_stopping import JOB, evaluated
from zoo.run.observers.stop_rules import StopRules


def test_patience_plateau_of_five_stops_at_the_fifth() -> None:
    rules = StopRules([{'type': 'patience', 'n': 5}])
    assert evaluated(rules, 1, 3, 3, 3, 2, 3, 1) == [False] * 6 + [True]  # 3, 3, 2, 3, 1: five without a new best
    assert rules.reason(JOB) == '5 evaluations in a row had no eval/return_mean above 3'


def test_patience_new_best_begins_the_count_anew() -> None:
    assert evaluated(StopRules([{'type': 'patience', 'n': 2}]), 1, 1, 2, 2, 2) == [False] * 4 + [True]


def test_patience_waits_for_min_eval_and_min_delta() -> None:
    assert evaluated(StopRules([{'type': 'patience', 'n': 2, 'min_eval': 5}]), 1, 1, 1, 1, 1) == [False] * 4 + [True]
    assert evaluated(StopRules([{'type': 'patience', 'n': 2, 'min_delta': 0.5}]), 1, 1.5, 1.5) == [False] * 2 + [True]


def test_patience_nan_is_no_new_best() -> None:
    assert evaluated(StopRules([{'type': 'patience', 'n': 2}]), 1, float('nan'), float('nan')) == [False, False, True]


def test_patience_continues_from_its_state() -> None:
    first, second = (StopRules([{'type': 'iterations', 'n': 99}, {'type': 'patience', 'n': 3}]) for _ in range(2))
    evaluated(first, 1, 1, 1)
    second.load_state_dict(first.state_dict())
    assert evaluated(second, 1) == [True]


@pytest.mark.parametrize(
    ('rule', 'stops'),
    [
        ({'type': 'wall_time', 's': 10.0}, True),
        ({'type': 'wall_time', 's': 10.1}, False),
        ({'type': 'iterations', 'n': 4}, True),
        ({'type': 'iterations', 'n': 5}, False),
        ({'type': 'train_iter', 'n': 32}, True),
        ({'type': 'train_iter', 'n': 33}, False),
    ],
)
def test_counts_stop_at_their_number_and_not_before(rule: dict[str, Any], stops: bool) -> None:
    assert (StopRules([rule]).reason(JOB) is not None) == stops


def test_reason_of_wall_time_has_the_digits_that_it_is_about() -> None:
    assert StopRules([{'type': 'wall_time', 's': 0.5}]).reason(JOB) == '10.00 of 0.50 seconds have passed'
    assert StopRules([{'type': 'wall_time', 's': 10.0}]).reason(JOB) == '10 of 10 seconds have passed'


@pytest.mark.parametrize(
    ('bound', 'value', 'stops'),
    [
        ({'above': 0.1}, 0.11, True),
        ({'above': 0.1}, 0.1, False),
        ({'below': 0.1}, 0.09, True),
        ({'below': 0.1}, 0.1, False),
        ({'above': 0.1, 'below': 0.0}, float('nan'), False),
    ],
)
def test_bound_stops_beyond_it_only(bound: dict[str, float], value: float, stops: bool) -> None:
    rules = StopRules([{'type': 'bound', 'metric': 'learn/kl', **bound}])
    assert rules.reason(JOB) is None
    rules.see(JOB, {'learn/kl': value})
    assert (rules.reason(JOB) is not None) == stops


def test_bound_on_a_metric_that_no_line_has_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    rules = StopRules([{'type': 'bound', 'metric': 'learn/train_itre', 'above': 1}])
    evaluated(rules, 1, 2, 3)
    (record,) = caplog.records
    assert "had the metric 'learn/train_itre' so far: did you mean learn/train_iter?" in record.getMessage()
