"""Engine with runners as Ray actors, on this machine or a cluster. Only `ray_cluster.py` imports Ray."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic, sleep
from typing import Any, TypeVar

import numpy as np

from zoo.cluster import ray_cluster
from zoo.cluster.engine import Arrived, RemoteEngine
from zoo.cluster.messages import Failure, Lost, Reply, Request, RunnerLostError, failure_of
from zoo.cluster.ray_cluster import Place, ray
from zoo.cluster.runner import Runner, RunnerSpec
from zoo.config.section import ConfigLike
from zoo.core.errors import RunError, UserError, show_error
from zoo.core.processes import given_up_at_its_end
from zoo.worker.env_watch import OwnThread

T = TypeVar('T')


class RunnerProcess:
    """The class of a Ray actor: it has one runner, or several that take turns in the interpreter's lock (GIL).

    An exception of a runner is returned as a Failure, because Ray would reword an exception that is raised through it.
    """

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        self._runners = dict[int, Any]()
        self._threads = dict[int, OwnThread]()
        self._newest: tuple[int, np.ndarray] | None = None
        self._lock = threading.Lock()

    def make(self, spec: RunnerSpec, payload: np.ndarray) -> tuple[str, int, str] | Failure:
        """Creates a runner. Returns: its host, its process id and Ray's id of its node."""
        try:
            self._runners[spec.group] = self._do(spec.group, self._make, replace(spec, payload=payload.tobytes()))
        except Exception as error:  # also an env's own
            return failure_of(error)
        return socket.gethostname(), os.getpid(), ray.get_runtime_context().get_node_id()

    def publish(self, version: int, weights: np.ndarray) -> None:
        """Stores the newest weights; they may arrive while a runner collects."""
        with self._lock:
            if self._newest is None or self._newest[0] < version:
                self._newest = version, weights

    def collect(self, request: Request, version: int, weights: np.ndarray) -> Reply | Failure:
        """Collects a rollout. Args: version, weights: of request.version; if that is None, the newest at the request."""
        if request.version is None:
            self.publish(version, weights)
            assert self._newest is not None
            version, weights = self._newest
        runner = self._runners[request.group]
        try:
            self._do(request.group, runner.load, weights, version)
            return self._do(request.group, runner.collect, request)
        except Exception as error:
            return failure_of(error)

    def call(self, group: int, method: str, args: tuple[Any, ...]) -> tuple[Any] | Failure:
        try:
            return (self._do(group, getattr(self._runners[group], method), *args),)
        except Exception as error:
            return failure_of(error)

    def close(self) -> None:
        while self._runners:
            group, runner = self._runners.popitem()
            self._do(group, runner.close)

    def _do(self, group: int, function: Callable[..., T], *args: Any) -> T:
        """Calls a function of a runner in the thread that created it; in an actor with threads each runner has its own."""
        if threading.current_thread() is threading.main_thread():
            return function(*args)
        if group not in self._threads:
            self._threads[group] = OwnThread()
        return self._threads[group].do(partial(function, *args))


N_VERSION = 3  # versions of weights to keep: with a lag of 1 a lost request may need the version before the last
POLITE_S = 5.0  # seconds that runners have to close their envs
PATIENCE_S = 60.0  # seconds that a replaced runner may take before a warning shows the free resources of Ray
logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Actor:
    """The engine's record of an actor. starting: those of its groups whose runners are not created yet."""

    handle: Any
    groups: list[int]
    starting: set[int]
    since: float = field(default_factory=monotonic)
    place: Place | None = None


