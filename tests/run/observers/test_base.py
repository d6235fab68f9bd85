"""Which methods of which observers a run calls at an event; how far a run is."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from zoo.run.observers.base import EVENTS, Callback, EventCall, Observer, Progress, RunView, handlers_of


class Notes(Observer):
    """Notes its two events."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_start(self, job: Any) -> None:
        self.seen.append(('start', job))

    def after_round(self, job: Any) -> None:
        self.seen.append(('after_round', job))


class Stopping(RunView):
    """A run that has only what `stop` needs."""

    stop_reason = None


def test_events_are_those_of_a_callback_and_those_around_rounds_rollouts_updates_and_evaluations() -> None:
    of_callbacks = {name for name in vars(Callback) if name.startswith('on_')}
    assert of_callbacks < set(EVENTS)
    assert set(EVENTS) - of_callbacks == {
        'before_round', 'after_round', 'before_rollout', 'after_rollout', 'before_update', 'after_update',
        'before_evaluation', 'after_evaluation', 'on_batch', 'on_metrics',
    }  # fmt: skip


def test_only_overridden_methods_are_called() -> None:
    observer = Notes()
    assert {event for event in EVENTS if observer.handler(event) is not None} == {'on_start', 'after_round'}
    assert all(Observer().handler(event) is None for event in EVENTS)


def test_handlers_of_an_event_come_in_the_order_of_the_observers() -> None:
    first, second, seen = Notes(), Notes(), []
    between = EventCall(lambda job: seen.append(job), 'on_start', 'on_end')
    handlers = handlers_of([first, between, second])
    assert handlers.keys() == set(EVENTS)
    assert [len(handlers[event]) for event in ('on_start', 'on_end', 'after_round', 'on_batch')] == [3, 1, 2, 0]
    assert handlers['after_round'] == [first.after_round, second.after_round]
    for handler in handlers['on_start']:
        handler('a run')
    assert first.seen == second.seen == [('start', 'a run')] and seen == ['a run']


def test_the_policy_is_evaluated_at_the_env_step_of_the_last_evaluation_alone() -> None:
    assert not Progress().is_evaluated(0)  # no return yet
    progress = Progress(eval_step=64, last_return=1.0)
    assert progress.is_evaluated(64) and not progress.is_evaluated(128)


@pytest.mark.parametrize(
    ('last_return', 'stop_value', 'is_reached'),
    [(None, 1.0, False), (1.0, None, False), (0.9, 1.0, False), (1.0, 1.0, True), (0.0, 0.0, True)],
)
def test_the_stop_value_is_reached_by_a_return_of_its_size(
    last_return: float | None, stop_value: float | None, is_reached: bool
) -> None:
    assert Progress(last_return=last_return).reached(stop_value) is is_reached


def test_the_first_reason_to_stop_counts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    job = Stopping()
    job.stop('enough')
    job.stop('too late')
    assert job.stop_reason == 'enough' and caplog.messages == ['the run ends after this round: enough']
    other = Stopping()
    other.stop()
    assert other.stop_reason == 'stop() was called'
