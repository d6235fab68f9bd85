"""A record of the running calls of env code, for the watch on them."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from zoo.env.errors import STOPS, add_place

CONSTRUCTION_CALLS = 10.0  # the construction of an env may take 10 times as long as a step


@dataclass
class CallRecord:
    """Record of the call of env code that one thread is in; the code that makes the call writes it.

    Attributes:
      place: function from an env's index to the words for that env in messages; None: no env code runs.
      index: of the env whose code runs.   count: calls that have ended.
      n_timeout: time limit of the call, in multiples of env.step_timeout.   is_watched: whether a watch observes the thread.
    """

    place: Callable[[int | None], str] | None = None
    index: int | None = None
    count: int = 0
    n_timeout: float = 1.0
    is_watched: bool = False

    def state(self) -> tuple[Callable[[int | None], str], int | None, int] | None:
        """A value that is different for each call; None outside of calls."""
        if self.place is None:
            return None
        return self.place, self.index, self.count


CALLS: dict[int, CallRecord] = defaultdict(CallRecord)  # of each thread, by threading.get_ident()


@contextmanager
def env_call(where: str, n_timeout: float = 1.0) -> Iterator[None]:
    """Context that records a call of env code, for calls that are rare. where: the words for the env in messages."""
    calls = CALLS[threading.get_ident()]
    outer = calls.place, calls.index, calls.n_timeout
    calls.place = lambda index: where
    calls.index = None
    calls.n_timeout = n_timeout
    try:
        yield
    finally:
        calls.place, calls.index, calls.n_timeout = outer
        calls.count += 1


@contextmanager
def locate(where: str) -> Iterator[None]:
    """Context for the construction of envs: adds `where` to exceptions of their code, see `add_place`."""
    try:
        with env_call(where, CONSTRUCTION_CALLS):
            yield
    except STOPS:
        raise
    except BaseException as error:
        add_place(error, where)
        raise
