"""Progress of several runs in one line: rewritten in place on a terminal, else a line of the log from time to time."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple

from zoo.config.yaml_io import MAX_BYTE
from zoo.core.files import open_without_link, read_small
from zoo.core.streams import CLEAR_LINE, ClearingFormat, is_terminal, visible

logger = logging.getLogger(__name__)
LIVE_S = 0.5  # seconds between two looks, for a line that is rewritten
# seconds before the first line of the log; each later time is at least 1.1 times the one before
FIRST_S = 30.0
GROWTH = 1.1
TAIL_BYTE = 1 << 16  # of a log: some hundred lines
USUAL_WIDTH = 80  # of a terminal that does not know its own


class Work(NamedTuple):
    """The runs of a command at one time. n_run: all; n_ended: those that are over; running: name and share done of the others."""

    n_run: int
    n_ended: int
    running: dict[str, float]


def progress_words(work: Work, left_s: float | None, width: int | None = None) -> str:
    """Returns the line, '2 of 5 running: seed0 41%, seed1 39%, left 0:04:10'.

    Args: left_s: seconds up to the end of all, None if unknown; width: characters of a terminal; a longer line loses first the
      names, then the single shares.
    """
    shares = {name: f'{math.floor(100 * share)}%' for name, share in work.running.items()}
    head = f'{len(shares)} of {work.n_run} running'
    texts = [head]
    if shares:
        left = '-'
        if left_s is not None:
            left = str(timedelta(seconds=round(left_s)))
        with_names = ', '.join(f'{name} {share}' for name, share in shares.items())
        lowest = math.floor(100 * min(work.running.values()))
        highest = math.floor(100 * max(work.running.values()))
        middles = [with_names, ', '.join(shares.values()), f'{lowest}% to {highest}%']
        texts = [f'{head}: {middle}, left {left}' for middle in middles]
    if width is None:
        return texts[0]
    for text in texts:
        if len(text) < width:
            return text
    return head[: width - 1]


class TimeLeft:
    """Estimate of the seconds until all runs have ended, from the work done since the first look."""

    def __init__(self) -> None:
        # share of each run when it was first seen: an earlier command may have begun it
        self._first: dict[str, float] = {}
        self._n_ended: int | None = None
        self._since = 0.0

    def seconds(self, work: Work, now: float) -> float | None:
        """Returns the estimate; None if nothing was done yet. Args: now: seconds of a clock."""
        if self._n_ended is None:
            self._n_ended = work.n_ended
            self._since = now
        for name, share in work.running.items():
            self._first.setdefault(name, share)
        n_more = work.n_ended - self._n_ended
        done = n_more + sum(work.running.values()) - sum(self._first.values())
        rest = work.n_run - work.n_ended - sum(work.running.values())
        if done > 0.005:
            return (now - self._since) * rest / done
        return None


def share_of(folder: Path) -> float:
    """Returns the share of its env steps that a run has done by its log, 0 to 1; 0.0 if that is not known."""
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        with open(folder / 'metrics.jsonl', 'rb', opener=open_without_link) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTE))
            lines = file.read(TAIL_BYTE).split(b'\n')
        row = json.loads(lines[-2])  # the last is empty, or not complete
        return min(max(float(row['env_step']) / _max_env_step(folder), 0.0), 1.0)
    return 0.0


@cache
def _max_env_step(folder: Path) -> int:
    """Reads the env steps of a run from its config. Raises: OSError, ValueError if they are not there."""
    text = read_small(folder / 'config.yaml', MAX_BYTE).decode()
    line = re.search(r'^max_env_step: (\d+)$', text, re.MULTILINE)
    if line is None:
        raise ValueError('no max_env_step')
    return max(int(line[1]), 1)


@contextmanager
def shown_progress(look: Callable[[], Work], overrides: Sequence[str] = ()) -> Iterator[None]:
    """Shows the progress of runs on stderr while the context lasts, from a thread.

    Nothing is shown if the log shows warnings only (--quiet), or if the overrides turn the console off.
    Args: look: returns the work at this time; called in the thread; overrides: of all runs.
    """
    if not logger.isEnabledFor(logging.INFO) or 'logger.console=off' in overrides:
        yield
        return
    show = _log_lines
    end = threading.Event()
    with ExitStack() as undo:
        if is_terminal(sys.stderr):
            show = _rewrite_line
            undo.enter_context(_cleared_before_logs())
        thread = threading.Thread(target=show, args=(look, end), name='progress of runs', daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()


def _rewrite_line(look: Callable[[], Work], end: threading.Event) -> None:
    time_left = TimeLeft()
    with suppress(OSError):  # a closed terminal
        while not end.wait(LIVE_S):
            work = look()
            left_s = time_left.seconds(work, time.monotonic())
            if work.running:
                width = os.get_terminal_size(sys.stderr.fileno()).columns or USUAL_WIDTH
                sys.stderr.write(f'{CLEAR_LINE}{visible(progress_words(work, left_s, width))}')
                sys.stderr.flush()
        sys.stderr.write(CLEAR_LINE)
        sys.stderr.flush()


def _log_lines(look: Callable[[], Work], end: threading.Event) -> None:
    time_left = TimeLeft()
    start = time.monotonic()
    time_left.seconds(look(), start)
    next_s = FIRST_S
    while not end.wait(start + next_s - time.monotonic()):
        work = look()
        if work.running:
            logger.info('%s', progress_words(work, time_left.seconds(work, time.monotonic())))
        next_s = max(next_s + FIRST_S, next_s * GROWTH)


@contextmanager
def _cleared_before_logs() -> Iterator[None]:
    """Lets each line of the log replace the line of the progress, which is drawn again below it."""
    root = logging.getLogger()
    handlers = [handler for handler in root.handlers if getattr(handler, 'stream', None) is sys.stderr]
    before = [handler.formatter for handler in handlers]
    for handler in handlers:
        handler.setFormatter(ClearingFormat(handler.formatter))
    try:
        yield
    finally:
        for handler, formatter in zip(handlers, before, strict=True):
            handler.setFormatter(formatter)
