"""Runners as processes of this machine, with shared memory: for a laptop or a workstation, without a dependency; POSIX."""

from __future__ import annotations

import math
import os
import pickle
import selectors
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from zoo.cluster.engine import RunnerLostError
from zoo.cluster.failure import Failure
from zoo.cluster.parcel import Lost, Order, Parcel
from zoo.cluster.process_handle import SEND_S, RunnerProcess
from zoo.cluster.runner import Runner, RunnerSpec
from zoo.cluster.shared_memory import WeightSlots
from zoo.core.errors import RunError, UserError

CLOSE_S = 2.0  # seconds that runners have to close their envs


class ProcessEngine:
    """Each runner is a process of this machine; weights and rollouts are in memory that they share with this one.

    A runner that is lost is made anew at once, while the others go on. No spare process waits for that: starting one takes
    1.2 s (of which the import of torch .8), and it would take 163 MB.

    Args: cluster: the section; run_id: in the list of processes; make: gives the runner of a spec; in its process.
    """

    def __init__(self, cluster: Any, run_id: str, make: Callable[[Any], Any] = Runner) -> None:
        if os.name != 'posix':
            raise UserError(
                "cluster.engine 'process' needs Linux or macOS; use cluster.engine=ray, or inline for a test."
            )
        self._start_s: float = cluster['start_timeout']
        self._call_s: float = cluster['runner_timeout'] or math.inf
        self._n_slot, self._run_id, self._make = cluster['max_lag'] + 2, run_id, make
        self._blobs: dict[int, bytes] = {}  # what makes the runner of each group
        self._processes: dict[int, RunnerProcess] = {}
        self._selector = selectors.DefaultSelector()
        self._weights: tuple[WeightSlots, int] | None = None  # and the descriptor of their memory
        self._arrived: deque[tuple[RunnerProcess, Parcel | Lost | Failure, int]] = deque()  # the last: a slot
        self._handed: list[tuple[RunnerProcess, int]] = []  # slots whose parcels the caller may still read
        self._results: dict[int, Any] = {}  # of calls, by number
        self._n_call, self._is_started = 0, False
        self._end = weakref.finalize(self, _end, self._processes, self._selector, os.getpid())  # at exit too

    def start(self, specs: list[RunnerSpec]) -> None:
        """Starts all processes at once, and waits until their runners are made."""
        try:
            for spec in specs:
                self._blobs[spec.group] = pickle.dumps((self._make, spec))
                self._spawn(spec.group, says_start=spec is specs[0])
            deadline = time.monotonic() + self._start_s
            while not all(process.is_ready for process in self._processes.values()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise RunError(self._missing())
                self._pump(left)
                for _, item, _ in self._arrived:
                    if isinstance(item, Failure):
                        item.raise_()
                    if isinstance(item, Lost):
                        raise RunError(f'runner {item.group} cannot be started: {item.cause}')
        except BaseException:
            self.close()
            raise
        self._is_started = True

    def publish(self, weights: np.ndarray, version: int) -> None:
        """Copies the weights into shared memory, where orders that are outstanding do not need it."""
        if self._weights is None:
            fd = WeightSlots.new(weights.nbytes, self._n_slot)
            self._weights = WeightSlots(fd), fd
            weakref.finalize(self._weights[0], os.close, fd)
            for process in list(self._processes.values()):
                self._send(process, ('weights',), fd)
        orders = [order for process in self._processes.values() for order, _ in process.orders]
        self._weights[0].write(weights, version, {order.version for order in orders if order.version is not None})

    def ask(self, order: Order) -> None:
        """Sends an order; a process that is still starting reads it later."""
        process = self._processes[order.group]
        if not process.ask(order):
            self._lose(process, _deaf())

    def wait(self, timeout: float) -> list[Parcel | Lost]:
        """Waits for a parcel or a loss. A parcel's blocks are shared memory, valid until the next `wait`."""
        while self._handed:
            process, slot = self._handed.pop()
            process.free(slot)
        deadline = time.monotonic() + timeout
        self._pump(0.0)
        while not self._arrived and (left := deadline - time.monotonic()) > 0:
            self._pump(left)
        found: list[Parcel | Lost] = []
        while self._arrived:
            process, item, slot = self._arrived[0]
            if isinstance(item, Failure):
                if found:
                    break
                self._arrived.popleft()
                item.raise_()
            self._arrived.popleft()
            if isinstance(item, Parcel):
                self._handed.append((process, slot))
            found.append(item)
        return found

    def call(self, group: int, method: str, *args: Any) -> Any:
        """What a method of a runner returns. Raises: RunnerLostError, also if it takes longer than a rollout may."""
        process = self._processes[group]
        self._n_call += 1
        number, n_before = self._n_call, len(process.orders)
        deadline = time.monotonic() + self._call_s * (1 + n_before)
        self._send(process, ('call', number, method, args))
        while number not in self._results:
            if self._processes[group] is not process:
                cause = next((i.cause for p, i, _ in self._arrived if p is process and isinstance(i, Lost)), 'unknown')
                raise RunnerLostError(f'runner {group} was lost before it answered {method!r}: {cause}')
            left = deadline - time.monotonic()
            if left > 0:
                self._pump(left)
            else:
                self.kill(group, f'it did not answer {method!r} in time (cluster.runner_timeout)')
        answer = self._results.pop(number)
        if isinstance(answer, Failure):
            answer.raise_()
        return pickle.loads(answer)

    def kill(self, group: int, cause: str) -> None:
        """Ends the process and starts another."""
        self._lose(self._processes[group], cause)

    def pids(self) -> dict[int, tuple[str, int]]:
        """The host and the process of each runner, also of one that is still starting."""
        return {group: (process.host, process.pid) for group, process in self._processes.items()}

    def close(self) -> None:
        """Tells all to close their envs, and kills those that have not ended after CLOSE_S seconds."""
        self._is_started = False
        self._end()
        self._arrived.clear()
        self._handed.clear()
        self._weights = None

    def _spawn(self, group: int, says_start: bool = False) -> None:
        process = RunnerProcess(group, self._blobs[group], f'zoo-runner {self._run_id} {group}', says_start)
        self._processes[group] = process
        self._selector.register(process, selectors.EVENT_READ, process)
        if self._weights is not None:
            self._send(process, ('weights',), self._weights[1])

    def _send(self, process: RunnerProcess, message: Any, *fds: int) -> None:
        if not process.send(message, fds):
            self._lose(process, _deaf())

    def _pump(self, timeout: float) -> None:
        """Takes what the processes say, within that time or as long as one that starts may take."""
        if self._is_started:
            starting = [process for process in self._processes.values() if not process.is_ready]
            ends = {process: process.since + self._start_s - time.monotonic() for process in starting}
            for process in [process for process, left in ends.items() if left <= 0]:
                words = process.last_words(1)
                self._lose(process, f'it did not start within {self._start_s:g} s{f": {words}" if words else ""}')
            timeout = min([timeout, *(left for left in ends.values() if left > 0)])
        for key, _ in self._selector.select(min(timeout, 1e6)):
            process = key.data
            try:
                messages = process.read()
            except EOFError:
                self._lose(process, process.cause_of_end())
                continue
            for kind, content, fds in messages:
                self._take(process, kind, content, fds)

    def _take(self, process: RunnerProcess, kind: str, content: Any, fds: list[int]) -> None:
        if kind == 'ready':
            process.started()
        elif kind == 'parcel':
            self._arrived.append((process, *process.parcel(content, fds)))
        elif kind == 'result':
            self._results.clear()  # a call that was given up has left one behind
            self._results[content[0]] = content[1]
        else:
            if process.orders:
                process.free(process.orders.popleft()[1])
            self._arrived.append((process, content, -1))

    def _lose(self, process: RunnerProcess, cause: str) -> None:
        """Ends a process, and starts another for its runner; what it sent before stays."""
        self._selector.unregister(process)
        process.end()
        self._arrived.append((process, Lost(process.group, cause), -1))
        if self._is_started:
            self._spawn(process.group)

    def _missing(self) -> str:
        missing = {g: process.last_words() for g, process in self._processes.items() if not process.is_ready}
        said = ''.join(f'\nrunner {group} wrote last:\n{words}' for group, words in missing.items() if words)
        return (
            f'runner {", ".join(map(str, missing))} of {len(self._processes)} has not started within {self._start_s:g} s; '
            f'find out what takes so long when its envs are made, or raise cluster.start_timeout.{said}'
        )


def _deaf() -> str:
    return f'it read nothing for {SEND_S:g} s'


def _end(processes: dict[int, RunnerProcess], selector: selectors.BaseSelector, pid: int) -> None:
    """Ends all processes; not in a fork of the process that started them."""
    selector.close()
    if os.getpid() != pid:
        return
    _end_all(list(processes.values()))
    processes.clear()


def _end_all(processes: Iterable[RunnerProcess]) -> None:
    deadline = time.monotonic() + CLOSE_S
    for process in processes:
        if process.is_ready:
            process.send(('end',))
    for process in processes:
        process.end(max(deadline - time.monotonic(), 0.0) if process.is_ready else 0.0)
