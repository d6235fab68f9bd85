"""Signals: the first one lets a run finish its update and save."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from zoo.core.processes import STOP_SIGNALS, forget_stop, request_stop

FROM_USER = signal.SIGINT, signal.SIGTERM
"""A second signal ends the process at once if it is one of these. The others may come several times without urgency: when
a terminal closes, both the kernel and the shell send SIGHUP."""
logger = logging.getLogger(__name__)
_under_way: list[list[int]] = []  # the signals received by each active `catch_signals`, the outermost first


class Interrupted(SystemExit):
    """A signal stopped the run after its update was finished and saved; the exit code is 128 + signal."""


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
        for stream in (1, 2):  # to the null device if the terminal was closed: a write would raise an error
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
