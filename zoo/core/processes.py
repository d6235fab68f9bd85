"""Processes and their machine: signals and requests to stop, work that they interrupt, children, cores, memory."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, SimpleNamespace

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1') if hasattr(signal, name)
)
"""Ctrl-C; a request to end; a closed terminal; a job scheduler's warning. A system may lack the last two."""


class GivenUp(BaseException):
    """A stop was requested during work that can be given up."""


_stop = SimpleNamespace(is_requested=False, can_give_up=False)  # one per process, as its signals have one handler


def forget_signals() -> None:
    """Resets the stop signals to the system's handling, in a new process: a fork begins with what its parent had set."""
    _under_way.clear()
    forget_stop()
    for number in STOP_SIGNALS:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def request_stop() -> None:
    """Records a request to stop; called by a signal handler. Raises: GivenUp if the main thread is in `may_be_given_up`."""
    _stop.is_requested = True
    if _stop.can_give_up:
        _stop.can_give_up = False  # one exception is enough
        raise GivenUp


def forget_stop() -> None:
    """Forgets any request to stop, because a run begins or has ended."""
    _stop.is_requested = False


@contextmanager
def may_be_given_up() -> Iterator[None]:
    """A context for long work that leaves nothing half-done, such as compilation: a request to stop, even before it, ends it.

    Raises: GivenUp at any point of the work, but only in the main thread, which gets the signals.
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
    """A context, inside `may_be_given_up`, for code that no exception may interrupt, such as calls of native code.

    Yields: a function that returns whether a stop was requested, so that the code should end. Raises: GivenUp at the end if so.
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
WATCH_S = 1.0  # seconds between checks of the parent, where the system sends no signal when it ends


def leave_signals_to_parent(ends_at_sigterm: bool) -> None:
    """Ignores the stop signals in a child: they may reach the whole process group, but the run decides when children end.

    Args: ends_at_sigterm: SIGTERM ends the child, even if a fork inherited the handler of the run.
    """
    for number in STOP_SIGNALS:
        is_default = ends_at_sigterm and number == signal.SIGTERM
        signal.signal(number, signal.SIG_DFL if is_default else signal.SIG_IGN)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """A context in which to start processes with the stop signals blocked; they call `unblock_stop_signals` later.

    This process gets the signals after the context. POSIX only.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_stop_signals() -> None:
    """Unblocks the stop signals in a process started under `stop_signals_blocked`, once it has set their handlers."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def die_with_parent(pid: int, is_main_thread: bool, has_ended: Callable[[float], object]) -> None:
    """Ends this process when its parent ends for any reason, even if code that holds the GIL hangs at that time.

    Linux sends a signal, which ends such code too. It does so when the thread that started this process ends; if that is
    not the main thread, the parent may live on without it. In this case, on other systems, and if a fork server starts
    the processes, a thread here checks the parent from time to time.

    Args: pid: of the parent. is_main_thread: whether its main thread started this process. has_ended: waits for the
      given seconds or less, and returns whether the parent has ended.
    """
    if sys.platform == 'linux' and is_main_thread and os.getppid() == pid:
        if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0:
            if os.getppid() != pid:  # the parent ended before the call
                os._exit(1)
            return
    threading.Thread(target=_watch, args=(os.getppid(), has_ended), name='watch parent', daemon=True).start()


EXIT_S = 30.0  # seconds that a process waits at its end for threads and for functions of `atexit`, at most
SAY_S = 3.0  # seconds after which it says that it waits
_SIGEV_THREAD = 2  # of signal.h
_exit_patience = SimpleNamespace(seconds=EXIT_S)


@contextmanager
def collection_paused(owns_process: bool) -> Iterator[None]:
    """A context for imports: garbage collection pauses, and the objects that are there at the end are never looked at again.

    torch makes 400,000 objects that stay. Python would look at all of them about 200 times while they are made, which takes a
    tenth of the start of a run, and again at later times.
    Args: owns_process: whether the process is the command's own; else nothing is changed, since others may have objects too.
    """
    is_paused = owns_process and gc.isenabled()
    if is_paused:
        gc.disable()
    try:
        yield
    finally:
        if is_paused:
            gc.freeze()
            gc.enable()


def limit_exit(seconds: float) -> None:
    """Sets the time that the end of this process may take (`end_in_time`), at most EXIT_S seconds."""
    _exit_patience.seconds = min(seconds, EXIT_S)


