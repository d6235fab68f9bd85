"""Which call of an env's code this process is in: read by a watch that ends the calls which never return."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

CONSTRUCTION_CALLS = 10.0  # how many times as long as a step the construction of an env may take


class Location(Protocol):
    """Words for the place of an env, see `zoo.env.errors.Place`."""

    def of(self, index: int | None) -> str: ...


class EnvCalls:
    """Written by whatever calls code of envs, in plain attributes: some of it is called a million times a second.

    Attributes:
      place: of the env, or of several that step in turn, whose code runs; None: none does.
      index: which one of several.   count: calls that have ended.
      n_timeout: times env.step_timeout that the call may take.
    """

    def __init__(self) -> None:
        self.place: Location | None = None
        self.index: int | None = None
        self.count = 0
        self.n_timeout = 1.0

    def state(self) -> Any:
        """Another value for each call; None outside of calls."""
        return None if self.place is None else (self.place, self.index, self.count)


CALLS = EnvCalls()


class _Words:
    def __init__(self, words: str) -> None:
        self._words = words

    def of(self, index: int | None) -> str:
        return self._words


@contextmanager
def env_call(where: str, n_timeout: float = 1.0) -> Iterator[None]:
    """A call of an env's code that is not made often. where: the words for its place."""
    outer = CALLS.place, CALLS.index, CALLS.n_timeout
    CALLS.place, CALLS.index, CALLS.n_timeout = _Words(where), None, n_timeout
    try:
        yield
    finally:
        CALLS.place, CALLS.index, CALLS.n_timeout = outer
        CALLS.count += 1
