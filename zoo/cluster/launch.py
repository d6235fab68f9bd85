"""Ranks as actors of Ray: what torchrun is for ranks on this machine, on a cluster. Ray is imported by `ray_cluster.py` alone."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Client, Connection, wait
from secrets import token_bytes
from time import monotonic
from typing import Any, NamedTuple
from uuid import uuid4

from zoo.cluster import ray_cluster
from zoo.cluster.cargo import versions
from zoo.cluster.failure import Failure
from zoo.cluster.ray_cluster import ray
from zoo.cluster.ray_rank import Berth, RankOrder, RankProcess, is_lost_rank, is_stop
from zoo.cluster.split import STARTED_BY
from zoo.config.section import Config
from zoo.core.errors import RunError, show_error
from zoo.core.ranks import RanksLostError

POLL_S = 0.1  # between two looks at signals and at what came
GRACE_S = 5.0  # after a rank lost the others, until the one that is the cause is noticed
HOUR = 3600.0
LOGGERS = '', 'zoo'  # whose levels the ranks take over

logger = logging.getLogger(__name__)


class Died(NamedTuple):
    """Instead of what a rank returned: its process is gone. cause: a clause."""

    cause: str


class _DiedError(RanksLostError):
    """A process of a rank is gone, so that all may start again."""


def run_ranks(cfg: Config, cargo: bytes, received: Sequence[int], answer: Callable[..., Any] | None) -> Any:
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

    def __init__(self, cfg: Config, group: Any, run_id: str, n_restart: int) -> None:
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
        self._berths = [self._got(ref, rank) for rank, ref in enumerate(refs)]
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
                found[rank] = self._got(ref, rank, may_be_gone=True)
                if isinstance(found[rank], Died) or _is_cause(found[rank]):
                    deadline = 0.0
                elif isinstance(found[rank], Failure) and is_lost_rank(found[rank]):
                    deadline = min(deadline, monotonic() + GRACE_S)
        end = monotonic() + 1.0
        while self._listen(POLL_S, answer) and monotonic() < end:  # what they said last
            pass
        for failure in sorted((x for x in found.values() if isinstance(x, Failure)), key=_is_cause, reverse=True):
            if _is_cause(failure) or not any(isinstance(x, Died) for x in found.values()):
                failure.raise_()
        for rank, value in found.items():
            if isinstance(value, Died):
                raise _DiedError(f'rank {rank} of {self._n} is lost: {value.cause}')
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
        return RankOrder(rank, environ, levels, versions(), os.getcwd(), self._cfg.logger.root)

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

    def _got(self, ref: Any, rank: int, may_be_gone: bool = False) -> Any:
        """What an actor returned. Raises: RunError if it cannot be had, and may not be gone; then it is Died."""
        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            raise RunError(f'rank {rank} failed in Ray: {show_error(error.cause or error, 500)}') from None
        except ray.exceptions.RayError as error:
            cause = ray_cluster.cause_of(error, self._berths[rank].place if self._berths else None)
        if may_be_gone:
            return Died(cause)
        raise RunError(f'rank {rank} ended as it started: {cause}')

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
                raise RunError(
                    f'{self._n} ranks did not start within cluster.start_timeout={self._cfg.cluster.start_timeout:g} s: '
                    f'{lack or ray_cluster.room() + "; other runs may use it, or starting takes longer"}'
                )


def _is_cause(found: Any) -> bool:
    """Whether a rank ended by an error of its own."""
    return isinstance(found, Failure) and not is_lost_rank(found) and not is_stop(found)
