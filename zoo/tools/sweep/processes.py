"""Processes of one command on this machine, each with one torch thread; they end with it, and save if it is to stop."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any, NamedTuple

from zoo.core.errors import RunError, UserError, env_failure, show_error
from zoo.core.processes import catch_signals, die_with_parent, n_core
from zoo.core.streams import ClearingFormat, LogFormat, is_terminal

logger = logging.getLogger(__name__)
MAX_TEXT = 4_000  # most characters of an error: a pipe holds 64 KB, and with more the sender waits for the reader
Work = Callable[[Any, list[int]], Any]
"""The work of a process: takes a task and the list of signals that it received; the result is sent to the parent."""


def say_if_too_many(n_process: int) -> None:
    """Logs a hint if there are more processes than processor cores."""
    if n_process > (n := n_core()):
        cores = 'one processor core' if n == 1 else f'{n} processor cores'
        logger.info('%d processes share %s, and gain no speed by it; use --jobs %d', n_process, cores, n)


class Ended(NamedTuple):
    """A process that ended: its task, exit code, and its result or error."""

    task: Any
    exitcode: int
    value: Any
    error: Exception | None


class Team:
    """A team of processes that send their results through pipes.

    Args: work: a function at module level; imports: modules or files that each process imports first.
    """

    def __init__(self, work: Work, imports: Sequence[str]) -> None:
        self._work, self._imports = work, list(imports)
        self._level = logging.getLogger().getEffectiveLevel()
        self.members: dict[Any, tuple[Any, Connection]] = {}

    def start(self, task: Any) -> None:
        """Starts a process with a task. Raises: UserError if the task cannot be sent."""
        try:
            pickle.dumps(task)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f'the config cannot be sent to other processes ({error}); write it into a file, or use jobs=1'
            ) from error
        here, there = multiprocessing.Pipe(duplex=False)
        is_main = threading.current_thread() is threading.main_thread()
        args = self._work, task, self._imports, self._level, there, os.getpid(), is_main
        process = SpawnProcess(target=_run, args=args)
        process.start()
        there.close()
        self.members[process] = task, here

    def ended(self) -> list[Ended]:
        """Waits until a process ends; returns all that have ended."""
        connection.wait([process.sentinel for process in self.members])
        return [self._end(process) for process in list(self.members) if not process.is_alive()]

    def stop(self) -> None:
        """Asks all processes to save and end."""
        for process in list(self.members):
            process.terminate()

    @contextmanager
    def follow_signals(self) -> Iterator[None]:
        """Passes signals of this process on to the others, which are not in its process group: each is asked to stop."""
        handlers = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        is_main = threading.current_thread() is threading.main_thread()

        def handler(number: int, frame: FrameType | None) -> None:
            self.stop()
            if callable(before := handlers[number]):
                before(number, frame)

        for number in handlers if is_main else ():
            signal.signal(number, handler)
        try:
            yield
        finally:
            self.stop()
            for number, before in handlers.items() if is_main else ():
                signal.signal(number, before)

    def _end(self, process: SpawnProcess) -> Ended:
        task, pipe = self.members.pop(process)
        value, error = None, None
        with pipe, suppress(EOFError):  # it sent nothing
            value, error = pipe.recv()
        process.join()
        return Ended(task, process.exitcode or 0, value, error)


def set_log_format(formatter: logging.Formatter) -> None:
    """Sets the format of this process's log, whose lines replace the progress that the first process may show."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(ClearingFormat(formatter) if is_terminal(sys.stderr) else formatter)


def _run(
    work: Work, task: Any, imports: Sequence[str], level: int, pipe: Connection, parent_pid: int, is_main_thread: bool
) -> None:
    """Main function of a process."""
    if hasattr(os, 'setpgrp'):
        os.setpgrp()  # Ctrl-C reaches only the first process, which tells the others once
    parent = multiprocessing.parent_process()
    assert parent is not None
    die_with_parent(parent_pid, is_main_thread, lambda seconds: bool(connection.wait([parent.sentinel], seconds)))
    import torch

    torch.set_num_threads(1)
    logging.basicConfig(level=level, stream=sys.stderr)
    set_log_format(LogFormat())
    try:
        with catch_signals() as received:
            from zoo.config.source import import_module_or_file

            for name in imports:
                import_module_or_file(name)
            value = work(task, received)
    except (UserError, RunError) as error:
        plain = UserError if isinstance(error, UserError) else RunError  # instances of subclasses may not be picklable
        pipe.send((None, plain(str(error)[:MAX_TEXT])))
        sys.exit(1)
    except Exception as error:
        if (failure := env_failure(error)) is None:  # not an env's error: unexpected, so its traceback is shown
            logger.exception('this was not expected')
        pipe.send((None, RunError((failure or show_error(error))[:MAX_TEXT])))
        sys.exit(1)
    pipe.send((value, None))