class RayEngine(RemoteEngine):
    """An Engine over Ray Core. It replaces an actor that ends, and reports the loss. Ray itself restarts no actor: it would
    send the next requests to envs that nobody has reset.

    Args: cluster: the section `cluster`; run_id: part of the actors' names; make: creates a runner from a spec.
      runners_per_process: runners that share an actor, for envs that mostly wait, such as clients of a remote simulator.
    Attributes: pushes: whether new weights are sent to runners at once, for requests without a version.
    """

    lost_at_start = 'ended as it started'

    def __init__(
        self, cluster: ConfigLike, run_id: str, make: Callable[[Any], Any] = Runner, runners_per_process: int = 1
    ) -> None:
        super().__init__()
        self.cluster = cluster
        self._run_id = run_id
        self._runner = make
        self._per_process = runners_per_process
        self.pushes = cluster['max_lag'] > 1
        self._has_threads = self.pushes or runners_per_process > 1
        self._specs: dict[int, RunnerSpec] = {}
        self._payload: Any = None
        self.actors: dict[int, _Actor] = {}  # by group
        self._weights: dict[int, Any] = {}  # Ray's references by version
        self._due: dict[Any, int] = {}  # group by the reference of a pending result, a reply or a place
        self._n_made = 0
        self._owns_ray = self._has_started = False

    def start(self, specs: list[RunnerSpec]) -> None:
        """Joins or starts Ray and creates the runners. Raises: see `Engine.start`; UserError if no cluster can be joined."""
        self._specs = {spec.group: spec for spec in specs}
        self._n_actor = n = -(-len(specs) // self._per_process)
        self._need = {'CPU': n * self.cluster['runner_cpu'], 'GPU': n * self.cluster['runner_gpu']}
        deadline = monotonic() + self.cluster['start_timeout']
        try:
            with given_up_at_its_end() as is_over:  # Ray turns an exception during its calls into a SystemError
                working_dir = self.cluster['working_dir']
                self._owns_ray = ray_cluster.join(self.cluster['address'], self._need, working_dir)
                lack = self._lack()
                if lack:
                    logger.warning('%s; waiting for more', lack)
                self._payload = ray.put(np.frombuffer(specs[0].payload, dtype=np.uint8))
                groups = list(self._specs)
                for first in range(0, len(groups), self._per_process):
                    self._make(groups[first : first + self._per_process])
                self._wait_for_start(deadline, is_over)
            self._has_started = True
        except BaseException:
            self.close()
            raise

    def publish(self, weights: np.ndarray, version: int) -> None:
        ref = self._weights[version] = ray.put(weights)
        for old in sorted(self._weights)[:-N_VERSION]:
            del self._weights[old]  # Ray keeps what an outstanding call refers to
        for actor in set(self.actors.values()) if self.pushes else ():
            actor.handle.publish.options(concurrency_group='weights').remote(version, ref)

    def ask(self, request: Request) -> None:
        """Queues the request at its actor; the blocks of the reply will be memory of Ray's object store."""
        if request.version is None:
            version = max(self._weights)
        else:
            version = request.version
        method = self._method(request.group, 'collect')
        self._due[method.remote(request, version, self._weights[version])] = request.group

    def call(self, group: int, method: str, *args: Any) -> Any:
        """Calls a method of a runner; one that does not answer in time is ended. Returns, Raises: see `Engine.call`."""
        limit = self.cluster['runner_timeout']
        try:
            answer = self._got(self._method(group, 'call').remote(group, method, args), group, limit)
        except ray.exceptions.GetTimeoutError:
            self.kill(group, f'it did not answer {method} within {limit:g} s')
            raise RunnerLostError(f'runner {group} did not answer {method} within {limit:g} s') from None
        if isinstance(answer, Lost):
            raise RunnerLostError(f'runner {group} was lost before it answered {method}: {answer.cause}')
        if isinstance(answer, Failure):
            return answer.raise_()
        return answer[0]

    def pids(self) -> dict[int, tuple[str, int]]:
        return {group: actor.place[:2] for group, actor in self.actors.items() if actor.place is not None}

    def close(self) -> None:
        """Ends the actors, and Ray if it was started or joined here; returns when the processes of this machine are gone."""
        actors = set(self.actors.values())
        self.actors = {}
        self._due = {}
        self._arrived.clear()
        if actors and ray.is_initialized():
            with suppress(ray.exceptions.RayError):
                polite = [actor.handle.close.remote() for actor in actors if actor.place is not None]
                if polite:
                    ray.wait(polite, num_returns=len(polite), timeout=POLITE_S)
            for actor in actors:
                ray_cluster.end(actor.handle)
        ray_cluster.wait_for_end([actor.place for actor in actors if actor.place is not None])
        self._payload = None
        self._weights = {}
        if self._owns_ray:
            self._owns_ray = False
            ray_cluster.leave()

    def _make(self, groups: list[int]) -> None:
        """Creates an actor with these runners; returns before they exist."""
        self._n_made += 1
        options: dict[str, Any] = {
            'num_cpus': self.cluster['runner_cpu'],
            'num_gpus': self.cluster['runner_gpu'],
            'max_restarts': 0,
            'max_task_retries': 0,
            'scheduling_strategy': 'SPREAD',
            'name': f'zoo-{self._run_id}-runner-{groups[0]}-{self._n_made}',
        }
        remote: Any = ray.remote
        if self._has_threads:  # else all calls run in the main thread, which some envs need
            remote = remote(concurrency_groups={'weights': 1, **{f'runner{i}': 1 for i in range(self._per_process)}})
        actor = _Actor(remote(RunnerProcess).options(**options).remote(self._runner), groups, set(groups))
        self.actors |= dict.fromkeys(groups, actor)
        for group in groups:
            ref = self._method(group, 'make').remote(replace(self._specs[group], payload=b''), self._payload)
            self._due[ref] = group

    def _method(self, group: int, name: str) -> Any:
        """Returns a method of a runner's actor; its calls run in the order in which they are made."""
        actor = self.actors[group]
        method = getattr(actor.handle, name)
        if self._has_threads:
            return method.options(concurrency_group=f'runner{actor.groups.index(group)}')
        return method

    def _lack(self) -> str:
        if self._per_process == 1:
            what = 'runners'
        else:
            what = 'processes of runners'
        return ray_cluster.lack(f'{self._n_actor} {what}', self._n_actor, self._need)

    def _starting(self) -> list[int]:
        return [group for group, actor in self.actors.items() if actor.starting]

    def _late(self, missing: list[int]) -> str:
        what = f'{len(missing)} of {len(self._specs)} runners'
        return ray_cluster.late(what, self.cluster['start_timeout'], self._lack())

    def _pump(self, timeout: float) -> None:
        if not self._due:
            sleep(min(timeout, 0.1))
            return
        ray.wait(list(self._due), num_returns=1, timeout=timeout)
        for ref in ray.wait(list(self._due), num_returns=len(self._due), timeout=0)[0]:
            group = self._due.pop(ref, None)
            if group is None:  # of a runner that turned out to be lost a moment ago
                continue
            answer = self._got(ref, group)
            if isinstance(answer, Reply | Failure):
                self._arrived.append(Arrived(answer))
            elif not isinstance(answer, Lost):
                actor = self.actors[group]
                actor.starting.discard(group)
                actor.place = answer
                logger.debug('runner %d is process %d on %s', group, answer[1], answer[0])
        for actor in set(self.actors.values()) if self._has_started else ():
            if actor.starting and monotonic() - actor.since > PATIENCE_S:
                actor.since = monotonic()
                logger.warning('runner %d is still not there: %s', actor.groups[0], ray_cluster.room())

    def _got(self, ref: ray.ObjectRef, group: int, timeout: float | None = None) -> Any:
        """Returns the result of an actor's call; a Lost if the actor, its node or the result was lost.

        Raises: GetTimeoutError; UserError or RunError if Ray failed in the actor outside a runner's code.
        """
        try:
            return ray.get(ref, timeout=timeout)
        except ray.exceptions.RayTaskError as error:  # e.g. the actor could not unpickle the arguments
            if isinstance(getattr(error, 'cause', None), Exception):
                cause = error.cause
            else:
                cause = error
            if isinstance(cause, ModuleNotFoundError):
                raise UserError(
                    f'a runner cannot import {cause.name!r}; install it on all nodes, or set cluster.working_dir '
                    'to the folder that has it'
                ) from None
            raise RunError(f'a runner failed in Ray: {show_error(cause, 500)}') from None
        except ray.exceptions.GetTimeoutError:
            raise
        except ray.exceptions.RayError as error:
            lost = Lost(group, ray_cluster.cause_of(error, self.actors[group].place))
            self.kill(*lost)
            return lost

    def kill(self, group: int, cause: str) -> None:
        """Forgets the requests to an actor's runners, ends the actor and creates another one."""
        actor = self.actors[group]
        ray_cluster.end(actor.handle)
        if actor.place is not None:  # Ray asks a process to end itself; one that hangs or is stopped does not
            ray_cluster.end_process(actor.place)
        self._due = {ref: g for ref, g in self._due.items() if g not in actor.groups}
        self._arrived += [Arrived(Lost(g, cause)) for g in actor.groups]
        self._make(actor.groups)
