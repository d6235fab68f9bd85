"""Requests to stop: the signals that make them, and the work that is given up for one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1') if hasattr(signal, name)
)
"""Ctrl-C; a request to end; a closed terminal; a job scheduler's warning. A system may lack the last two."""


class GivenUp(BaseException):
    """A stop was requested during work that can be given up."""


class _Stop:
    """The request of this process; its signals have one handler."""

    def __init__(self) -> None:
        self.is_requested = False
        self.can_give_up = False


_stop = _Stop()


def request_stop() -> None:
    """Called by a signal handler. Raises: GivenUp if the main thread is in a `may_be_given_up`."""
    _stop.is_requested = True
    if _stop.can_give_up:
        _stop.can_give_up = False  # one exception is enough
        raise GivenUp


def forget_stop() -> None:
    """A run begins or has ended: no stop is requested."""
    _stop.is_requested = False


@contextmanager
def may_be_given_up() -> Iterator[None]:
    """For long work that leaves nothing half-done, such as compilation: a request to stop, earlier ones too, ends it.

    Raises: GivenUp at any point of the work. In other threads than the main one, which gets the signals, never.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _stop.is_requested:
        raise GivenUp
    try:
        _stop.can_give_up = True
        yield
    finally:
        _stop.can_give_up = False


@contextmanager
def given_up_at_its_end() -> Iterator[Callable[[], bool]]:
    """For a part of such work through which no exception may pass at any point, such as calls of native code.

    Yields: a function, whether a stop was requested, so that the part should end. Raises: GivenUp at its end if so.
    """
    may_be = _stop.can_give_up and threading.current_thread() is threading.main_thread()
    if may_be:
        _stop.can_give_up = False
    try:
        yield lambda: may_be and _stop.is_requested
    finally:
        _stop.can_give_up = may_be or _stop.can_give_up
    if may_be and _stop.is_requested:
        _stop.can_give_up = False
        raise GivenUp
