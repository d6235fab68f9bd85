"""The learner's side of a process that runs a runner: its start, its socket, its memory, its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from zoo.cluster.channel import Channel
from zoo.cluster.parcel import Order, Parcel
from zoo.cluster.shared_memory import Packed, map_memory, new_memory, read_blocks
from zoo.core.processes import end_words, stop_signals_blocked

GRACE = 1.0  # seconds that a process may take to end after its socket was closed
SEND_S = 10.0  # seconds after which a process that reads nothing counts as hung
ONE_THREAD = dict.fromkeys(('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS'), '1')
PROGRAM = 'import json, sys; sys.path[:] = json.loads(sys.argv[1]); from zoo.cluster.process_runner import main; main()'
"""Not `python -m`, which needs zoo in the current folder, and not multiprocessing, which runs the user's script again."""


class Failed(NamedTuple):
    """What a runner raised and could not get over. failure: a `Failure`."""

    failure: Any


class RunnerProcess:
    """One process; it ends with this one, however that ends.

    Args: group: of its runner; blob: (what makes the runner, its argument), pickled; name: in the list of processes.
      says_start: whether what it writes to stderr while it starts is passed on once it has started.
    Attributes: is_ready: its runner is made. host: where it is. orders: outstanding, with the slots that their parcels go to.
      since: when it was started.
    """

    def __init__(self, group: int, blob: bytes, name: str, says_start: bool) -> None:
        self.group, self.is_ready, self.host = group, False, socket.gethostname()
        self.orders: deque[tuple[Order, int]] = deque()
        self.since = time.monotonic()
        self._memory: dict[int, np.ndarray] = {}  # by slot
        self._busy: set[int] = set()  # slots of outstanding orders and of parcels that are still read
        self._stderr: int | None = new_memory(0)
        ours, theirs = socket.socketpair()
        ours.settimeout(SEND_S)
        self._channel = Channel(ours)
        is_main_thread = threading.current_thread() is threading.main_thread()
        arguments = [json.dumps(sys.path), str(theirs.fileno()), str(os.getpid()), str(int(is_main_thread)), name]
        try:
            with stop_signals_blocked():
                self._popen = subprocess.Popen(
                    [sys.executable, '-c', PROGRAM, *arguments],
                    stdin=subprocess.DEVNULL,
                    stderr=self._stderr,
                    pass_fds=[theirs.fileno()],
                    env={**ONE_THREAD, **os.environ},
                )
        except BaseException:  # a signal that was blocked may raise GivenUp
            if hasattr(self, '_popen'):
                self.end()
            self._close()
            raise
        finally:
            theirs.close()
        self._send_start(blob, says_start)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._channel.fileno()

    def send(self, message: Any, fds: tuple[int, ...] = ()) -> bool:
        """Sends a message; False if the process reads nothing any more. One that has ended is noticed by `read`."""
        try:
            self._channel.send(message, fds)
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def ask(self, order: Order) -> bool:
        """Sends an order, with a slot of memory for its parcel."""
        slot = next(i for i in range(len(self._busy) + 1) if i not in self._busy)
        self._busy.add(slot)
        self.orders.append((order, slot))
        return self.send(('order', order, slot))

    def read(self) -> list[tuple[str, Any, list[int]]]:
        """What it has said: ('ready', None), ('parcel' or 'failed', ...), ('result', ...). Raises: EOFError if it has ended."""
        return [(kind, content, fds) for (kind, content), fds in self._channel.read()]

    def parcel(self, content: tuple[Parcel, Packed], fds: list[int]) -> tuple[Parcel, int]:
        """The parcel of the first outstanding order, its blocks in shared memory; and the slot, to be freed."""
        rest, packed = content
        _, slot = self.orders.popleft()
        if fds:
            self._memory[slot] = map_memory(fds[0])
        return rest._replace(blocks=read_blocks(packed, self._memory.get(slot, np.empty(0, np.uint8)))), slot

    def free(self, slot: int) -> None:
        """The blocks of this slot may be overwritten."""
        self._busy.discard(slot)

    def started(self) -> None:
        """It is ready: from now on its stderr is this process's."""
        self.is_ready = True
        self._close_stderr()

    def last_words(self, n_line: int = 8) -> str:
        """The end of what it wrote to stderr, if it has not started yet."""
        if self._stderr is None:
            return ''
        text = os.pread(self._stderr, 1 << 20, 0).decode(errors='replace')
        return '\n'.join(text.strip().splitlines()[-n_line:])

    def cause_of_end(self) -> str:
        """For one whose socket is closed: how it ended, as a clause, and what it said last if it never started."""
        try:
            words = f'its process {self.pid} was {end_words(self._popen.wait(GRACE))}'
        except subprocess.TimeoutExpired:
            words = f'its process {self.pid} closed its socket'
        words = words.replace('was ended with', 'ended with')
        said = self.last_words(1)
        start = '' if self.is_ready else f' before it was ready{f": {said}" if said else ""}'
        return words + start

    def end(self, seconds: float = 0.0) -> None:
        """Waits for its end, then kills it. Its env workers end with it."""
        if self._popen.returncode is None:
            with suppress(subprocess.TimeoutExpired):
                if seconds:
                    self._popen.wait(seconds)
            self._popen.send_signal(signal.SIGKILL)
            self._popen.wait()
        self._close()

    def _send_start(self, blob: bytes, says_start: bool) -> None:
        """Through memory: the socket may be too small for it, and the process reads only in a second."""
        fds = [new_memory(len(blob))]
        try:
            with open(os.dup(fds[0]), 'wb') as file:
                file.write(blob)
            with suppress(OSError):  # there may be no stderr
                fds.append(os.dup(2))
            self.send(('start', len(blob), says_start, sys.argv), tuple(fds))
        finally:
            for fd in fds:
                os.close(fd)

    def _close(self) -> None:
        self._channel.close()
        self._close_stderr()

    def _close_stderr(self) -> None:
        if self._stderr is not None:
            os.close(self._stderr)
            self._stderr = None
