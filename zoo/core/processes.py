"""Processes of a run and requests to stop them: signals, work that is given up for one, children that end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1') if hasattr(signal, name)
)
"""Ctrl-C; a request to end; a closed terminal; a job scheduler's warning. A system may lack the last two."""


class GivenUp(BaseException):
    """A stop was requested during work that can be given up."""


_stop = SimpleNamespace(is_requested=False, can_give_up=False)  # one of a process, as its signals have one handler


def request_stop() -> None:
    """Called by a signal handler. Raises: GivenUp if the main thread is in a `may_be_given_up`."""
    _stop.is_requested = True
    if _stop.can_give_up:
        _stop.can_give_up = False  # one exception is enough
        raise GivenUp


def forget_stop() -> None:
    """A run begins or has ended: no stop is requested."""
    _stop.is_requested = False


@contextmanager
def may_be_given_up() -> Iterator[None]:
    """For long work that leaves nothing half-done, such as compilation: a request to stop, earlier ones too, ends it.

    Raises: GivenUp at any point of the work. In other threads than the main one, which gets the signals, never.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _stop.is_requested:
        raise GivenUp
    try:
        _stop.can_give_up = True
        yield
    finally:
        _stop.can_give_up = False


@contextmanager
def given_up_at_its_end() -> Iterator[Callable[[], bool]]:
    """For a part of such work through which no exception may pass at any point, such as calls of native code.

    Yields: a function, whether a stop was requested, so that the part should end. Raises: GivenUp at its end if so.
    """
    may_be = _stop.can_give_up and threading.current_thread() is threading.main_thread()
    if may_be:
        _stop.can_give_up = False
    try:
        yield lambda: may_be and _stop.is_requested
    finally:
        _stop.can_give_up = may_be or _stop.can_give_up
    if may_be and _stop.is_requested:
        _stop.can_give_up = False
        raise GivenUp


PR_SET_PDEATHSIG = 1  # of linux/prctl.h
WATCH_S = 1.0  # seconds between two looks at the parent, where no signal of the system tells of its end


def leave_signals_to_parent(ends_at_sigterm: bool) -> None:
    """A signal may reach the whole process group, but the run's own handler decides when its processes end.

    That handler is inherited by a fork, and must not keep a process from being terminated where SIGTERM ends it.
    """
    for number in STOP_SIGNALS:
        is_default = ends_at_sigterm and number == signal.SIGTERM
        signal.signal(number, signal.SIG_DFL if is_default else signal.SIG_IGN)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """A process that is started meanwhile starts with these signals blocked, and `unblock_stop_signals` ends that.

    Here they arrive afterwards. POSIX.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_stop_signals() -> None:
    """For a process that was started under `stop_signals_blocked`, once it has decided what they do."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def die_with_parent(pid: int, is_main_thread: bool, has_ended: Callable[[float], object]) -> None:
    """Ends this process when its parent ends, in whatever way, even if code that holds the GIL hangs at that time.

    Linux sends a signal, which ends such code too. It does so when the thread that started this process ends; if that is
    not the main thread, the parent may live on without it. There, on other systems, and where a server forks the
    processes, a thread looks at the parent from time to time.

    Args: pid: of the parent. is_main_thread: whether its main thread started this process. has_ended: waits that many
      seconds or less, and is true if the parent has ended.
    """
    if sys.platform == 'linux' and is_main_thread and os.getppid() == pid:
        if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0:
            if os.getppid() != pid:  # it ended before the call
                os._exit(1)
            return
    threading.Thread(target=_watch, args=(os.getppid(), has_ended), name='watch parent', daemon=True).start()


def end_words(exit_code: int) -> str:
    """How a process ended: 'ended by signal 11 (SIGSEGV)'."""
    if exit_code >= 0:
        return f'ended with exit code {exit_code}'
    hint = '; by the system if memory ran out' if exit_code == -signal.SIGKILL else ''
    return f'ended by signal {-exit_code} ({signal.Signals(-exit_code).name}{hint})'


def _watch(parent_pid: int, has_ended: Callable[[float], object]) -> None:
    """Ends the process with its parent: then the parent's id changes (POSIX), or its handle or pipe is ready."""
    while os.getppid() == parent_pid and not has_ended(WATCH_S):
        pass
    os._exit(1)


def n_core() -> int:
    """How many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
