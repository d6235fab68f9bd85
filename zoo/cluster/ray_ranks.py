"""Ranks as Ray actors: starts ranks on a cluster, as torchrun does on one machine. Only `ray_cluster.py` imports Ray."""

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
from zoo.core.processes import STOP_SIGNALS, signal_name, unblock_stop_signals
from zoo.core.ranks import RanksLostError

Kind = Literal['log', 'stdout', 'stderr', 'ask']  # of a message from a rank
Send = Callable[[Kind, Any], None]
SAID_BY_DRIVER = 'zoo.core.processes'  # the logger that announces a signal; the driver got the signal too


class RankAddress(NamedTuple):
    """The location of a rank. line: address that the driver connects to; free_port: for the ranks to meet, if rank 0."""

    place: Place
    line: tuple[str, int]
    free_port: int


class RankSettings(NamedTuple):
    """The settings that a rank starts with. environ: environment variables to set; levels: of loggers, by name.
    cwd: folder of the driver; root: logger.root."""

    rank: int
    environ: Mapping[str, str]
    levels: Mapping[str, int]
    versions: Mapping[str, str]
    cwd: str
    root: str


class RankProcess:
    """The class of a rank's actor. It works in the main thread, because only that thread can handle signals.

    An exception is returned as a Failure, because Ray would reword an exception that is raised through it. The process
    ends when its connection to the driver is cut, for example because the driver was killed.
    """

    def __init__(self, key: bytes) -> None:
        self._listener = Listener((ray.util.get_node_ip_address(), 0), authkey=key)
        self._line = Future[Connection]()
        self._lock = threading.Lock()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name='line', daemon=True).start()

    def address(self) -> RankAddress:
        """Returns the addresses at which this process can be reached."""
        address: Any = self._listener.address
        with socket.socket() as free:
            free.bind((address[0], 0))
            port = free.getsockname()[1]
        return RankAddress((socket.gethostname(), os.getpid(), ray.get_runtime_context().get_node_id()), address, port)

    def run(self, settings: RankSettings, payload: bytes) -> Any:
        """Calls the function in the payload with the rank and `ask`. Returns: its result, or a Failure."""
        who = f'rank {settings.rank}'
        host = socket.gethostname()
        try:
            self._prepare(settings)
            check_versions(settings.versions, host, who)
            found: dict[str, Any] = unpacked(payload, host, who)
            return found['work'](settings.rank, self.ask, **found['options'])
        except BaseException as error:  # also SystemExit after a signal
            return failure_of(error, who)

    def send(self, kind: Kind, value: object) -> None:
        """Sends a value to the driver; does nothing if the driver is gone, which `_listen` notices."""
        line = self._line.result()
        with self._lock, suppress(OSError):
            line.send((kind, value))

    def ask(self, *args: Any) -> Any:
        """Has the driver call its function with these arguments; returns the result."""
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

    def _prepare(self, settings: RankSettings) -> None:
        """Makes this process like one of torchrun's. Raises: UserError if it needs the driver's folder and cannot use it."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)  # removes Ray's handlers; the run sets its own later
        unblock_stop_signals()  # Ray blocks SIGINT in all processes that it starts
        logging.getLogger().addHandler(LineHandler(self.send))
        for name, level in settings.levels.items():
            logging.getLogger(name).setLevel(level)
        if settings.rank == 0:
            sys.stdout = LineStream(self.send, 'stdout')
            sys.stderr = LineStream(self.send, 'stderr')
        os.environ.update(settings.environ)
        try:
            os.chdir(settings.cwd)
        except OSError as error:
            if os.path.isabs(settings.root):
                return
            raise UserError(
                f'rank {settings.rank} on {socket.gethostname()} cannot use the folder {settings.cwd!r} in which the run was '
                f'started ({error.strerror}); start it in one that all nodes share, or set logger.root to one'
            ) from error


class LineHandler(QueueHandler):
    """Sends log records to the driver, which handles them like its own records. Args: send: `RankProcess.send`."""

    def __init__(self, send: Send) -> None:
        super().__init__(queue.SimpleQueue())  # this queue stays empty
        self._send = send
        self.addFilter(lambda record: record.name != SAID_BY_DRIVER)

    def enqueue(self, record: logging.LogRecord) -> None:
        plain = {key: value for key, value in vars(record).items() if isinstance(value, str | int | float | None)}
        self._send('log', plain)


class LineStream(io.TextIOBase):
    """Standard output or error of rank 0; the driver writes its text to the driver's own stream."""

    def __init__(self, send: Send, kind: Kind) -> None:
        self._send = send
        self._kind = kind

    def write(self, text: str) -> int:
        self._send(self._kind, text)
        return len(text)

    def writable(self) -> bool:
        return True


