"""Runners as actors of Ray, on this machine or a cluster: the engine. Ray is imported by `ray_cluster.py` alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

import numpy as np

from zoo.cluster import ray_cluster
from zoo.cluster.engine import RunnerLostError
from zoo.cluster.failure import Failure
from zoo.cluster.parcel import Lost, Order, Parcel
from zoo.cluster.ray_cluster import ray  # which has its settings there
from zoo.cluster.ray_runner import RunnerProcess
from zoo.cluster.runner import Runner, RunnerSpec
from zoo.core.errors import RunError, UserError, show_error
from zoo.core.stop import given_up_at_its_end

N_VERSION = 3  # of weights that are kept: with a lag of 1 a lost order may be of the version before the last
POLL_S = 0.1  # between two looks at signals while runners start
POLITE_S = 5.0  # that runners have to close their envs
PATIENCE_S = 60.0  # that a runner which is made anew may take before a warning says what room Ray has

logger = logging.getLogger(__name__)


class _Process:
    """An actor as its owner sees it. made: the answers of `make`, by group, until all have come."""

    def __init__(self, actor: Any, groups: list[int], made: dict[Any, int]) -> None:
        self.actor, self.groups, self.made = actor, groups, made
        self.since = monotonic()
        self.place: tuple[str, int, str] | None = None  # host, process, node


class RayEngine:
    """An Engine over Ray Core. An actor that ends is not restarted by Ray, which would hand its next orders to envs that
    nobody has reset, but made anew here, so that whoever asks learns of it.

    Args: cluster: the section `cluster`; run_id: names the actors; make: a runner of a spec; runners_per_process: that
      share an actor, which is for envs that wait, such as those that only pass on what a simulator elsewhere says.
    Attributes: pushes: whether new weights are sent to runners at once, for orders without a version.
    """

    def __init__(
        self, cluster: Any, run_id: str, make: Callable[[Any], Any] = Runner, runners_per_process: int = 1
    ) -> None:
        self._cluster, self._run_id, self._runner, self._per_process = cluster, run_id, make, runners_per_process
        self.pushes = cluster['max_lag'] > 1
        self._specs: dict[int, RunnerSpec] = {}
        self._cargo: Any = None
        self._processes: dict[int, _Process] = {}  # by group
        self._weights: dict[int, Any] = {}  # references by version
        self._asked: dict[Any, int] = {}  # group by the reference of a parcel
        self._lost: list[Lost] = []
        self._n_made = 0
        self._owns_ray = self._has_started = False

    def start(self, specs: list[RunnerSpec]) -> None:
        """Joins or starts Ray and makes the runners. Raises: see `Engine.start`; UserError if no cluster can be joined."""
        self._specs = {spec.group: spec for spec in specs}
        n_process = -(-len(specs) // self._per_process)
        need = {'CPU': n_process * self._cluster['runner_cpu'], 'GPU': n_process * self._cluster['runner_gpu']}
        deadline = monotonic() + self._cluster['start_timeout']
        try:
            with given_up_at_its_end() as is_over:  # Ray makes a SystemError of what is raised during its calls
                self._owns_ray = ray_cluster.join(self._cluster['address'], need, self._cluster['working_dir'])
                if lack := self._lack(need):
                    logger.warning('%s; waiting for more', lack)
                self._cargo = ray.put(np.frombuffer(specs[0].cargo, dtype=np.uint8))
                groups = [spec.group for spec in specs]
                for first in range(0, len(groups), self._per_process):
                    self._make(groups[first : first + self._per_process])
                self._wait_for_runners(deadline, need, is_over)
            self._has_started = True
        except BaseException:
            self.close()
            raise

    def publish(self, weights: np.ndarray, version: int) -> None:
        """Puts the weights into Ray's store, once."""
        ref = self._weights[version] = ray.put(weights)
        for old in sorted(self._weights)[:-N_VERSION]:
            del self._weights[old]  # Ray keeps what an outstanding call refers to
        for process in set(self._processes.values()) if self.pushes else ():
            process.actor.publish.options(concurrency_group='weights').remote(version, ref)

    def ask(self, order: Order) -> None:
        """Queues the order at its actor."""
        version = max(self._weights) if order.version is None else order.version
        method = self._method(order.group, 'collect')
        self._asked[method.remote(order, version, self._weights[version])] = order.group

    def wait(self, timeout: float) -> list[Parcel | Lost]:
        """Parcels whose blocks are memory of Ray's store. Raises: see `Engine.wait`."""
        deadline = monotonic() + timeout
        while True:
            self._look(0.0 if self._lost else max(deadline - monotonic(), 0.0))
            found: list[Parcel | Lost] = [*self._taken(), *self._lost]
            self._lost.clear()
            if found or monotonic() >= deadline:
                return found

    def call(self, group: int, method: str, *args: Any) -> Any:
        """What a method of a runner returns. Raises: see `Engine.call`; a runner that does not answer is ended."""
        ref = self._method(group, 'call').remote(group, method, args)
        limit = self._cluster['runner_timeout']
        try:
            answer = ray.get(ref, timeout=limit)
        except ray.exceptions.RayTaskError as error:
            raise _task_error(error) from None
        except ray.exceptions.GetTimeoutError:
            self.kill(group, f'it did not answer {method} within {limit:g} s')
            raise RunnerLostError(f'runner {group} did not answer {method} within {limit:g} s') from None
        except ray.exceptions.RayError as error:
            cause = ray_cluster.cause_of(error, self._processes[group].place)
            self._lose(group, cause)
            raise RunnerLostError(f'runner {group} was lost before it answered {method}: {cause}') from None
        return answer.raise_() if isinstance(answer, Failure) else answer[0]

    def kill(self, group: int, cause: str) -> None:
        """Ends the actor of a runner and makes another."""
        self._lose(group, cause)

    def pids(self) -> dict[int, tuple[str, int]]:
        """Host and process of the runners that have answered."""
        return {group: p.place[:2] for group, p in self._processes.items() if p.place is not None}

    def nodes(self) -> dict[int, str]:
        """Ray's id of the node of each runner that has answered."""
        return {group: p.place[2] for group, p in self._processes.items() if p.place is not None}

    def close(self) -> None:
        """Ends the actors, and Ray if it was started or joined here; returns when the processes of this machine are gone."""
        processes = set(self._processes.values())
        self._processes, self._asked, self._lost = {}, {}, []
        if processes and ray.is_initialized():
            with suppress(ray.exceptions.RayError):
                polite = [p.actor.close.remote() for p in processes if p.place is not None]
                if polite:
                    ray.wait(polite, num_returns=len(polite), timeout=POLITE_S)
            for process in processes:
                ray_cluster.end(process.actor)
        places = [process.place for process in processes if process.place is not None]
        ray_cluster.wait_for_end(places)
        self._cargo, self._weights = None, {}
        if self._owns_ray:
            self._owns_ray = False
            ray_cluster.leave()

    def _make(self, groups: list[int]) -> None:
        """A new actor with these runners; they are not there yet."""
        self._n_made += 1
        options: dict[str, Any] = {
            'num_cpus': self._cluster['runner_cpu'],
            'num_gpus': self._cluster['runner_gpu'],
            'max_restarts': 0,
            'max_task_retries': 0,
            'scheduling_strategy': 'SPREAD',
            'name': f'zoo-{self._run_id}-runner-{groups[0]}-{self._n_made}',
        }
        remote: Any = ray.remote
        if self._has_threads:  # else all is done in the main thread, which some envs need
            remote = remote(concurrency_groups={'weights': 1, **{f'runner{i}': 1 for i in range(self._per_process)}})
        actor = remote(RunnerProcess).options(**options).remote(self._runner)
        process = _Process(actor, groups, {})
        for group in groups:
            self._processes[group] = process
            ref = self._method(group, 'make').remote(replace(self._specs[group], cargo=b''), self._cargo)
            process.made[ref] = group

    @property
    def _has_threads(self) -> bool:
        return self.pushes or self._per_process > 1

    def _method(self, group: int, name: str) -> Any:
        """A method of a runner's actor, whose calls are done in the order in which they are made."""
        process = self._processes[group]
        method = getattr(process.actor, name)
        if not self._has_threads:
            return method
        return method.options(concurrency_group=f'runner{process.groups.index(group)}')

    def _wait_for_runners(self, deadline: float, need: dict[str, float], is_over: Callable[[], bool]) -> None:
        """Returns when all runners are there, or it is over. Raises: RunError after the deadline."""
        while (waiting := [group for group, process in self._processes.items() if process.made]) and not is_over():
            self._look(min(max(deadline - monotonic(), 0.0), POLL_S))
            self._made_ones()
            if self._lost:
                raise RunError(f'runner {self._lost[0].group} ended as it started: {self._lost[0].cause}')
            if monotonic() >= deadline:
                lack = self._lack(need) or f'{ray_cluster.room()}; other runs may use it, or starting takes longer'
                raise RunError(
                    f'{len(waiting)} of {len(self._specs)} runners did not start within cluster.start_timeout='
                    f'{self._cluster["start_timeout"]:g} s: {lack}'
                )

    def _lack(self, need: dict[str, float]) -> str:
        n_process = -(-len(self._specs) // self._per_process)
        what = f'{n_process} runners' if self._per_process == 1 else f'{n_process} processes of runners'
        return ray_cluster.lack(what, n_process, need)

    def _look(self, timeout: float) -> None:
        """Waits until anything has come."""
        refs = [*self._asked, *(ref for process in set(self._processes.values()) for ref in process.made)]
        if refs:
            ray.wait(refs, num_returns=1, timeout=timeout)
        elif timeout:
            sleep(min(timeout, 0.1))

    def _taken(self) -> list[Parcel]:
        """The parcels that have come."""
        self._made_ones()
        parcels = []
        ready = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)[0] if self._asked else []
        for ref in ready:
            group = self._asked.pop(ref, None)
            if group is None:  # of a runner that turned out to be lost a moment ago
                continue
            parcel = self._answer(ref, group)
            if parcel is not None:
                parcels.append(parcel)
        return parcels

    def _made_ones(self) -> None:
        """Takes note of runners that were made. Raises: what making one raised."""
        for process in set(self._processes.values()):
            refs = list(process.made)
            for ref in ray.wait(refs, num_returns=len(refs), timeout=0)[0] if refs else ():
                group = process.made.pop(ref, None)
                place = None if group is None else self._answer(ref, group)
                if place is not None:
                    process.place = place
                    logger.debug('runner %s is process %d on %s', group, place[1], place[0])
            if process.made and self._has_started and monotonic() - process.since > PATIENCE_S:
                process.since = monotonic()
                logger.warning('runner %d is still not there: %s', process.groups[0], ray_cluster.room())

    def _answer(self, ref: Any, group: int) -> Any:
        """What an actor returned; None if it was lost. Raises: what a Failure stands for."""
        try:
            answer = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            raise _task_error(error) from None
        except ray.exceptions.RayError as error:  # the actor, its node, or what it had sent
            self._lose(group, ray_cluster.cause_of(error, self._processes[group].place))
            return None
        return answer.raise_() if isinstance(answer, Failure) else answer

    def _lose(self, group: int, cause: str) -> None:
        """Forgets what the runners of an actor were asked, ends it and makes another."""
        process = self._processes[group]
        ray_cluster.end(process.actor)
        if process.place is not None:  # Ray asks a process to end itself, which one that hangs or is stopped does not
            ray_cluster.end_process(process.place)
        self._asked = {ref: g for ref, g in self._asked.items() if g not in process.groups}
        self._lost += [Lost(g, cause) for g in process.groups]
        self._make(process.groups)


def _task_error(error: ray.exceptions.RayTaskError) -> Exception:
    """What Ray raised in an actor apart from a runner's code: what was sent could not be read there."""
    cause = error.cause if isinstance(getattr(error, 'cause', None), Exception) else error
    if isinstance(cause, ModuleNotFoundError):
        return UserError(
            f'a runner cannot import {cause.name!r}; install it on all nodes, or set cluster.working_dir '
            'to the folder that has it'
        )
    return RunError(f'a runner failed in Ray: {show_error(cause, 500)}')
