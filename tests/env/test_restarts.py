"""Restarts: they are counted up to a limit, logged, and refused for envs that break the interface."""

from __future__ import annotations

import logging

import pytest

from zoo.env.errors import BrokenContractError, EnvContractError, EnvError
from zoo.env.restarts import N_LOGGED, Restarts


def fail(restarts: Restarts, cause: BaseException | None = None) -> None:
    restarts.note("env 'e', index 1, step 5", cause or OSError('the simulator is gone'))


def test_restarts_up_to_the_limit_are_counted_and_the_next_one_ends_the_run() -> None:
    restarts = Restarts(2)
    fail(restarts)
    fail(restarts)
    cause = OSError('gone')
    with pytest.raises(EnvError) as raised:
        fail(restarts, cause)
    assert restarts.count == 2 and raised.value.__cause__ is cause
    assert str(raised.value) == (
        "env 'e', index 1, step 5: OSError: gone (unknown:0); envs were made anew 2 times before, wanted at most 2 times in a "
        'run; fix the env, or raise env.max_restarts.'
    )


def test_limit_of_0_allows_no_restart() -> None:
    with pytest.raises(EnvError, match='made anew 0 times before, wanted at most 0 times'):
        fail(Restarts(0))


@pytest.mark.parametrize('cause', [BrokenContractError('got', 'wanted', 'do'), EnvContractError('a wrong value.')])
def test_env_that_breaks_the_interface_is_not_restarted(cause: Exception) -> None:
    restarts = Restarts(5)
    with pytest.raises(type(cause)) as raised:
        fail(restarts, cause)
    assert raised.value is cause and restarts.count == 0


def test_first_restarts_are_logged_one_by_one_and_later_every_hundredth(caplog: pytest.LogCaptureFixture) -> None:
    restarts = Restarts(1000)
    with caplog.at_level(logging.WARNING):
        for _ in range(250):
            fail(restarts)
    counts = [int(text.partition('made anew (')[2].partition(' of')[0]) for text in caplog.messages]
    assert counts == [*range(1, N_LOGGED + 1), 100, 200]


def test_error_about_a_worker_is_logged_in_its_own_words(caplog: pytest.LogCaptureFixture) -> None:
    fail(Restarts(3), EnvError("env 'e', index 1: no answer to step 5 within 2 s; raise env.step_timeout."))
    assert caplog.messages == [
        "env 'e', index 1: no answer to step 5 within 2 s; raise env.step_timeout; it is made anew (1 of at most 3 restarts)"
    ]