POLL_S = 0.1  # seconds between two checks for signals and messages
GRACE_S = 5.0  # seconds to notice the rank that is the cause, after another rank has reported that it lost the others
HOUR = 3600.0
LOGGERS = '', 'zoo'  # loggers whose levels the ranks copy
logger = logging.getLogger(__name__)


class _DiedError(RanksLostError):
    """The process of a rank is gone; all ranks may start again."""


def run_ranks(cfg: RunConfig, payload: bytes, received: Sequence[int], answer: Callable[..., Any] | None) -> Any:
    """Runs the function in the payload (see `RankProcess.run`) in cluster.learner_num ranks and returns the result of rank 0.

    If a process ends unexpectedly, all ranks start again, at most cluster.restart_limit times in an hour.
    Args: received: signals that this process got; rank 0 gets the first one too. answer: called here to answer a rank's `ask`.
    Raises: the unchanged exception of a rank; RanksLostError if a process ended after a signal or too often; RunError if
      the ranks do not start within cluster.start_timeout; UserError if no cluster can be joined.
    """
    n = cfg.cluster.learner_num
    cluster = cfg.cluster
    n_runner_cpu = 0.0
    if cluster.engine == 'ray':
        n_runner_cpu = cluster.runner_num * cluster.runner_cpu
    owns_ray = ray_cluster.join(cluster.address, {'CPU': n * (1 + n_runner_cpu)}, cluster.working_dir)
    run_id = uuid4().hex[:12]
    losses = list[float]()
    bundle = {'CPU': 1.0}
    if cfg.policy.get('device', 'auto') in ('auto', 'cuda') and ray.cluster_resources().get('GPU'):
        bundle['GPU'] = 1.0
    group = ray.util.placement_group([bundle] * n, strategy='PACK')  # on as few nodes as possible
    try:
        while True:
            actors = RankActors(cfg, group, run_id, len(losses))
            try:
                actors.start(payload, received)
                return actors.result(received, answer)
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
                actors.close(received)
    finally:
        if owns_ray:
            ray_cluster.leave()
        else:
            ray.util.remove_placement_group(group)


