"""Ray cluster: joins or starts one, reports the resources that it lacks, and leaves it without leftover processes."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from math import ceil
from pathlib import Path
from time import monotonic, sleep
from typing import Any

os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')  # reports to Ray's makers are on by default
os.environ.setdefault('RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO', '0')  # Ray's next default; unset, Ray warns of it
# hides Ray's lines on standard output about a lost process or node; the run reports these itself
os.environ.setdefault('RAY_DEDUP_LOGS_SKIP_REGEX', 'A worker died or was killed|The node with node id')

import ray  # noqa: E402  it reads the variables above
from ray.exceptions import RayError  # noqa: E402

from zoo.core.errors import UserError, show_error  # noqa: E402
from zoo.core.processes import n_core  # noqa: E402

CONNECT_S = 5.0  # seconds for the first contact; Ray itself tries for two minutes and then ends the process
END_S = 3.0  # seconds that processes have to end by themselves

REAPER = """
import os, signal, sys, time
sys.stdin.buffer.read()
time.sleep(2.0)
for pid in sys.argv[1:]:
    try:
        with open(f'/proc/{pid}/cmdline', 'rb') as file:
            is_ray = b'ray' in file.read()
        if is_ray:
            os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""
"""Program that ends Ray's agents once its input ends with this process; they would look for the rest of Ray for a minute."""

Place = tuple[str, int, str]  # host, process id, Ray's id of the node

logger = logging.getLogger(__name__)
_reapers: list[subprocess.Popen[bytes]] = []


def join(address: str | None, need: Mapping[str, float], working_dir: str | None) -> bool:
    """Connects this process to a cluster, or starts one on this machine. Returns: whether `leave` should be called.

    Args: address: host:port or auto; None: RAY_ADDRESS, else a new cluster on this machine with at least the needed CPUs.
    Raises: UserError if it cannot be joined.
    """
    if ray.is_initialized():  # by the caller's own code
        return False
    address = address or os.environ.get('RAY_ADDRESS') or 'local'
    options: dict[str, Any] = {'address': address, 'log_to_driver': False, 'logging_level': logging.ERROR}
    if working_dir is not None:  # takes longer: Ray cannot use workers that it started before
        if not os.path.isdir(working_dir):
            raise UserError(
                f'cluster.working_dir is {working_dir!r}, which is no folder; use one that has your modules'
            )
        options['runtime_env'] = {'working_dir': working_dir}
    if address == 'local':
        if need['CPU'] > n_core():
            logger.warning('the run asks for %g CPUs and this machine has %d: they share them', need['CPU'], n_core())
        options |= {'num_cpus': max(n_core(), ceil(need['CPU'])), 'include_dashboard': False}
    else:
        _refuse_unreachable(address)
    try:
        with _own_signals(), _own_sessions(), _alone() if address == 'local' else nullcontext():
            ray.init(**options)
    except (OSError, ValueError, RuntimeError, RayError) as error:
        if address == 'auto' and isinstance(error, ConnectionError):
            raise UserError(
                "cluster.address (or RAY_ADDRESS) is 'auto' but no Ray cluster runs on this machine; start one with `ray start "
                '--head`, name one as host:port, or leave both out for one that ends with the run'
            ) from error
        if address == 'local':
            where = 'Ray could not be started here'
        else:
            where = f'the Ray cluster {address!r} cannot be joined'
        raise UserError(f'{where}: {show_error(error, 500)}') from error
    if address == 'local':
        agents = [pid for child in _children(os.getpid()) for pid in _children(child)]  # children of the raylet
        if agents:
            command = [sys.executable, '-I', '-S', '-c', REAPER, *map(str, agents)]
            _reapers.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))
    return True


def leave() -> None:
    """Disconnects, and ends Ray if it was started by `join`."""
    with _own_signals():
        ray.shutdown()
    while _reapers:
        reaper = _reapers.pop()
        reaper.kill()
        reaper.communicate()  # closes its input, and waits for it


def end(actor: Any) -> None:
    """Asks an actor to end itself now."""
    with suppress(RayError):
        ray.kill(actor, no_restart=True)


def end_process(place: Place) -> bool:
    """Kills a process of this node; processes of other nodes are left to Ray. Returns: whether the process is of this node."""
    is_here = ray.is_initialized() and place[2] == ray.get_runtime_context().get_node_id()
    if is_here:
        with suppress(OSError):
            os.kill(place[1], signal.SIGKILL)
    return is_here


def wait_for_end(places: Sequence[Place]) -> None:
    """Waits until none of these processes is left on this node; kills those that have not ended after END_S seconds."""
    here = ''
    if ray.is_initialized():
        here = ray.get_runtime_context().get_node_id()
    left = [place for place in places if place[2] == here]
    deadline = monotonic() + END_S
    while left := [place for place in left if _is_there(place[1])]:
        if monotonic() >= deadline:
            for place in left:
                end_process(place)
            return
        sleep(0.02)


