"""The process of a runner under Ray: what its actor does."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from zoo.cluster.failure import Failure, failure_of
from zoo.cluster.parcel import Order, Parcel
from zoo.cluster.ray_cluster import ray
from zoo.cluster.runner import RunnerSpec


class RunnerProcess:
    """What an actor runs: one runner, or several that take turns in the lock of their interpreter.

    Nothing of a runner is raised through Ray, which would reword it: it is returned as a Failure.
    """

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make, self._runners = make, dict[int, Any]()
        self._newest: tuple[int, np.ndarray] | None = None
        self._lock = threading.Lock()

    def make(self, spec: RunnerSpec, cargo: np.ndarray) -> tuple[str, int, str] | Failure:
        """Makes a runner. Returns: its host, process and Ray's id of its node."""
        try:
            self._runners[spec.group] = self._make(replace(spec, cargo=cargo.tobytes()))
        except Exception as error:  # an env's own too
            return failure_of(error, socket.gethostname())
        return socket.gethostname(), os.getpid(), ray.get_runtime_context().get_node_id()

    def publish(self, version: int, weights: np.ndarray) -> None:
        """The newest weights, which may arrive while a runner collects."""
        with self._lock:
            if self._newest is None or self._newest[0] < version:
                self._newest = version, weights

    def collect(self, order: Order, version: int, weights: np.ndarray) -> Parcel | Failure:
        """A rollout. Args: weights: of the version that was the newest, or wanted, when the rollout was asked for."""
        if order.version is None:
            self.publish(version, weights)
            assert self._newest is not None
            version, weights = self._newest
        runner = self._runners[order.group]
        try:
            runner.load(weights, version)
            return runner.collect(order)
        except Exception as error:
            return failure_of(error, socket.gethostname())

    def call(self, group: int, method: str, args: tuple[Any, ...]) -> tuple[Any] | Failure:
        """What a method of a runner returns, in a tuple."""
        try:
            return (getattr(self._runners[group], method)(*args),)
        except Exception as error:
            return failure_of(error, socket.gethostname())

    def close(self) -> None:
        """Closes the envs of all runners."""
        while self._runners:
            self._runners.popitem()[1].close()
