"""The watch for calls of env code that never return, in the process that makes the calls: a run, a runner, a command."""

from __future__ import annotations

import _thread
import logging
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, contextmanager, suppress
from traceback import walk_stack
from types import FrameType
from typing import Any, TypeVar

from zoo.env import EnvError
from zoo.env.calls import CALLS
from zoo.env.errors import NoAnswerError, own_line

T = TypeVar('T')
POLL_S = 1.0  # seconds between two looks, at most
GRACE_S = 10.0  # seconds for a call to end after it was interrupted
SIGNAL = signal.SIGINT  # interrupts the main thread: the only one that interrupts everywhere
DEBUGGERS = ('bdb', 'pdb', 'IPython.core.debugger')
logger = logging.getLogger(__name__)
_TOLD: dict[int, Callable[[EnvError], object]] = {}  # by thread: gives the error to its caller, see `OwnThread`
_ENV = os.path.join(os.path.dirname(sys.modules['zoo.env'].__file__ or ''), '')


class EnvWatch:
    """A thread that checks once a second how long the thread that created it has been in one call of env code.

    After `timeout` seconds in one call it interrupts the main thread, which raises EnvError; if the call is in another
    thread, it warns. If the code cannot be interrupted and the process is zoo's own, it saves and ends the process.

    Attributes: save: saves the run, once there is one.
    """

    owns_process = False  # the command `zoo` sets it

    def __init__(self, timeout: float) -> None:
        self.save: Callable[[], object] | None = None
        self._timeout = timeout
        self._poll = min(POLL_S, timeout / 4)
        self._watched = threading.get_ident()
        self._calls = CALLS[self._watched]
        self._end = threading.Event()
        self._fired: tuple[Any, str] | None = None  # the call to end, and the words
        self._is_ending = self._was_blocked = False
        self._told: tuple[Any, ...] | None = None  # the call that was warned of

    def __enter__(self) -> EnvWatch:
        if hasattr(signal, 'pthread_sigmask') and self._watched == threading.main_thread().ident:
            # Ray blocks Ctrl-C in its processes, since Ctrl-C is not meant for them
            self._was_blocked = SIGNAL in signal.pthread_sigmask(signal.SIG_BLOCK, ())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})
        self._calls.is_watched = True
        self._thread = threading.Thread(target=self._run, name='env watch', daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._calls.is_watched = False
        self._end.set()
        self._thread.join(POLL_S)  # a thread that runs while the interpreter ends may abort the process
        if self._was_blocked:
            signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})

    def interrupts(self, number: int, frame: FrameType | None) -> bool:
        """Handles a signal in the main thread. Returns: whether it came from the watch, or was blocked before the watch.

        Raises: EnvError if the call that has to end has not returned in the meantime.
        """
        if number != SIGNAL or self._fired is None:
            return number == SIGNAL and self._was_blocked
        call, words = self._fired
        self._fired = None
        while self._is_ending:  # the process is about to end; until then nothing may change
            time.sleep(POLL_S)
        if self._calls.state() == call and _is_in_env(frame):
            raise NoAnswerError(words)
        return True

    def _run(self) -> None:
        last = None
        n_look = 0
        while not self._end.wait(self._poll):
            call = self._calls.state()
            if call == last:
                n_look += 1
            else:
                n_look = 0
            last = call
            # counts looks, not seconds: time in which the whole process was stopped does not count
            if call is None or n_look * self._poll < self._timeout * self._calls.n_timeout:
                continue
            stack = sys._current_frames().get(self._watched)
            if _is_in_env(stack) and not _is_debugged(stack):
                self._expire(call, stack)
            last = None
            n_look = 0

    def _expire(self, call: tuple[Any, ...], stack: FrameType | None) -> None:
        seconds = self._timeout * self._calls.n_timeout
        words = (
            f'{call[0](call[1])}: no answer within {seconds:g} s, at {own_line(stack)}; '
            'fix the env there, or raise env.step_timeout.'
        )
        if self._watched != threading.main_thread().ident:
            if call == self._told:
                return
            self._told = call
            tell = _TOLD.get(self._watched)
            if tell is not None:
                tell(NoAnswerError(words))
            else:
                logger.warning('%s (It cannot be ended from here: the run is not in the main thread.)', words)
            return
        self._interrupt(call, words)
        for _ in range(math.ceil(GRACE_S / self._poll)):
            if self._end.wait(self._poll) or self._calls.state() != call:
                return
        logger.error('%s It cannot be interrupted.', words)
        if not self.owns_process:
            return
        # saves the run in this thread, while the main thread is in the env or, if that returns, waits in `interrupts`
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
    """Context with an EnvWatch, for work outside of `catch_signals`; other interrupts go to the caller's handler.

    Only the main thread handles signals: in other threads the watch can only warn. A watched thread keeps its watch.
    Args: timeout: seconds, as of EnvWatch. Raises: EnvError in place of a call that does not return.
    """

    def handler(number: int, frame: FrameType | None) -> None:
        if watch.interrupts(number, frame):
            return
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            signal.signal(number, previous)
            signal.raise_signal(number)  # ends the process

    with ExitStack() as undo:
        if not CALLS[threading.get_ident()].is_watched:
            watch = EnvWatch(timeout)
            if threading.current_thread() is threading.main_thread():
                previous = signal.signal(SIGNAL, handler)
                undo.callback(signal.signal, SIGNAL, previous)
            undo.enter_context(watch)
        yield


class OwnThread:
    """A thread that does all work on some envs, and is abandoned if one of their calls never returns.

    For work outside of the main thread, where nothing can interrupt it.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name='envs', daemon=True).start()

    def do(self, work: Callable[[], T]) -> T:
        """Runs `work` in the thread and returns its result. Raises: its exceptions; EnvError for a watched call that hangs."""
        done: Future[T] = Future()
        self._work.put((work, done))
        return done.result()

    def _run(self) -> None:
        while True:
            work, done = self._work.get()
            _TOLD[threading.get_ident()] = done.set_exception
            with suppress(InvalidStateError):  # work that was given up may still end
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)


def _is_in_env(stack: FrameType | None) -> bool:
    """Whether code of zoo.env is anywhere on a stack."""
    return stack is not None and any(frame.f_code.co_filename.startswith(_ENV) for frame, _ in walk_stack(stack))


def _is_debugged(stack: FrameType | None) -> bool:
    """Whether the code on a stack is in a debugger, for example at a breakpoint."""
    frames = [frame for frame, _ in walk_stack(stack)]
    return any(frame.f_trace is not None or frame.f_globals.get('__name__') in DEBUGGERS for frame in frames)
