"""Engine with runners as processes of this machine, over shared memory: for a laptop or workstation; POSIX, no dependency."""

from __future__ import annotations

import math
import os
import pickle
import select
import selectors
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from zoo.cluster.engine import Arrived, RemoteEngine
from zoo.cluster.messages import Failure, Lost, Request, RunnerLostError, failure_of
from zoo.cluster.runner import Runner, RunnerSpec
from zoo.cluster.transport import BlockMemory, Channel, WeightSlots, map_memory, new_memory, read_blocks
from zoo.config.section import ConfigLike
from zoo.core.processes import (
    die_with_parent,
    end_words,
    leave_signals_to_parent,
    stop_signals_blocked,
    unblock_stop_signals,
)

GRACE = 1.0  # seconds that a process may take to end after its socket was closed
CLOSE_S = 2.0  # seconds that runners have to close their envs
SEND_S = 10.0  # seconds after which a process that reads nothing counts as hung
ONE_THREAD = dict.fromkeys(('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS'), '1')
PROGRAM = """
import pickle, sys
sys.path[:], start = pickle.load(sys.stdin.buffer)
from zoo.cluster.process_engine import main
main(*start)
"""
"""Program of a runner. `python -m` would need zoo in the current folder; multiprocessing would run the user's script again."""


class _Child:
    """The process of one runner. It ends when this process ends in any way.

    Args: group: of its runner; blob: the pickled pair (factory, its argument); name: shown in the list of processes.
      says_start: whether its output on stderr during the start is passed on once it has started.
    Attributes: is_ready: its runner is created; stderr: its output on stderr until then; since: the time of its start.
      requests: outstanding ones, each with the memory slot of its reply; busy: these slots, and slots of replies in use.
    """

    def __init__(self, group: int, blob: bytes, name: str, says_start: bool) -> None:
        self.group = group
        self.is_ready = False
        self.since = time.monotonic()
        self.requests: deque[tuple[Request, int]] = deque()
        self.memory: dict[int, np.ndarray] = {}  # by slot
        self.busy: set[int] = set()
        self.stderr = open(new_memory(0), 'r+b', buffering=0)  # until it has started
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours, SEND_S)
        fds = [theirs.fileno()]
        with suppress(OSError):  # there may be no stderr
            fds.append(os.dup(2))
        is_main_thread = threading.current_thread() is threading.main_thread()
        try:
            with open(new_memory(0), 'w+b') as start, stop_signals_blocked():
                pickle.dump((sys.path, (sys.argv, fds, os.getpid(), is_main_thread, blob, says_start)), start)
                start.seek(0)
                self._popen = subprocess.Popen(
                    [sys.executable, '-c', PROGRAM, name],
                    stdin=start,
                    stderr=self.stderr,
                    pass_fds=fds,
                    env={**ONE_THREAD, **os.environ},
                )
        except BaseException:  # a signal that was blocked may raise GivenUp
            if hasattr(self, '_popen'):
                self.end()
            self._close()
            raise
        finally:
            theirs.close()
            for fd in fds[1:]:
                os.close(fd)
        self.pid = self._popen.pid

    def send(self, message: tuple[object, ...], fds: Sequence[int] = ()) -> bool:
        """Sends a message; False if the process has stopped reading. The end of a process is noticed by reading, not here."""
        try:
            self.channel.send(message, fds)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def last_words(self, n_line: int = 8) -> str:
        """Returns the last lines that it wrote to stderr; '' once it has started."""
        if self.stderr.closed:
            return ''
        text = os.pread(self.stderr.fileno(), 1 << 20, 0).decode(errors='replace')
        return '\n'.join(text.strip().splitlines()[-n_line:])

    def cause_of_end(self) -> str:
        """Returns a clause that says how a process with a closed socket ended, with its last output if it never started."""
        try:
            words = f'its process {self.pid} was {end_words(self._popen.wait(GRACE))}'
        except subprocess.TimeoutExpired:
            words = f'its process {self.pid} closed its socket'
        words = words.replace('was ended with', 'ended with')
        if self.is_ready:
            return words
        said = self.last_words(1)
        return f'{words} before it was ready{f": {said}" if said else ""}'

    def end(self, seconds: float = 0.0) -> None:
        """Waits up to `seconds` for it to end, then kills it. Its env workers end with it."""
        if self._popen.returncode is None:
            with suppress(subprocess.TimeoutExpired):
                if seconds:
                    self._popen.wait(seconds)
            self._popen.kill()
            self._popen.wait()
        self._close()

    def _close(self) -> None:
        self.channel.close()
        self.stderr.close()