def end_in_time(exit_code: int, most: float = EXIT_S) -> None:
    """Limits the time in which this process ends, from now on; to be called when all its work is done.

    Python waits for threads that are no daemons, for child processes and for functions of `atexit` without a limit. An env
    may leave any of them: the client of a simulator, a monitor, a connection that is not answered. After the limit
    (`limit_exit`) the process ends with this exit code, and a warning has said what is not waited for. Its output is
    flushed now. If Python itself hangs at its end, as in a destructor or a C library, a timer of the system ends the process.

    Args: most: seconds, if they are less than the limit.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be closed, None, or an object of the user
            stream.flush()
    seconds = min(_exit_patience.seconds, most)
    with suppress(RuntimeError):  # no thread can be started: the timer below is left
        threading.Thread(target=_end_late, args=(exit_code, seconds), name='zoo exit', daemon=True).start()
    _set_exit_timer(exit_code, seconds + SAY_S)


def _end_late(exit_code: int, seconds: float) -> None:
    """Ends the process after some seconds; says before what it waits for. An end in time ends this daemon thread too."""
    time.sleep(min(SAY_S, seconds))
    main_thread = threading.main_thread()
    names = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not main_thread]
    if names:
        what = f'the thread {", ".join(map(repr, names))}'
    else:
        what = 'a function of atexit, or a process that was started,'
    left = max(seconds - SAY_S, 0.0)
    words = '%s still runs, and was started by an env or another package: zoo waits %.3g s more, then ends without it'
    logging.getLogger('zoo.exit').warning(words, what, left)  # of signals, some processes log nothing
    time.sleep(left)
    with suppress(Exception):
        sys.stdout.flush()
    os._exit(exit_code)


def _set_exit_timer(exit_code: int, seconds: float) -> None:
    """Lets the C library call `_exit` after some seconds, even if no Python code can run any more (Linux, 64 bits)."""
    libc = ctypes.CDLL(None)
    if sys.platform != 'linux' or ctypes.sizeof(ctypes.c_void_p) != 8 or not hasattr(libc, 'timer_create'):
        return
    event = _ExitEvent()
    timer = ctypes.c_void_p()
    when = _TimerSpec()
    event.value = exit_code
    event.notify = _SIGEV_THREAD
    event.function = ctypes.cast(libc._exit, ctypes.c_void_p)
    when.value = int(seconds)
    if libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) == 0:
        libc.timer_settime(timer, 0, ctypes.byref(when), None)


class _ExitEvent(ctypes.Structure):
    """`struct sigevent` of signal.h: a function that a new thread calls with a value."""

    _fields_ = [
        ('value', ctypes.c_longlong),
        ('signo', ctypes.c_int),
        ('notify', ctypes.c_int),
        ('function', ctypes.c_void_p),
        ('rest', ctypes.c_char * 40),
    ]


class _TimerSpec(ctypes.Structure):
    """`struct itimerspec` of time.h: interval and first expiry, each in seconds and nanoseconds."""

    _fields_ = [(name, ctypes.c_long) for name in ('interval', 'interval_ns', 'value', 'value_ns')]


def n_core() -> int:
    """The number of processor cores that this process may use."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


NO_LIMIT = 2**63
CGROUPS = Path('/sys/fs/cgroup')
CGROUP_OF_PROCESS = Path('/proc/self/cgroup')


def machine_memory() -> int:
    """Bytes of memory that this process may have; 2**63 if the system does not say. See `_memory_limits`."""
    return min(n_byte for n_byte, _ in _memory_limits())


def memory_words() -> str:
    """The memory that this process may have, as the end of a sentence: 'this machine has 25 GB'."""
    n_byte, words = min(_memory_limits())
    return words.format(f'{n_byte / 1e9:,.0f} GB' if n_byte >= 10e9 else f'{n_byte / 1e9:,.2g} GB')


def _memory_limits() -> list[tuple[int, str]]:
    """The limits on the memory of this process, each with words: the machine, its control groups, the limits of a shell."""
    machine = NO_LIMIT
    if hasattr(os, 'sysconf') and 'SC_PHYS_PAGES' in os.sysconf_names:
        machine = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    return [
        (machine, 'this machine has {}'),
        (cgroup_memory(CGROUP_OF_PROCESS, CGROUPS), 'the container, or control group, of this process may use {}'),
        (_address_space(), 'the limit on address space (ulimit -v) leaves {}'),
    ]


def cgroup_memory(of_process: Path, root: Path) -> int:
    """The lowest limit of the control groups that a process is in (version 1 or 2), and of those that hold them.

    Args: of_process: /proc/self/cgroup, with lines such as '0::/a/b' and '4:memory:/a'; root: where the groups are mounted.
    In a container the path of a line may be that of the host: then only the folders that are there count.
    """
    limits = [NO_LIMIT]
    lines: list[str] = []
    with suppress(OSError):
        lines = of_process.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(':', 2)
        for mount, name, is_known in (
            (root, 'memory.max', controllers == ''),
            (root / 'unified', 'memory.max', controllers == ''),
            (root / 'memory', 'memory.limit_in_bytes', 'memory' in controllers.split(',')),
        ):
            folder = mount / path.lstrip('/')
            for place in (folder, *folder.parents) if is_known else ():
                with suppress(OSError, ValueError):  # it is not there, or says 'max'
                    limits.append(int((place / name).read_text()))
                if place == mount:
                    break
    return min(limits)