def lack(what: str, n: int, need: Mapping[str, float], lower: str = 'cluster.runner_num or cluster.runner_{}') -> str:
    """Returns a sentence such as '8 runners of 1 CPU each need 8, and the Ray cluster has 2: ...'; '' if nothing is lacking.

    Args: lower: config keys that reduce the need; {} becomes the resource's name.
    """
    there = ray.cluster_resources()
    for name, wanted in need.items():
        if wanted > there.get(name, 0) + 1e-6:
            return (
                f'{what} of {wanted / n:g} {name} each need {wanted:g}, and the Ray cluster has {there.get(name, 0):g}: '
                f'add nodes, or lower {lower.format(name.lower())}'
            )
    return ''


def room() -> str:
    """Returns the cluster's resources as a clause: 'the Ray cluster has 4 CPU, of which 1 free'."""
    there = ray.cluster_resources()
    free = ray.available_resources()
    parts = [f'{there[name]:g} {name}, of which {free.get(name, 0):g} free' for name in ('CPU', 'GPU') if name in there]
    return f'the Ray cluster has {"; ".join(parts) or "no CPU"}'


def late(what: str, seconds: float, lack: str) -> str:
    """Returns the message about actors that did not start in time. Args: what: '2 of 8 runners'; lack: from `lack`."""
    why = lack or f'{room()}; other runs may use it, or starting takes longer'
    return f'{what} did not start within cluster.start_timeout={seconds:g} s: {why}'


def cause_of(error: RayError, place: Place | None) -> str:
    """Returns a clause with the cause of an actor's loss. Raises: UserError if its node has no zoo."""
    text = str(error)
    if place is None:
        process = 'its process'
    else:
        process = f'its process {place[1]} on {place[0]}'
    if "No module named 'zoo" in text:
        raise UserError('a node of the Ray cluster cannot import zoo; install the same version on all nodes') from None
    if 'node has died' in text or 'node was dead' in text or 'node failure' in text:
        return f'the node of {process} is gone'
    if 'memory' in text and ('running low' in text or isinstance(error, ray.exceptions.OutOfMemoryError)):
        return f'Ray ended {process} because its machine ran out of memory'
    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return f'{process} cannot be reached'
    if isinstance(error, ray.exceptions.RayActorError):
        return f'{process} ended unexpectedly, e.g. by signal 9 or for lack of memory'
    return f'what {process} had sent was lost ({show_error(error, 200)})'


def _refuse_unreachable(address: str) -> None:
    """Checks that a cluster answers at the address. Raises: UserError if none does."""
    if address == 'auto':  # Ray itself looks for a cluster on this machine, without a delay
        return
    host, _, port = address.rpartition(':')
    if '//' in address or not host or not port.isdigit():
        raise UserError(
            f'cluster.address (or RAY_ADDRESS) is {address!r} but must be host:port of a Ray cluster that this machine '
            "belongs to, e.g. 'head:6379', or 'auto'"
        )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise UserError(
            f'the Ray cluster {address!r} cannot be joined: {show_error(error)}; start it with '
            f'`ray start --head --port={port}` there, or leave cluster.address and RAY_ADDRESS out for one of this machine'
        ) from error


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restores this process's signal handlers at the end; Ray replaces some of them if this is the main thread."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                with suppress(ValueError):
                    signal.signal(number, handler)


@contextmanager
def _own_sessions() -> Iterator[None]:
    """Starts Ray's services in sessions of their own, out of reach of signals to this process group (terminal, scheduler).

    Such a signal would end them. After the end of its raylet, Ray's core ends this process at once, unsaved, with exit code 1.
    The services still end with this process. Ray has no option for this, see its `start_ray_process`.
    """
    services: Any = import_module('ray._private.services')
    popen = getattr(services, 'ConsolePopen', None)
    if popen is None:  # in a later Ray
        yield
        return
    services.ConsolePopen = partial(popen, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = popen


@contextmanager
def _alone() -> Iterator[None]:
    """Makes Ray serve this machine only: it listens on the loopback interface, and only the user can read its token.

    Ray does so by itself on systems where it supports no clusters. An address of 127.0.0.1 would not help: Ray replaces it.
    The modes of the files are set, not a umask, which would hold for the learners too.
    """
    folder = Path.home() / '.ray'
    constants: Any = import_module('ray._private.ray_constants')
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        with suppress(OSError):
            (folder / 'auth_token').chmod(0o600)


def _children(pid: int) -> list[int]:
    """Returns the ids of the child processes of a process; [] on systems without /proc."""
    found = []
    for path in Path('/proc').glob('[0-9]*/stat'):
        with suppress(OSError):
            if int(path.read_text().rpartition(')')[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
