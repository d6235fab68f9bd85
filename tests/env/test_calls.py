"""The record of running calls of env code, which the watch on them reads."""

from __future__ import annotations

import threading

import pytest

from zoo.env.calls import CALLS, CONSTRUCTION_CALLS, CallRecord, env_call, locate


def record() -> CallRecord:
    return CALLS[threading.get_ident()]


def test_record_has_a_place_during_a_call_and_none_after_it() -> None:
    before = record().count
    assert record().state() is None
    with env_call("env 'e'", n_timeout=3.0):
        place = record().place
        assert place is not None and place(None) == "env 'e'"
        assert record().n_timeout == 3.0 and record().index is None and record().state() is not None
    assert record().state() is None and record().n_timeout == 1.0 and record().count == before + 1


def test_call_inside_a_call_leaves_the_outer_one_as_it_was() -> None:
    with env_call('outer', n_timeout=2.0):
        record().index = 4
        outer = record().place
        with env_call('inner'):
            assert record().index is None
        assert record().place is outer and record().index == 4 and record().n_timeout == 2.0


def test_states_of_two_calls_differ_though_their_place_is_equal() -> None:
    states = []
    for _ in range(2):
        with env_call('the same'):
            states.append(record().state())
    assert states[0] != states[1]


def test_record_is_cleared_if_the_call_raises() -> None:
    with pytest.raises(ZeroDivisionError), env_call('e'):
        raise ZeroDivisionError
    assert record().state() is None


def test_each_thread_has_a_record_of_its_own() -> None:
    states: list[object] = []
    with env_call('e'):
        thread = threading.Thread(target=lambda: states.append(record().state()))
        thread.start()
        thread.join()
    assert states == [None]


def test_construction_has_more_time_and_its_errors_get_the_place() -> None:
    with pytest.raises(OSError) as raised, locate("env 'e', while it was made"):
        assert record().n_timeout == CONSTRUCTION_CALLS
        raise OSError('no such file')
    where, at = raised.value.env_place  # type: ignore[attr-defined]
    assert where == "env 'e', while it was made" and at.startswith(f'{__file__}:')