def _address_space() -> int:
    """Bytes that the limit on the address space leaves to this process."""
    if sys.platform == 'win32':
        return NO_LIMIT
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return NO_LIMIT
    used = 0
    with suppress(OSError, ValueError):
        used = int(Path('/proc/self/statm').read_text().split()[0]) * os.sysconf('SC_PAGE_SIZE')
    return max(most - used, 0)


def signal_name(number: int) -> str:
    """What a user calls a signal: 'Ctrl-C', 'SIGTERM'; 'signal 99' if it has no name."""
    if number == signal.SIGINT:
        return 'Ctrl-C'
    try:
        return signal.Signals(number).name
    except ValueError:
        return f'signal {number}'


def end_words(exit_code: int) -> str:
    """The end of a process in words: 'ended by signal 11 (SIGSEGV)'."""
    if exit_code >= 0:
        return f'ended with exit code {exit_code}'
    hint = ''
    if exit_code == -signal.SIGKILL:
        hint = '; by the system if memory ran out'
    return f'ended by signal {-exit_code} ({signal.Signals(-exit_code).name}{hint})'


def _watch(parent_pid: int, has_ended: Callable[[float], object]) -> None:
    """Ends this process after its parent has ended: its id changes (POSIX), or its handle or pipe becomes ready."""
    while os.getppid() == parent_pid and not has_ended(WATCH_S):
        pass
    os._exit(1)


FROM_USER = signal.SIGINT, signal.SIGTERM
"""A second signal ends the process at once if it is one of these. The others may come several times without urgency: when
a terminal closes, both the kernel and the shell send SIGHUP."""
logger = logging.getLogger(__name__)
_under_way: list[list[int]] = []  # the signals received by each active `catch_signals`, the outermost first


class Interrupted(SystemExit):
    """A signal stopped the run after its update was finished and saved; the exit code is 128 + signal."""


STOP_REQUESTS = KeyboardInterrupt, GivenUp, Interrupted
"""Exceptions by which the user stops zoo. All others are failures of the code that raised them, even those that are no
`Exception`: SystemExit of a script, CancelledError of asyncio, GeneratorExit."""


@contextmanager
def catch_signals(
    interrupts: Callable[[int, FrameType | None], bool] = lambda number, frame: False,
    before_exit: Callable[[], None] = lambda: None,
) -> Iterator[list[int]]:
    """Yields a list that receives the number of the first of STOP_SIGNALS; a second SIGINT or SIGTERM ends the process.

    SIGHUP and SIGUSR1 are not handled if they are ignored, as under `nohup`, or if the caller has a handler. A nested context
    begins with the signals that the outer one has received: an earlier signal also stops the inner work.
    Args: interrupts: called with each signal, returns whether it is no request to stop; may raise; before_exit: called before
      the second signal ends the process; it may interrupt any code, and must be quick.
    """
    received = []
    if _under_way:
        received = list(_under_way[-1])

    def handler(number: int, frame: FrameType | None) -> None:
        if interrupts(number, frame):
            return
        if received:
            if number in FROM_USER:
                try:
                    before_exit()
                finally:
                    os._exit(128 + number)
            return
        received.append(number)
        for stream in (1, 2):  # to the null device if the terminal was closed: a write would raise an error
            try:
                os.write(stream, b'')
            except OSError:
                with suppress(OSError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        # a signal may come within a write to stderr, which Python does not enter twice (RuntimeError): then nothing is said
        with suppress(RuntimeError):
            logger.warning(
                '%s: finishing the update, then saving; Ctrl-C or SIGTERM now stops at once', signal_name(number)
            )
        request_stop()

    old = {}
    try:
        for number in STOP_SIGNALS:
            if number in FROM_USER or signal.getsignal(number) == signal.SIG_DFL:
                old[number] = signal.signal(number, handler)
    except ValueError:  # not in the main thread, which alone can handle signals
        yield received
        return
    forget_stop()
    if received:
        request_stop()
    _under_way.append(received)
    try:
        yield received
    finally:
        _under_way.pop()
        forget_stop()
        for number, previous in old.items():
            signal.signal(number, previous)


def peak_memory_mb() -> float:
    """The most memory that this process has had so far, in 10^6 bytes; 0 on a system that does not tell."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1024
    if sys.platform == 'darwin':
        unit = 1
    return peak * unit / 1e6
