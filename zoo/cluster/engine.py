"""Engines, which carry runners: their protocol, the base class for runners in other processes, the engine in this process."""

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
    """Runs runners and carries the messages to and from them. It counts nothing and decides nothing.

    A runner serves its requests and calls one after the other, in the order in which they were made.
    """

    def start(self, specs: list[RunnerSpec]) -> None:
        """Creates one runner for each spec before the deadline.

        Raises: UserError if versions differ or a runner cannot import some code; RunError after the deadline, with the
          runners that are missing; the exception of an env that cannot be created, see `Failure`.
        """

    def publish(self, weights: np.ndarray, version: int) -> None:
        """Makes these weights, [n_byte] u8, the newest. The caller never writes to the array again: an engine may keep it.

        A request with this version is collected with exactly these weights, at any later time. A request without a
        version is collected with the newest weights that the runner has when it begins.
        """

    def ask(self, request: Request) -> None:
        """Asks the runner `request.group` for a rollout and returns at once; several requests may be outstanding.

        If that runner is lost and not replaced yet, the request waits for its replacement.
        """

    def wait(self, timeout: float) -> list[Reply | Lost]:
        """Waits for at least one reply or loss; [] after timeout seconds. A reply is valid until the next `wait`.

        After a Lost the engine itself creates the runner again, from the same spec. The states of its envs and the requests
        to the lost runner are gone.
        Raises: the error of an env or a policy, see `Failure.raise_`; RunError if a runner cannot be created again.
        """

    def call(self, group: int, method: str, *args: Any) -> Any:
        """Calls a method of a Runner after its outstanding requests. Replies that arrive meanwhile are kept for `wait`.

        Returns: the method's result. Raises: the method's exception; RunnerLostError.
        """

    def kill(self, group: int, cause: str) -> None:
        """Ends a runner that hangs; `wait` then returns its Lost, with this cause."""

    def pids(self) -> dict[int, tuple[str, int]]:
        """Returns the host and process id of each living runner, by group."""

    def close(self) -> None:
        """Ends all runners, also those in mid-rollout. May be called again."""


class Arrived(NamedTuple):
    """An item that came from a runner. free: called once the caller has read the item."""

    item: Reply | Lost | Failure
    free: Callable[[], None] | None = None


POLL_S = 0.1  # seconds between two checks for signals while runners start


class RemoteEngine(Engine, ABC):
    """Base class of engines with runners in other processes: the start before a deadline, and a queue of arrived items.

    Subclasses implement the messages to and from a process.
    """

    lost_at_start: ClassVar[str]  # predicate of the error message, e.g. 'cannot be started'

    def __init__(self) -> None:
        self._arrived: deque[Arrived] = deque()
        self._handed: list[Callable[[], None]] = []  # `free` of each item that the caller may still read

    def wait(self, timeout: float) -> list[Reply | Lost]:
        """Returns the items that arrive in time, in order. Raises: see `Engine.wait`, after earlier items were returned."""
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
            if free is not None:
                self._handed += [free]
        return found

    def _wait_for_start(self, deadline: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Waits until all runners are created or `is_over` returns true. Raises: see `Engine.start`."""
        while (missing := self._starting()) and not is_over():
            left = deadline - monotonic()
            if left <= 0:
                raise RunError(self._late(missing))
            self._pump(min(left, POLL_S))
            for item, _ in self._arrived:
                if isinstance(item, Failure):
                    item.raise_()
                if isinstance(item, Lost):
                    raise RunError(f'runner {item.group} {self.lost_at_start}: {item.cause}')

    @abstractmethod
    def _pump(self, timeout: float) -> None:
        """Receives messages of the processes; waits up to `timeout` seconds for the first one."""

    @abstractmethod
    def _starting(self) -> list[int]:
        """Returns the groups of the runners that are not created yet."""

    @abstractmethod
    def _late(self, missing: list[int]) -> str:
        """Returns the error message about runners that were not created in time."""


class InlineEngine(Engine):
    """Engine whose runners run in this process, one after the other; for tests and debugging."""

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
        needed = {request.version for request in self._requests}  # of the older versions only these are kept
        self._weights = {v: kept for v, kept in self._weights.items() if v in needed} | {version: weights}

    def ask(self, request: Request) -> None:
        self._requests.append(request)

    def wait(self, timeout: float) -> list[Reply | Lost]:
        """Returns the items that are ready; if there are none, collects the rollout of the next request now."""
        if not self._ready and self._requests:
            self._ready.append(self._collect(self._requests.popleft()))
        ready = self._ready
        self._ready = []
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
        runner = self._runners[request.group]
        if request.version is None:
            version = max(self._weights)
        else:
            version = request.version
        runner.load(self._weights[version], version)
        return runner.collect(request).copied()  # the next rollout overwrites its blocks