class ProcessEngine(RemoteEngine):
    """Engine whose runners are processes of this machine. Weights and rollouts are in memory shared with this process.

    A lost runner is replaced at once, while the others continue. No spare process is kept for this: a start takes 1.2 s
    (0.8 s of it the import of torch), and a spare process would take 163 MB.

    Args: cluster: the section; run_id: shown in the list of processes; make: creates a runner from a spec, in its process.
    """

    lost_at_start = 'cannot be started'

    def __init__(self, cluster: ConfigLike, run_id: str, make: Callable[[Any], Any] = Runner) -> None:
        super().__init__()
        self._start_s: float = cluster['start_timeout']
        self.call_s: float = cluster['runner_timeout'] or math.inf
        self._n_slot = cluster['max_lag'] + 2
        self._run_id = run_id
        self._make = make
        self._blobs: dict[int, bytes] = {}  # by group; see `_Child`
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._weights: tuple[WeightSlots, int] | None = None  # with the file descriptor of their memory
        self._results: dict[int, Any] = {}  # of calls, by number
        self._n_call = 0
        self._is_started = False
        self._end = weakref.finalize(self, _end, self._children, self._selector, os.getpid())  # runs at exit too

    def start(self, specs: list[RunnerSpec]) -> None:
        try:
            for spec in specs:
                self._blobs[spec.group] = pickle.dumps((self._make, spec))
                self._spawn(spec.group, says_start=spec is specs[0])
            self._wait_for_start(time.monotonic() + self._start_s)
        except BaseException:
            self.close()
            raise
        self._is_started = True

    def publish(self, weights: np.ndarray, version: int) -> None:
        if self._weights is None:
            fd = WeightSlots.new(weights.nbytes, self._n_slot)
            self._weights = WeightSlots(fd), fd
            weakref.finalize(self._weights[0], os.close, fd)
            for child in list(self._children.values()):
                self._send(child, ('weights',), fd)
        requests = [request for child in self._children.values() for request, _ in child.requests]
        self._weights[0].write(
            weights, version, {request.version for request in requests if request.version is not None}
        )

    def ask(self, request: Request) -> None:
        """Sends a request with a slot for its reply; a process that is still starting reads it later."""
        child = self._children[request.group]
        slot = next(i for i in range(len(child.busy) + 1) if i not in child.busy)
        child.busy.add(slot)
        child.requests.append((request, slot))
        self._send(child, ('request', request, slot))

    def call(self, group: int, method: str, *args: Any) -> Any:
        """Calls a method of a runner; see `Engine.call`. RunnerLostError also if it exceeds cluster.runner_timeout."""
        child = self._children[group]
        self._n_call += 1
        number = self._n_call
        deadline = time.monotonic() + self.call_s * (1 + len(child.requests))
        self._send(child, ('call', number, method, args))
        while number not in self._results:
            if self._children[group] is not child:
                causes = [item.cause for item, _ in self._arrived if isinstance(item, Lost) and item.group == group]
                raise RunnerLostError(f'runner {group} was lost before it answered {method!r}: {causes[-1]}')
            left = deadline - time.monotonic()
            if left > 0:
                self._pump(left)
            else:
                self.kill(group, f'it did not answer {method!r} in time (cluster.runner_timeout)')
        answer = self._results.pop(number)
        if isinstance(answer, Failure):
            return answer.raise_()
        return pickle.loads(answer)

    def pids(self) -> dict[int, tuple[str, int]]:
        return {group: (socket.gethostname(), child.pid) for group, child in self._children.items()}

    def close(self) -> None:
        """Tells all runners to close their envs, and kills the processes that have not ended after CLOSE_S seconds."""
        self._is_started = False
        self._end()
        self._arrived.clear()
        self._handed.clear()
        self._weights = None

    def _spawn(self, group: int, says_start: bool = False) -> None:
        child = _Child(group, self._blobs[group], f'zoo-runner {self._run_id} {group}', says_start)
        self._children[group] = child
        self._selector.register(child.channel, selectors.EVENT_READ, child)
        if self._weights is not None:
            self._send(child, ('weights',), self._weights[1])

    def _send(self, child: _Child, message: tuple[object, ...], *fds: int) -> None:
        if not child.send(message, fds):
            self.kill(child.group, f'it read nothing for {SEND_S:g} s')

    def _pump(self, timeout: float) -> None:
        """Receives messages of the processes, up to `timeout`. Kills a new process that exceeds cluster.start_timeout."""
        if self._is_started:
            ends = {group: self._children[group].since + self._start_s - time.monotonic() for group in self._starting()}
            for group in [group for group, left in ends.items() if left <= 0]:
                words = self._children[group].last_words(1)
                self.kill(group, f'it did not start within {self._start_s:g} s{f": {words}" if words else ""}')
            timeout = min([timeout, *(left for left in ends.values() if left > 0)])
        for key, _ in self._selector.select(min(timeout, 1e6)):
            child: _Child = key.data
            try:
                for (kind, content), fds in child.channel.read():
                    self._take(child, kind, content, fds)
            except EOFError:
                self.kill(child.group, child.cause_of_end())

    def _take(self, child: _Child, kind: str, content: Any, fds: list[int]) -> None:
        if kind == 'ready':
            child.is_ready = True
            child.stderr.close()  # from now on it writes to the stderr of this process
        elif kind == 'reply':
            reply, packed = content
            _, slot = child.requests.popleft()
            if fds:
                child.memory[slot] = map_memory(fds[0])
            blocks = read_blocks(packed, child.memory.get(slot, np.empty(0, np.uint8)))
            self._arrived.append(Arrived(reply._replace(blocks=blocks), partial(child.busy.discard, slot)))
        elif kind == 'result':
            self._results = dict([content])  # drops the result of an earlier call that was given up
        else:
            if child.requests:
                child.busy.discard(child.requests.popleft()[1])
            self._arrived.append(Arrived(content))

    def kill(self, group: int, cause: str) -> None:
        """Ends a process and starts another one for its runner; messages that were received before stay."""
        child = self._children[group]
        self._selector.unregister(child.channel)
        child.end()
        self._arrived.append(Arrived(Lost(group, cause)))
        if self._is_started:
            self._spawn(group)

    def _starting(self) -> list[int]:
        return [group for group, child in self._children.items() if not child.is_ready]

    def _late(self, missing: list[int]) -> str:
        words = {group: self._children[group].last_words() for group in missing}
        said = ''.join(f'\nrunner {group} wrote last:\n{lines}' for group, lines in words.items() if lines)
        return (
            f'runner {", ".join(map(str, missing))} of {len(self._children)} has not started within {self._start_s:g} s; '
            f'find out what takes so long when its envs are made, or raise cluster.start_timeout.{said}'
        )


