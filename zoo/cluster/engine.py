"""Engines, which carry runners: their protocol, what those with other processes share, the one without, the choice by name."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from zoo.cluster.messages import Failure, Lost, Reply, Request
from zoo.cluster.runner import Runner, RunnerSpec
from zoo.core.errors import RunError


class Engine(Protocol):
    """Runs runners and carries what goes to them and comes back. It counts nothing and decides nothing.

    A runner takes its requests and calls one after the other, in the order in which they were asked.
    """

    def start(self, specs: list[RunnerSpec]) -> None:
        """Makes the runners, one for each spec, within the deadline.

        Raises: UserError for versions that differ and for code that a runner cannot import; RunError after the deadline,
          which says what is missing; what an env raises as it is made, see `Failure`.
        """

    def publish(self, weights: np.ndarray, version: int) -> None:
        """The newest weights [n_byte] u8; the array is not written again, so that an engine may keep it.

        A request with this version is done with exactly these, whenever it is done. One without one is done with the
        newest that the runner has when it begins.
        """

    def ask(self, request: Request) -> None:
        """Asks the runner `order.group` for a rollout; several may be outstanding. Returns at once.

        Of a runner that is lost and not replaced yet, the request waits for the new one.
        """

    def wait(self, timeout: float) -> list[Reply | Lost]:
        """Waits for at least one reply or loss; [] after timeout seconds. A reply is valid until the next `wait`.

        After a Lost the engine makes the runner anew by itself, with its spec and without envs' state; what it was asked
        before is forgotten.
        Raises: the error of an env or a policy, see `Failure.raise_`; RunError if a runner cannot be made again.
        """

    def call(self, group: int, method: str, *args: Any) -> Any:
        """What a method of a Runner returns, after its outstanding requests; replies that arrive meanwhile are kept for wait.

        Raises: what the method raised; RunnerLostError.
        """

    def kill(self, group: int, cause: str) -> None:
        """Ends a runner that hangs; `wait` then gives its Lost, with this cause."""

    def pids(self) -> dict[int, tuple[str, int]]:
        """The host and the process id of each runner that lives, by group."""

    def close(self) -> None:
        """Ends all runners, also those in mid-rollout. May be called again."""


class Arrived(NamedTuple):
    """What came of a runner. free: called when the caller has read it."""

    item: Reply | Lost | Failure
    free: Callable[[], None] | None = None


POLL_S = 0.1  # between two looks at signals while runners start


class OutsideEngine(Engine, ABC):
    """What engines with runners in other processes share: the start within a deadline, and a queue of what came.

    Subclasses say how messages go to a process and come from it.
    """

    lost_at_start: ClassVar[str]  # a verb, for the message

    def __init__(self) -> None:
        self._arrived: deque[Arrived] = deque()
        self._handed: list[Callable[[], None]] = []  # of what the caller may still read

    def wait(self, timeout: float) -> list[Reply | Lost]:
        """What comes within the time, in its order. Raises: see `Engine.wait`, once all before it was given."""
        while self._handed:
            self._handed.pop()()
        deadline = monotonic() + timeout
        self._pump(0.0)
        while not self._arrived and (left := deadline - monotonic()) > 0:
            self._pump(left)
        found: list[Reply | Lost] = []
        while self._arrived:
            item, free = self._arrived[0]
            if isinstance(item, Failure) and found:
                break
            self._arrived.popleft()
            if isinstance(item, Failure):
                item.raise_()
            found.append(item)
            self._handed += [] if free is None else [free]
        return found

    def _wait_for_start(self, deadline: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Returns when all runners are made, or it is over. Raises: see `Engine.start`."""
        while (missing := self._starting()) and not is_over():
            if (left := deadline - monotonic()) <= 0:
                raise RunError(self._late(missing))
            self._pump(min(left, POLL_S))
            for item, _ in self._arrived:
                if isinstance(item, Failure):
                    item.raise_()
                if isinstance(item, Lost):
                    raise RunError(f'runner {item.group} {self.lost_at_start}: {item.cause}')

    @abstractmethod
    def _pump(self, timeout: float) -> None:
        """Takes what processes say, waiting for the first of it."""

    @abstractmethod
    def _starting(self) -> list[int]:
        """The runners that are not made yet."""

    @abstractmethod
    def _late(self, missing: list[int]) -> str:
        """The message where these runners are not made in time."""


class InlineEngine(Engine):
    """Runners in this process, one after the other: for tests and debugging."""

    def __init__(self) -> None:
        self._runners: dict[int, Runner] = {}
        self._specs: list[RunnerSpec] = []
        self._weights: dict[int, np.ndarray] = {}  # by version
        self._requests: deque[Request] = deque()
        self._ready: list[Reply | Lost] = []

    def start(self, specs: list[RunnerSpec]) -> None:
        self._specs = specs
        for spec in specs:
            self._runners[spec.group] = Runner(spec)

    def publish(self, weights: np.ndarray, version: int) -> None:
        needed = {request.version for request in self._requests}  # of older ones only those are kept
        self._weights = {v: kept for v, kept in self._weights.items() if v in needed} | {version: weights}

    def ask(self, request: Request) -> None:
        self._requests.append(request)

    def wait(self, timeout: float) -> list[Reply | Lost]:
        """What is ready, else the reply of the next request, whose rollout is collected now."""
        if not self._ready and self._requests:
            self._ready.append(self._collect(self._requests.popleft()))
        ready, self._ready = self._ready, []
        return ready

    def call(self, group: int, method: str, *args: Any) -> Any:
        mine = [request for request in self._requests if request.group == group]
        self._requests = deque(request for request in self._requests if request.group != group)
        self._ready += [self._collect(request) for request in mine]
        return getattr(self._runners[group], method)(*args)

    def kill(self, group: int, cause: str) -> None:
        self._requests = deque(request for request in self._requests if request.group != group)
        self._runners.pop(group).close()
        self._ready.append(Lost(group, cause))
        self._runners[group] = Runner(next(spec for spec in self._specs if spec.group == group))

    def pids(self) -> dict[int, tuple[str, int]]:
        return dict.fromkeys(self._runners, (socket.gethostname(), os.getpid()))

    def close(self) -> None:
        self._requests.clear()
        while self._runners:
            self._runners.popitem()[1].close()

    def _collect(self, request: Request) -> Reply:
        runner, version = (
            self._runners[request.group],
            max(self._weights) if request.version is None else request.version,
        )
        runner.load(self._weights[version], version)
        return runner.collect(request).copied()  # the next rollout overwrites its blocks
