"""The process of a rank under Ray: what its actor does, and its line to the process that started it."""

from __future__ import annotations

import io
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Listener
from typing import Any, Literal, NamedTuple

from zoo.cluster.cargo import check_versions, unpacked
from zoo.cluster.failure import Failure, failure_of
from zoo.cluster.ray_cluster import Place, ray
from zoo.core.errors import UserError
from zoo.core.processes import unblock_stop_signals
from zoo.core.stop import STOP_SIGNALS

Kind = Literal['log', 'stdout', 'stderr', 'ask']  # of what a rank sends
SAID_BY_DRIVER = 'zoo.run.interrupt'  # the logger that announces a signal, which the driver got too


class Berth(NamedTuple):
    """Where a rank is. line: address that the driver connects to; free_port: for the ranks to meet, if this is rank 0."""

    place: Place
    line: tuple[str, int]
    free_port: int


class RankOrder(NamedTuple):
    """What a rank is to do. environ: variables to set; levels: of loggers, by name; cwd: folder of the driver;
    root: logger.root."""

    rank: int
    environ: Mapping[str, str]
    levels: Mapping[str, int]
    versions: Mapping[str, str]
    cwd: str
    root: str


class RankProcess:
    """What the actor of a rank runs, in its main thread, which alone can handle signals.

    Nothing is raised through Ray, which would reword it: it is returned as a Failure. The process ends when the line to
    the driver is cut, for example because the driver was killed.
    """

    def __init__(self, key: bytes) -> None:
        host = ray.util.get_node_ip_address()
        self._listener = Listener((host, 0), authkey=key)
        self._line: Line | None = None
        self._is_connected = threading.Event()
        threading.Thread(target=self._accept, name='line', daemon=True).start()

    def berth(self) -> Berth:
        """Where this process can be reached."""
        address: Any = self._listener.address
        with socket.socket() as free:
            free.bind((address[0], 0))
            port = free.getsockname()[1]
        return Berth((socket.gethostname(), os.getpid(), ray.get_runtime_context().get_node_id()), address, port)

    def run(self, order: RankOrder, cargo: bytes) -> Any:
        """What the function in the cargo returns, called with the rank and `Line.ask`; or a Failure."""
        who, host = f'rank {order.rank}', socket.gethostname()
        try:
            self._is_connected.wait()
            assert self._line is not None
            _prepare(order, self._line)
            check_versions(order.versions, host, who)
            found: dict[str, Any] = unpacked(cargo, host, who)
            return found['work'](order.rank, self._line.ask, **found['options'])
        except BaseException as error:  # also SystemExit after a signal
            return failure_of(error, host, who)

    def _accept(self) -> None:
        connection: Any = self._listener.accept()
        self._line = Line(connection)
        self._is_connected.set()
        self._line.listen()


class Line:
    """The rank's end of the connection to the driver. Args: connection: whose other end is the driver's."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def send(self, kind: Kind, value: Any) -> None:
        """Sends it; nothing where the driver is gone, which `listen` notices."""
        with self._lock, suppress(OSError):
            self._connection.send((kind, value))

    def ask(self, *args: Any) -> Any:
        """What the driver's function returns for these arguments."""
        self.send('ask', args)
        return self._answers.get()

    def listen(self) -> None:
        """Takes signals and answers from the driver; ends the process when the driver is gone."""
        try:
            while True:
                kind, value = self._connection.recv()
                if kind == 'signal':
                    os.kill(os.getpid(), value)
                else:
                    self._answers.put(value)
        except (EOFError, OSError):
            os._exit(1)


class LineHandler(logging.Handler):
    """Sends the records of this process to the driver, which handles them as its own."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        """Sends a record, with its message complete."""
        if record.name == SAID_BY_DRIVER:
            return
        found = dict(vars(record), msg=record.getMessage(), args=None, exc_info=None)
        if record.exc_info:
            found['exc_text'] = logging.Formatter().formatException(record.exc_info)
        plain = {key: value for key, value in found.items() if isinstance(value, str | int | float | None)}
        self._line.send('log', plain)


class LineStream(io.TextIOBase):
    """Standard output or error of rank 0, which the driver writes to its own."""

    def __init__(self, line: Line, kind: Kind) -> None:
        self._line, self._kind = line, kind

    def write(self, text: str) -> int:
        """Sends the text."""
        self._line.send(self._kind, text)
        return len(text)

    def writable(self) -> bool:
        """True."""
        return True


def _prepare(order: RankOrder, line: Line) -> None:
    """Makes this process like one of torchrun's. Raises: UserError where the driver's folder is missing."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # until the run has its own; not Ray's
    unblock_stop_signals()  # Ray blocks SIGINT in all that it starts
    logging.getLogger().addHandler(LineHandler(line))
    for name, level in order.levels.items():
        logging.getLogger(name).setLevel(level)
    if order.rank == 0:
        sys.stdout, sys.stderr = LineStream(line, 'stdout'), LineStream(line, 'stderr')
    os.environ.update(order.environ)
    try:
        os.chdir(order.cwd)
    except OSError as error:
        if os.path.isabs(order.root):
            return
        raise UserError(
            f'rank {order.rank} on {socket.gethostname()} cannot use the folder {order.cwd!r} in which the run was started '
            f'({error.strerror}); start it in one that all nodes share, or set logger.root to one'
        ) from error


def is_lost_rank(failure: Failure) -> bool:
    """Whether a rank failed only because it waited for another, whose end says more."""
    return failure.words.startswith('RanksLostError')


def is_stop(failure: Failure) -> bool:
    """Whether a rank ended as a signal asked it to."""
    return failure.words.startswith('Interrupted')
