"""SIGINT and SIGTERM: the first lets a run finish its update and save, the second ends the process at once."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger(__name__)


class Interrupted(SystemExit):
    """The run was stopped by a signal after its update was finished and saved; exits with 128 + signal."""


@contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Collects the first SIGINT or SIGTERM for the loop to look at; the second ends the process at once."""
    received: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        logger.warning('signal %d: finishing the update, then saving; send it again to stop at once', number)

    try:
        old = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: signals belong to somebody else
        yield received
        return
    try:
        yield received
    finally:
        for number, previous in old.items():
            signal.signal(number, previous)