def _end(children: dict[int, _Child], selector: selectors.BaseSelector, pid: int) -> None:
    """Ends all processes; not in a fork of the process that started them."""
    selector.close()
    if os.getpid() != pid:
        return
    deadline = time.monotonic() + CLOSE_S
    for child in children.values():
        if child.is_ready:
            child.send(('end',))
    for child in children.values():
        child.end(max(deadline - time.monotonic(), 0.0) if child.is_ready else 0.0)
    children.clear()


def main(argv: list[str], fds: list[int], parent: int, is_main_thread: bool, blob: bytes, says_start: bool) -> None:
    """Runs the process of a runner: serves the messages of the engine one after the other, until the engine ends.

    Args: argv: of the parent, for the user's code; fds: of the socket, then of the parent's stderr if there is one.
      parent: process id; is_main_thread: whether the parent's main thread started this process; blob, says_start: see `_Child`.
    """
    sys.argv = argv
    fd, *stderr = fds
    os.ftruncate(sys.stdin.fileno(), 0)  # frees the memory that held the arguments
    leave_signals_to_parent(ends_at_sigterm=False)
    unblock_stop_signals()
    poll = select.poll()
    poll.register(fd, 0)  # reports only that the other end was closed
    die_with_parent(parent, is_main_thread, lambda seconds: poll.poll(1000 * seconds))
    channel = Channel(socket.socket(fileno=fd))
    os.register_at_fork(after_in_child=channel.close)  # else the socket would outlive this process in its env workers
    try:
        _serve(channel, blob, stderr, says_start)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the engine has ended
        os._exit(1)


def _serve(channel: Channel, blob: bytes, stderr: list[int], says_start: bool) -> None:
    try:
        torch.set_num_threads(1)
        make, spec = pickle.loads(blob)
        runner = make(spec)
    except BaseException as error:  # even SystemExit: the engine reports it
        channel.send(('failed', failure_of(error)))
        return
    _give_stderr_back(stderr, says_start)
    channel.send(('ready', None))
    memory: defaultdict[int, BlockMemory] = defaultdict(BlockMemory)  # by slot
    weights: WeightSlots | None = None
    while True:
        (kind, *content), fds = channel.receive()
        if kind == 'end':
            runner.close()
            return
        if kind == 'weights':
            weights = WeightSlots(fds[0])
        else:
            try:
                if kind == 'request':
                    request, slot = content
                    assert weights is not None, 'weights are published before the first request'
                    weights.load(request.version, runner.load)
                    reply = runner.collect(request)
                    packed, fd = memory[slot].write(reply.blocks)
                    message: tuple[object, ...] = 'reply', (reply._replace(blocks={}), packed)
                    if fd is None:
                        fds = []
                    else:
                        fds = [fd]
                else:
                    number, method, args = content
                    message = 'result', (number, pickle.dumps(getattr(runner, method)(*args)))
            except BaseException as error:
                failure = failure_of(error)
                if kind == 'request':
                    message = ('failed', failure)
                else:
                    message = ('result', (number, failure))
            channel.send(message, fds)
        for fd in fds:
            os.close(fd)


def _give_stderr_back(stderr: list[int], says_start: bool) -> None:
    """Restores stderr, which went to memory during the start so that a message about a failed start can quote it."""
    sys.stderr.flush()
    if says_start:
        said = os.pread(2, 1 << 20, 0)
    else:
        said = b''
    if stderr:
        target = stderr[0]
    else:
        target = os.open(os.devnull, os.O_WRONLY)
    os.dup2(target, 2)
    os.close(target)
    if said:
        os.write(2, said)
