"""Handles SIGINT and SIGTERM: the first lets a run finish its update and save, the second ends the process at once."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger(__name__)


class Interrupted(SystemExit):
    """A signal stopped the run after its update was finished and saved; the exit code is 128 + signal."""


@contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Yields a list that receives the number of the first SIGINT or SIGTERM; the second ends the process at once."""
    received: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        logger.warning('signal %d: finishing the update, then saving; send it again to stop at once', number)

    try:
        old = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, which alone can handle signals
        yield received
        return
    try:
        yield received
    finally:
        for number, previous in old.items():
            signal.signal(number, previous)
