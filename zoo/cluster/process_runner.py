"""The process of one runner: it does what a `ProcessEngine` sends, one message after the other, until that ends."""

from __future__ import annotations

import os
import pickle
import select
import socket
import sys
from typing import Any

from zoo.cluster.channel import Channel
from zoo.cluster.failure import failure_of
from zoo.cluster.shared_memory import BlockMemory, WeightSlots
from zoo.core.processes import die_with_parent, leave_signals_to_parent, unblock_stop_signals


def main() -> None:
    """sys.argv: the search path of modules, a socket's descriptor, the parent's pid, whether its main thread started this."""
    fd, parent, is_main_thread = (int(word) for word in sys.argv[2:5])
    leave_signals_to_parent(ends_at_sigterm=False)
    unblock_stop_signals()
    poll = select.poll()
    poll.register(fd, 0)  # for the closing of the other end alone
    die_with_parent(parent, bool(is_main_thread), lambda seconds: poll.poll(1000 * seconds))
    channel = Channel(socket.socket(fileno=fd))
    os.register_at_fork(after_in_child=channel.close)  # else the socket would outlive this process in its env workers
    try:
        _serve(channel)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the engine has ended
        os._exit(1)


def _serve(channel: Channel) -> None:
    (_, n_byte, says_start, sys.argv), (blob, *stderr) = channel.receive()
    try:
        runner = _make(os.pread(blob, n_byte, 0))
    except BaseException as error:  # even SystemExit: the engine says what became of it
        channel.send(('failed', failure_of(error, socket.gethostname())))
        return
    os.close(blob)
    _give_stderr_back(stderr, says_start)
    channel.send(('ready', None))
    _Server(channel, runner).run()


def _make(blob: bytes) -> Any:
    """The runner."""
    import torch  # here: what its import raises is told too

    torch.set_num_threads(1)
    make, spec = pickle.loads(blob)
    return make(spec)


def _give_stderr_back(stderr: list[int], says_start: bool) -> None:
    """Until now stderr went to memory, for a message if the start failed."""
    sys.stderr.flush()
    said = os.pread(2, 1 << 20, 0) if says_start else b''
    target = stderr[0] if stderr else os.open(os.devnull, os.O_WRONLY)
    os.dup2(target, 2)
    os.close(target)
    if said:
        os.write(2, said)


class _Server:
    """Does orders and calls."""

    def __init__(self, channel: Channel, runner: Any) -> None:
        self._channel, self._runner = channel, runner
        self._weights: WeightSlots | None = None
        self._memory: dict[int, BlockMemory] = {}  # by slot

    def run(self) -> None:
        """Until it is told to end."""
        while True:
            (kind, *content), fds = self._channel.receive()
            if kind == 'end':
                self._runner.close()
                return
            if kind == 'weights':
                self._weights = WeightSlots(fds[0])
                os.close(fds[0])
            elif kind == 'order':
                self._order(*content)
            else:
                self._call(*content)

    def _order(self, order: Any, slot: int) -> None:
        fd = None
        try:
            assert self._weights is not None, 'weights are published before the first order'
            self._weights.load(order.version, self._runner.load)
            parcel = self._runner.collect(order)
            packed, fd = self._memory.setdefault(slot, BlockMemory()).write(parcel.blocks)
            message: Any = 'parcel', (parcel._replace(blocks={}), packed)
        except BaseException as error:
            message = 'failed', failure_of(error, socket.gethostname())
        self._channel.send(message, () if fd is None else (fd,))
        if fd is not None:
            os.close(fd)

    def _call(self, number: int, method: str, args: tuple[Any, ...]) -> None:
        try:
            answer: Any = pickle.dumps(getattr(self._runner, method)(*args))
        except BaseException as error:
            answer = failure_of(error, socket.gethostname())
        self._channel.send(('result', (number, answer)))
