"""Signals: the first one lets a run finish its update and save; calls of an env's code that never return are ended."""

from __future__ import annotations

import _thread
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from zoo.core.processes import STOP_SIGNALS, forget_stop, request_stop
from zoo.env import EnvError
from zoo.env.errors import CALLS, own_line

FROM_USER = signal.SIGINT, signal.SIGTERM
"""The second signal ends the process at once if it is one of these. The others may come several times though nobody is
in a hurry: when a terminal closes, the kernel sends SIGHUP, and so does the shell."""
Interrupts = Callable[[int, FrameType | None], bool]
logger = logging.getLogger(__name__)
_under_way: list[list[int]] = []
"""What each `catch_signals` has received that is under way, the outermost first."""


class Interrupted(SystemExit):
    """A signal stopped the run after its update was finished and saved; the exit code is 128 + signal."""


@contextmanager
def catch_signals(
    interrupts: Interrupts = lambda number, frame: False, before_exit: Callable[[], None] = lambda: None
) -> Iterator[list[int]]:
    """Yields a list that receives the number of the first of STOP_SIGNALS; a second SIGINT or SIGTERM ends the process.

    SIGHUP and SIGUSR1 are left alone where they are ignored, as `nohup` has it, or where the caller has a handler. Within
    another one it begins with what that has received: a signal that came in between stops what begins now.
    Args: interrupts: called with each signal, whether it is no request to stop; may raise; before_exit: called before the
      second signal ends the process, in the middle of whatever it does; must be quick.
    """
    received = list(_under_way[-1]) if _under_way else []

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
        for stream in (1, 2):  # go to nowhere if their terminal was closed: what is written there would raise
            try:
                os.write(stream, b'')
            except OSError:
                with suppress(OSError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        logger.warning('signal %d: finishing the update, then saving; Ctrl-C or SIGTERM now stops at once', number)
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


POLL_S = 1.0  # seconds between two looks, at most
GRACE_S = 10.0  # seconds for a call to end after it was interrupted
SIGNAL = signal.SIGINT  # interrupts the main thread: the only one that interrupts everywhere
DEBUGGERS = ('bdb', 'pdb', 'IPython.core.debugger')
_ENV = os.path.join(os.path.dirname(sys.modules['zoo.env'].__file__ or ''), '')


class EnvWatch:
    """A thread that looks once a second at the call of an env's code that the thread which made it is in.

    After `timeout` seconds in one call it interrupts the main thread, where EnvError is raised, or warns if the call is
    in another thread. Code that cannot be interrupted ends the process, if that is zoo's own, after `save`.

    Attributes: save: saves the run, once there is one.
    """

    owns_process = False  # the command `zoo` sets it

    def __init__(self, timeout: float) -> None:
        self.save: Callable[[], object] | None = None
        self._timeout, self._poll = timeout, min(POLL_S, timeout / 4)
        self._watched = threading.get_ident()
        self._end = threading.Event()
        self._fired: tuple[Any, str] | None = None  # the call to end, and the words
        self._is_ending = False
        self._told: tuple[Any, ...] | None = None  # the call that was warned of

    def __enter__(self) -> EnvWatch:
        self._thread = threading.Thread(target=self._run, name='env watch', daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join(POLL_S)  # a thread that runs while the interpreter ends may abort the process

    def interrupts(self, number: int, frame: FrameType | None) -> bool:
        """Called by the handler of signals, in the main thread: whether this one was the watch's.

        Raises: EnvError if the call that is to end has not returned in the meantime.
        """
        if number != SIGNAL or self._fired is None:
            return False
        (call, words), self._fired = self._fired, None
        while self._is_ending:  # the process is about to end; until then nothing may change
            time.sleep(POLL_S)
        if CALLS.state() == call and _is_in_env(frame):
            raise EnvError(words)
        return True

    def _run(self) -> None:
        last, n_look = None, 0
        while not self._end.wait(self._poll):
            call = CALLS.state()
            n_look = n_look + 1 if call == last else 0
            last = call
            # looks are counted, not seconds: a process that is stopped for a while does not wait for its env
            if call is None or n_look * self._poll < self._timeout * CALLS.n_timeout:
                continue
            stack = sys._current_frames().get(self._watched)
            if _is_in_env(stack) and not _is_debugged(stack):
                self._expire(call, stack)
            last, n_look = None, 0

    def _expire(self, call: tuple[Any, ...], stack: FrameType | None) -> None:
        seconds = self._timeout * CALLS.n_timeout
        words = (
            f'{call[0](call[1])}: no answer within {seconds:g} s, at {own_line(stack)}; '
            'mend the env there, or raise env.step_timeout.'
        )
        if self._watched != threading.main_thread().ident:
            if call != self._told:
                logger.warning('%s (It cannot be ended from here: the run is not in the main thread.)', words)
            self._told = call
            return
        self._interrupt(call, words)
        for _ in range(math.ceil(GRACE_S / self._poll)):
            if self._end.wait(self._poll) or CALLS.state() != call:
                return
        logger.error('%s It cannot be interrupted.', words)
        if not self.owns_process:
            return
        # saves the run in this thread, while the other one is in the env or, should that return, in `interrupts`
        self._is_ending = True
        self._interrupt(call, words)
        time.sleep(self._poll)
        try:
            if self.save is not None:
                self.save()
        except Exception as error:
            logger.error('the end of the run is lost: %s', error)
        finally:
            os._exit(1)

    def _interrupt(self, call: tuple[Any, ...], words: str) -> None:
        self._fired = call, words
        if hasattr(signal, 'pthread_kill'):
            signal.pthread_kill(self._watched, SIGNAL)
        else:
            _thread.interrupt_main(SIGNAL)


@contextmanager
def watch_calls(timeout: float) -> Iterator[None]:
    """An EnvWatch around work that has no `catch_signals`; at other interrupts the handler of the caller is called.

    Outside of the main thread, which alone handles signals, the watch can only warn.
    Args: timeout: seconds, as of EnvWatch. Raises: EnvError in place of a call that does not return.
    """
    watch = EnvWatch(timeout)
    if threading.current_thread() is not threading.main_thread():
        with watch:
            yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        if watch.interrupts(number, frame):
            return
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            signal.signal(number, previous)
            signal.raise_signal(number)  # ends the process

    previous = signal.signal(SIGNAL, handler)
    try:
        with watch:
            yield
    finally:
        signal.signal(SIGNAL, previous)


def _frames(stack: FrameType | None) -> Iterator[FrameType]:
    while stack is not None:
        yield stack
        stack = stack.f_back


def _is_in_env(stack: FrameType | None) -> bool:
    """Whether code of zoo.env is on a stack, called or calling."""
    return any(frame.f_code.co_filename.startswith(_ENV) for frame in _frames(stack))


def _is_debugged(stack: FrameType | None) -> bool:
    """Whether somebody looks at the code on a stack, at a breakpoint say."""
    return any(frame.f_trace is not None or frame.f_globals.get('__name__') in DEBUGGERS for frame in _frames(stack))