class RankActors:
    """The actors of all ranks, from one start of the ranks to the next.

    Args: group: Ray's placement group, with one bundle of resources for each rank; n_restart: number of earlier starts.
    """

    def __init__(self, cfg: RunConfig, group: Any, run_id: str, n_restart: int) -> None:
        self._cfg = cfg
        self._group = group
        self._run_id = run_id
        self._n_restart = n_restart
        self._n = cfg.cluster.learner_num
        self._bundle: dict[str, float] = group.bundle_specs[0]
        self._actors: list[Any] = []
        self._addresses: list[RankAddress] = []
        self._lines: list[Connection] = []
        self._pending: dict[Any, int] = {}  # rank by the reference of its result

    def start(self, payload: bytes, received: Sequence[int]) -> None:
        """Places the actors, all or none, and starts `RankProcess.run` in each."""
        deadline = monotonic() + self._cfg.cluster.start_timeout
        self._wait_for([self._group.ready()], deadline, received)
        key = token_bytes(32)
        in_group = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        for rank in range(self._n):
            options: dict[str, Any] = {
                'num_cpus': 1,
                'num_gpus': self._bundle.get('GPU', 0),
                'max_restarts': 0,
                'name': f'zoo-{self._run_id}-rank-{rank}-{self._n_restart}',
                'scheduling_strategy': in_group(self._group, rank, placement_group_capture_child_tasks=False),
            }
            self._actors.append(ray.remote(RankProcess).options(**options).remote(key))
        refs = [actor.address.remote() for actor in self._actors]
        self._wait_for(refs, deadline, received)
        addresses = []
        for rank, ref in enumerate(refs):
            try:
                addresses.append(self._got(ref, rank))
            except _DiedError as error:
                raise RunError(f'rank {rank} ended as it started: {error}') from None
        self._addresses = addresses
        self._lines = [Client(address.line, authkey=key) for address in self._addresses]
        payload_ref = ray.put(payload)
        for rank, actor in enumerate(self._actors):
            self._pending[actor.run.remote(self._settings_of(rank), payload_ref)] = rank

    def result(self, received: Sequence[int], answer: Callable[..., Any] | None) -> Any:
        """Waits for the end of all ranks and returns the result of rank 0. Raises: see `run_ranks`; _DiedError."""
        found: dict[int, Any] = {}
        deadline = float('inf')
        n_sent = 0
        while self._pending and monotonic() < deadline:
            self._listen(POLL_S, answer)
            if received and not n_sent:  # only the first: a second signal ends this process
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
                    if is_cut_off:
                        deadline = min(deadline, monotonic() + GRACE_S)
                elif isinstance(found[rank], Failure | _DiedError):
                    deadline = 0.0
        end = monotonic() + 1.0
        while self._listen(POLL_S, answer) and monotonic() < end:  # their last messages
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

        After a signal, processes of this node are killed without Ray, because its services may have got the signal too.
        """
        if ray.is_initialized():
            places = [address.place for address in self._addresses]
            for i, actor in enumerate(self._actors):
                if not (received and places and ray_cluster.end_process(places[i])):
                    ray_cluster.end(actor)
            ray_cluster.wait_for_end(places)
        for line in self._lines:
            line.close()

    def _settings_of(self, rank: int) -> RankSettings:
        first = self._addresses[0]
        environ = {
            STARTED_BY: 'ray',
            'RANK': str(rank),
            'WORLD_SIZE': str(self._n),
            'LOCAL_RANK': '0',  # Ray shows each rank only its own GPU, as number 0
            'MASTER_ADDR': first.line[0],
            'MASTER_PORT': str(first.free_port),
            'TORCHELASTIC_RUN_ID': f'ray-{self._run_id}',  # a restart finds its run folder by this id
            'TORCHELASTIC_RESTART_COUNT': str(self._n_restart),
        }
        if 'GPU' not in self._bundle:
            environ['CUDA_VISIBLE_DEVICES'] = ''  # hides a GPU that Ray does not count; all ranks would use it
        levels = {name: logging.getLogger(name).getEffectiveLevel() for name in LOGGERS}
        return RankSettings(rank, environ, levels, versions(), os.getcwd(), value_at(self._cfg, 'logger.root'))

    def _listen(self, timeout: float, answer: Callable[..., Any] | None) -> bool:
        """Writes the output of the ranks and answers them. Returns: whether a message came within the time."""
        ready: list[Any] = wait([line for line in self._lines if not line.closed], timeout)
        for line in ready:
            try:
                kind, value = line.recv()
            except (EOFError, OSError):  # the rank ended; Ray reports it too
                line.close()
                continue
            if kind == 'log':
                logging.getLogger(value['name']).handle(logging.makeLogRecord(value))
            elif kind == 'ask':
                line.send(('answer', None if answer is None else answer(*value)))
            else:
                with suppress(OSError):  # the terminal may be closed
                    getattr(sys, kind).write(value)
                    getattr(sys, kind).flush()
        return bool(ready)

    def _got(self, ref: ray.ObjectRef, rank: int) -> Any:
        """Returns the result of an actor's call. Raises: RunError if Ray failed in it; _DiedError if the actor is gone."""
        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            raise RunError(f'rank {rank} failed in Ray: {show_error(error.cause or error, 500)}') from None
        except ray.exceptions.RayError as error:
            raise _DiedError(
                ray_cluster.cause_of(error, self._addresses[rank].place if self._addresses else None)
            ) from None

    def _wait_for(self, refs: list[Any], deadline: float, received: Sequence[int]) -> None:
        """Waits until all references are ready. Raises: RunError after the deadline; RanksLostError after a signal."""
        while len(ray.wait(refs, num_returns=len(refs), timeout=POLL_S)[0]) < len(refs):
            if received:
                if not self._n_restart:
                    logger.warning('stopped by %s before the run began; nothing was saved', signal_name(received[0]))
                raise RanksLostError(f'{signal_name(received[0])} came before the {self._n} ranks had started')
            if monotonic() >= deadline:
                need = {name: x * self._n for name, x in self._bundle.items()}
                lack = ray_cluster.lack(f'{self._n} ranks', self._n, need, 'cluster.learner_num')
                raise RunError(ray_cluster.late(f'{self._n} ranks', self._cfg.cluster.start_timeout, lack))


def _is_other_fault(found: object) -> bool:
    """Whether a rank failed only because another rank was lost, or ended because of a signal."""
    return isinstance(found, Failure) and found.words.startswith(('RanksLostError', 'Interrupted'))
