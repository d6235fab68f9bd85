"""Ranks as actors of Ray: what torchrun is for ranks on one machine, on a cluster. Ray is imported by `ray_cluster.py` alone."""

from __future__ import annotations

import io
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from logging.handlers import QueueHandler
from multiprocessing.connection import Client, Connection, Listener, wait
from secrets import token_bytes
from time import monotonic
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from zoo.cluster import ray_cluster
from zoo.cluster.config import STARTED_BY, RunConfig
from zoo.cluster.messages import Failure, failure_of
from zoo.cluster.pickled_code import check_versions, unpacked, versions
from zoo.cluster.ray_cluster import Place, ray
from zoo.config.section import value_at
from zoo.core.errors import RunError, UserError, show_error
from zoo.core.processes import STOP_SIGNALS, unblock_stop_signals
from zoo.core.ranks import RanksLostError

Kind = Literal['log', 'stdout', 'stderr', 'ask']  # of what a rank sends
Send = Callable[[Kind, Any], None]
SAID_BY_DRIVER = 'zoo.run.signals'  # the logger that announces a signal, which the driver got too


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
        self._listener = Listener((ray.util.get_node_ip_address(), 0), authkey=key)
        self._line, self._lock = Future[Connection](), threading.Lock()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name='line', daemon=True).start()

    def berth(self) -> Berth:
        """Where this process can be reached."""
        address: Any = self._listener.address
        with socket.socket() as free:
            free.bind((address[0], 0))
            port = free.getsockname()[1]
        return Berth((socket.gethostname(), os.getpid(), ray.get_runtime_context().get_node_id()), address, port)

    def run(self, order: RankOrder, cargo: bytes) -> Any:
        """What the function in the cargo returns, called with the rank and `ask`; or a Failure."""
        who, host = f'rank {order.rank}', socket.gethostname()
        try:
            self._prepare(order)
            check_versions(order.versions, host, who)
            found: dict[str, Any] = unpacked(cargo, host, who)
            return found['work'](order.rank, self.ask, **found['options'])
        except BaseException as error:  # also SystemExit after a signal
            return failure_of(error, who)

    def send(self, kind: Kind, value: object) -> None:
        """Sends it to the driver; nothing where that is gone, which `_listen` notices."""
        line = self._line.result()
        with self._lock, suppress(OSError):
            line.send((kind, value))

    def ask(self, *args: Any) -> Any:
        """What the driver's function returns for these arguments."""
        self.send('ask', args)
        return self._answers.get()

    def _listen(self) -> None:
        """Takes signals and answers from the driver; ends the process when the driver is gone."""
        connection: Any = self._listener.accept()
        self._line.set_result(connection)
        try:
            while True:
                kind, value = connection.recv()
                if kind == 'signal':
                    os.kill(os.getpid(), value)
                else:
                    self._answers.put(value)
        except (EOFError, OSError):
            os._exit(1)

    def _prepare(self, order: RankOrder) -> None:
        """Makes this process like one of torchrun's. Raises: UserError where the driver's folder is missing."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)  # until the run has its own; not Ray's
        unblock_stop_signals()  # Ray blocks SIGINT in all that it starts
        logging.getLogger().addHandler(LineHandler(self.send))
        for name, level in order.levels.items():
            logging.getLogger(name).setLevel(level)
        if order.rank == 0:
            sys.stdout, sys.stderr = LineStream(self.send, 'stdout'), LineStream(self.send, 'stderr')
        os.environ.update(order.environ)
        try:
            os.chdir(order.cwd)
        except OSError as error:
            if os.path.isabs(order.root):
                return
            raise UserError(
                f'rank {order.rank} on {socket.gethostname()} cannot use the folder {order.cwd!r} in which the run was '
                f'started ({error.strerror}); start it in one that all nodes share, or set logger.root to one'
            ) from error


class LineHandler(QueueHandler):
    """Sends the records of this process to the driver, which handles them as its own. Args: send: `RankProcess.send`."""

    def __init__(self, send: Send) -> None:
        super().__init__(queue.SimpleQueue())  # which stays empty
        self._send = send
        self.addFilter(lambda record: record.name != SAID_BY_DRIVER)

    def enqueue(self, record: logging.LogRecord) -> None:
        plain = {key: value for key, value in vars(record).items() if isinstance(value, str | int | float | None)}
        self._send('log', plain)


class LineStream(io.TextIOBase):
    """Standard output or error of rank 0, which the driver writes to its own."""

    def __init__(self, send: Send, kind: Kind) -> None:
        self._send, self._kind = send, kind

    def write(self, text: str) -> int:
        self._send(self._kind, text)
        return len(text)

    def writable(self) -> bool:
        return True


POLL_S = 0.1  # between two looks at signals and at what came
GRACE_S = 5.0  # after a rank lost the others, until the one that is the cause is noticed
HOUR = 3600.0
LOGGERS = '', 'zoo'  # whose levels the ranks take over
logger = logging.getLogger(__name__)


class _DiedError(RanksLostError):
    """A process of a rank is gone, so that all may start again."""


def run_ranks(cfg: RunConfig, cargo: bytes, received: Sequence[int], answer: Callable[..., Any] | None) -> Any:
    """Runs what is in the cargo (see `RankProcess.run`) in cluster.learner_num ranks, and returns what rank 0 returned.

    When a process ends unexpectedly all of them are started again, cluster.restart_limit times in an hour.
    Args: received: signals to this process, which rank 0 gets too; answer: called here for what rank 0 asks.
    Raises: what a rank raised, as it is; RanksLostError if a process ended after a signal or too often; RunError if the
      ranks do not start within cluster.start_timeout; UserError if no cluster can be joined.
    """
    cluster, n = cfg.cluster, cfg.cluster.learner_num
    n_runner_cpu = cluster.runner_num * cluster.runner_cpu if cluster.engine == 'ray' else 0.0
    owns_ray = ray_cluster.join(cluster.address, {'CPU': n * (1 + n_runner_cpu)}, cluster.working_dir)
    run_id, losses = uuid4().hex[:12], list[float]()
    bundle = {'CPU': 1.0}
    if cfg.policy.get('device', 'auto') in ('auto', 'cuda') and ray.cluster_resources().get('GPU'):
        bundle['GPU'] = 1.0
    group = ray.util.placement_group([bundle] * n, strategy='PACK')  # as near to each other as there is room
    try:
        while True:
            crew = _Crew(cfg, group, run_id, len(losses))
            try:
                crew.start(cargo, received)
                return crew.result(received, answer)
            except _DiedError as error:
                losses.append(monotonic())
                n_lately = sum(loss > monotonic() - HOUR for loss in losses)
                if received or n_lately > cluster.restart_limit:
                    raise
                logger.warning(
                    '%s; all %d ranks start again from the newest checkpoint, if there is one (%d of %d times in an hour)',
                    error,
                    n,
                    n_lately,
                    cluster.restart_limit,
                )
            finally:
                crew.close(received)
    finally:
        if owns_ray:
            ray_cluster.leave()
        else:
            ray.util.remove_placement_group(group)


class _Crew:
    """The actors of all ranks, from one start to the next.

    Args: group: of Ray's resources, a bundle for each; n_restart: starts before this one.
    """

    def __init__(self, cfg: RunConfig, group: Any, run_id: str, n_restart: int) -> None:
        self._cfg, self._group, self._run_id, self._n_restart = cfg, group, run_id, n_restart
        self._n = cfg.cluster.learner_num
        self._bundle: dict[str, float] = group.bundle_specs[0]
        self._actors: list[Any] = []
        self._berths: list[Berth] = []
        self._lines: list[Connection] = []
        self._pending: dict[Any, int] = {}  # rank by the reference of what it returns

    def start(self, cargo: bytes, received: Sequence[int]) -> None:
        """Places the actors, all or none, and gives them their orders."""
        deadline = monotonic() + self._cfg.cluster.start_timeout
        self._wait_for([self._group.ready()], deadline, received)
        key, in_group = token_bytes(32), ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        for rank in range(self._n):
            options: dict[str, Any] = {
                'num_cpus': 1,
                'num_gpus': self._bundle.get('GPU', 0),
                'max_restarts': 0,
                'name': f'zoo-{self._run_id}-rank-{rank}-{self._n_restart}',
                'scheduling_strategy': in_group(self._group, rank, placement_group_capture_child_tasks=False),
            }
            self._actors.append(ray.remote(RankProcess).options(**options).remote(key))
        refs = [actor.berth.remote() for actor in self._actors]
        self._wait_for(refs, deadline, received)
        berths = []
        for rank, ref in enumerate(refs):
            try:
                berths.append(self._got(ref, rank))
            except _DiedError as error:
                raise RunError(f'rank {rank} ended as it started: {error}') from None
        self._berths = berths
        self._lines = [Client(berth.line, authkey=key) for berth in self._berths]
        cargo_ref = ray.put(cargo)
        for rank, actor in enumerate(self._actors):
            self._pending[actor.run.remote(self._order(rank), cargo_ref)] = rank

    def result(self, received: Sequence[int], answer: Callable[..., Any] | None) -> Any:
        """What rank 0 returned, once all have ended. Raises: see `run_ranks`; _DiedError."""
        found: dict[int, Any] = {}
        deadline, n_sent = float('inf'), 0
        while self._pending and monotonic() < deadline:
            self._listen(POLL_S, answer)
            if received and not n_sent:  # a second one ends this process
                n_sent = 1
                with suppress(OSError):
                    self._lines[0].send(('signal', received[0]))
            for ref in ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)[0]:
                rank = self._pending.pop(ref)
                try:
                    found[rank] = self._got(ref, rank)
                except _DiedError as error:
                    found[rank] = _DiedError(f'rank {rank} of {self._n} is lost: {error}')
                if _is_other_fault(found[rank]):  # a rank that stops at a signal does not hurry the others
                    is_cut_off = found[rank].words.startswith('RanksLostError')
                    deadline = min(deadline, monotonic() + GRACE_S) if is_cut_off else deadline
                elif isinstance(found[rank], Failure | _DiedError):
                    deadline = 0.0
        end = monotonic() + 1.0
        while self._listen(POLL_S, answer) and monotonic() < end:  # what they said last
            pass
        failures = sorted((x for x in found.values() if isinstance(x, Failure)), key=_is_other_fault)
        lost = [x for x in found.values() if isinstance(x, _DiedError)]
        if lost and (not failures or _is_other_fault(failures[0])):
            raise lost[0]
        if failures:
            failures[0].raise_()
        return found[0]

    def close(self, received: Sequence[int]) -> None:
        """Ends the actors; returns when their processes on this machine are gone.

        After a signal without asking Ray, whose services may have got it too.
        """
        if ray.is_initialized():
            places = [berth.place for berth in self._berths]
            for i, actor in enumerate(self._actors):
                if not (received and places and ray_cluster.end_process(places[i])):
                    ray_cluster.end(actor)
            ray_cluster.wait_for_end(places)
        for line in self._lines:
            line.close()

    def _order(self, rank: int) -> RankOrder:
        first = self._berths[0]
        environ = {
            STARTED_BY: 'ray',
            'RANK': str(rank),
            'WORLD_SIZE': str(self._n),
            'LOCAL_RANK': '0',  # Ray shows each its own GPU alone, which is number 0 there
            'MASTER_ADDR': first.line[0],
            'MASTER_PORT': str(first.free_port),
            'TORCHELASTIC_RUN_ID': f'ray-{self._run_id}',  # by which a restart finds its run folder
            'TORCHELASTIC_RESTART_COUNT': str(self._n_restart),
        }
        if 'GPU' not in self._bundle:
            environ['CUDA_VISIBLE_DEVICES'] = ''  # one that Ray does not count, which all of them would use
        levels = {name: logging.getLogger(name).getEffectiveLevel() for name in LOGGERS}
        return RankOrder(rank, environ, levels, versions(), os.getcwd(), value_at(self._cfg, 'logger.root'))

    def _listen(self, timeout: float, answer: Callable[..., Any] | None) -> bool:
        """Shows what ranks say, and answers; returns whether there was anything within the time."""
        ready: list[Any] = wait([line for line in self._lines if not line.closed], timeout)
        for line in ready:
            try:
                kind, value = line.recv()
            except (EOFError, OSError):  # the rank ended, which Ray says too
                line.close()
                continue
            if kind == 'log':
                logging.getLogger(value['name']).handle(logging.makeLogRecord(value))
            elif kind == 'ask':
                line.send(('answer', None if answer is None else answer(*value)))
            else:
                with suppress(OSError):  # of a terminal that is closed
                    getattr(sys, kind).write(value)
                    getattr(sys, kind).flush()
        return bool(ready)

    def _got(self, ref: ray.ObjectRef, rank: int) -> Any:
        """What an actor returned. Raises: RunError for what Ray raised in it; _DiedError if it is gone, with the cause."""
        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            raise RunError(f'rank {rank} failed in Ray: {show_error(error.cause or error, 500)}') from None
        except ray.exceptions.RayError as error:
            raise _DiedError(ray_cluster.cause_of(error, self._berths[rank].place if self._berths else None)) from None

    def _wait_for(self, refs: list[Any], deadline: float, received: Sequence[int]) -> None:
        """Returns when all is there. Raises: RunError after the deadline; RanksLostError after a signal."""
        while len(ray.wait(refs, num_returns=len(refs), timeout=POLL_S)[0]) < len(refs):
            if received:
                if not self._n_restart:
                    logger.warning('stopped by signal %d before the run began; nothing was saved', received[0])
                raise RanksLostError(f'signal {received[0]} came before the {self._n} ranks had started')
            if monotonic() >= deadline:
                need = {name: x * self._n for name, x in self._bundle.items()}
                lack = ray_cluster.lack(f'{self._n} ranks', self._n, need, 'cluster.learner_num')
                raise RunError(ray_cluster.late(f'{self._n} ranks', self._cfg.cluster.start_timeout, lack))


def _is_other_fault(found: object) -> bool:
    """Whether a rank failed only because it waited for another, whose end says more, or ended as a signal asked it to."""
    return isinstance(found, Failure) and found.words.startswith(('RanksLostError', 'Interrupted'))
