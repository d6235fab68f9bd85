"""What carries runners: the protocol that all engines follow, the one inside this process, and the choice by name."""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import Any, Protocol

import numpy as np

from zoo.cluster.config import engine_of
from zoo.cluster.parcel import Lost, Order, Parcel
from zoo.cluster.runner import Runner, RunnerSpec
from zoo.core.errors import RunError


class RunnerLostError(RunError):
    """A runner was lost before it had answered a call; `wait` gives its `Lost` too."""


class Engine(Protocol):
    """Runs runners and carries what goes to them and comes back. It counts nothing and decides nothing.

    A runner takes its orders and calls one after the other, in the order in which they were asked.
    """

    def start(self, specs: list[RunnerSpec]) -> None:
        """Makes the runners, one for each spec, within the deadline.

        Raises: UserError for versions that differ and for code that a runner cannot import; RunError after the deadline,
          which says what is missing; what an env raises as it is made, see `Failure`.
        """

    def publish(self, weights: np.ndarray, version: int) -> None:
        """The newest weights [n_byte] u8; the array is not written again, so that an engine may keep it.

        An order with this version is done with exactly these, whenever it is done. An order without one is done with the
        newest that the runner has when it begins.
        """

    def ask(self, order: Order) -> None:
        """Asks the runner `order.group` for a rollout; several may be outstanding. Returns at once.

        Of a runner that is lost and not replaced yet, the order waits for the new one.
        """

    def wait(self, timeout: float) -> list[Parcel | Lost]:
        """Waits for at least one parcel or loss; [] after timeout seconds. A parcel is valid until the next `wait`.

        After a Lost the engine makes the runner anew by itself, with its spec and without envs' state; what it was asked
        before is forgotten.
        Raises: the error of an env or a policy, see `Failure.raise_`; RunError if a runner cannot be made again.
        """

    def call(self, group: int, method: str, *args: Any) -> Any:
        """What a method of a Runner returns, after its outstanding orders; parcels that arrive meanwhile are kept for wait.

        Raises: what the method raised; RunnerLostError.
        """

    def kill(self, group: int, cause: str) -> None:
        """Ends a runner that hangs; `wait` then gives its Lost, with this cause."""

    def pids(self) -> dict[int, tuple[str, int]]:
        """The host and the process id of each runner that lives, by group."""

    def close(self) -> None:
        """Ends all runners, also those in mid-rollout. May be called again."""


class InlineEngine:
    """Runners in this process, one after the other: for tests and debugging. Args: run_id: of the parcels."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._runners: dict[int, Runner] = {}
        self._specs: list[RunnerSpec] = []
        self._weights: dict[int, np.ndarray] = {}  # by version
        self._orders: deque[Order] = deque()
        self._ready: list[Parcel | Lost] = []

    def start(self, specs: list[RunnerSpec]) -> None:
        """Makes the runners."""
        self._specs = specs
        for spec in specs:
            self._runners[spec.group] = Runner(spec)

    def publish(self, weights: np.ndarray, version: int) -> None:
        """Keeps the weights, and of older ones those that an order needs."""
        needed = {order.version for order in self._orders}
        self._weights = {v: kept for v, kept in self._weights.items() if v in needed} | {version: weights}

    def ask(self, order: Order) -> None:
        """Puts the order at the end of the queue."""
        self._orders.append(order)

    def wait(self, timeout: float) -> list[Parcel | Lost]:
        """What is ready, else the parcel of the next order, whose rollout is collected now."""
        if not self._ready and self._orders:
            self._ready.append(self._collect(self._orders.popleft()))
        ready, self._ready = self._ready, []
        return ready

    def call(self, group: int, method: str, *args: Any) -> Any:
        """Does the orders of this runner, then calls its method."""
        mine = [order for order in self._orders if order.group == group]
        self._orders = deque(order for order in self._orders if order.group != group)
        self._ready += [self._collect(order) for order in mine]
        return getattr(self._runners[group], method)(*args)

    def kill(self, group: int, cause: str) -> None:
        """Makes the runner anew."""
        self._orders = deque(order for order in self._orders if order.group != group)
        self._runners.pop(group).close()
        self._ready.append(Lost(group, cause))
        self._runners[group] = Runner(next(spec for spec in self._specs if spec.group == group))

    def pids(self) -> dict[int, tuple[str, int]]:
        """This process, for each runner."""
        return dict.fromkeys(self._runners, (socket.gethostname(), os.getpid()))

    def close(self) -> None:
        """Closes the envs of all runners."""
        self._orders.clear()
        while self._runners:
            self._runners.popitem()[1].close()

    def _collect(self, order: Order) -> Parcel:
        runner, version = self._runners[order.group], max(self._weights) if order.version is None else order.version
        runner.load(self._weights[version], version)
        parcel = runner.collect(order)
        copies = {name: block.copy() for name, block in parcel.blocks.items()}  # the next rollout overwrites these
        return parcel._replace(blocks=copies)


def make_engine(cluster: Any, run_id: str) -> Engine:
    """The engine that the section `cluster` names, without runners. Args: run_id: names what it makes outside this process."""
    name = engine_of(cluster)
    if name == 'process':
        from zoo.cluster.process_engine import ProcessEngine

        return ProcessEngine(cluster, run_id)
    if name == 'ray':
        from zoo.cluster.ray_engine import RayEngine

        return RayEngine(cluster, run_id)
    return InlineEngine(run_id)
