"""Processes of one command on this machine, each with one torch thread; they end with it, and save if it is to stop.

A process that has done its task well waits for the next one: starting it, importing torch and reading configs take seconds.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, NamedTuple

from zoo.config.section import ConfigError
from zoo.core.errors import RunError, UserError, env_failure, show_error
from zoo.core.processes import (
    Interrupted,
    catch_signals,
    die_with_parent,
    end_in_time,
    forget_signals,
    n_core,
    stop_signals_blocked,
    unblock_stop_signals,
)
from zoo.core.streams import ClearingFormat, LogFormat, is_terminal
from zoo.worker.env_watch import EnvWatch

logger = logging.getLogger(__name__)
MAX_TEXT = 4_000  # most characters of an error: a pipe holds 64 KB, and with more the sender waits for the reader
MEMBER_EXIT_S = 10.0  # seconds in which a process with a result must end: the next one may wait for its place
IDLE_S = 0.5  # seconds after which a process without a task looks whether it is to stop
Tell = Callable[[str], None]
Work = Callable[[Any, list[int], Tell], Any]
"""The work of a process: takes a task, the list of signals that it received, and a function that tells the parent a text, of
which the last one counts; the result is sent to the parent."""


def say_if_too_many(n_process: int) -> None:
    """Logs a hint if there are more processes than processor cores."""
    n = n_core()
    if n_process <= n:
        return
    cores = f'{n} processor cores'
    if n == 1:
        cores = 'one processor core'
    logger.info('%d processes share %s, and gain no speed by it; use --jobs %d', n_process, cores, n)


class Ended(NamedTuple):
    """A task that ended, well or with its process: its result or error, and the last text that it told; '' for none.

    exitcode: of the process; 0 if it waits for its next task.
    """

    task: Any
    exitcode: int
    value: Any
    error: Exception | None
    told: str = ''
    lives_on: bool = False


class Team:
    """A team of processes that send their results through pipes.

    A process whose task succeeded takes another one, unless the task left a thread or a process. After an error or a signal
    it ends, so that no task begins in what a failed one left.

    Args: work: a function at module level; imports: modules or files that each process imports first.
    Attributes: members: the processes that work on a task.
    """

    def __init__(self, work: Work, imports: Sequence[str]) -> None:
        self._work = work
        self._imports = list(imports)
        self._level = logging.getLogger().getEffectiveLevel()
        self.members: dict[BaseProcess, tuple[Ended, Connection]] = {}
        self._idle: dict[BaseProcess, Connection] = {}

    def start(self, task: Any) -> None:
        """Gives a task to a process that waits for one, else to a new process. Raises: UserError if it cannot be sent."""
        try:
            pickle.dumps(task)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f'the config cannot be sent to other processes ({error}); write it into a file, or use jobs=1'
            ) from error
        while self._idle:
            process, pipe = self._idle.popitem()
            try:
                pipe.send((task,))
            except OSError:  # it has ended meanwhile
                pipe.close()
                continue
            self.members[process] = Ended(task, 0, None, None), pipe
            return
        self._start_process(task)

    def _start_process(self, task: Any) -> None:
        here, there = multiprocessing.Pipe()
        is_main = threading.current_thread() is threading.main_thread()
        args = self._work, task, self._imports, self._level, there, os.getpid(), is_main
        process = _make_process(args)
        if hasattr(signal, 'pthread_sigmask'):
            resource_tracker.ensure_running()  # its first start would unblock the signals
            # Ctrl-C in the terminal reaches the process before it has a group of its own, and handlers
            with stop_signals_blocked():
                process.start()
                self.members[process] = Ended(task, 0, None, None), here
        else:
            process.start()
            self.members[process] = Ended(task, 0, None, None), here
        there.close()

    def ended(self) -> list[Ended]:
        """Waits until a task ends or a process tells something; returns all tasks that have ended."""
        pipes = [pipe for _, pipe in self.members.values() if not pipe.closed]
        connection.wait([*(process.sentinel for process in self.members), *pipes])
        ends = []
        for process in list(self.members):
            self._receive(process)
            so_far, pipe = self.members[process]
            if so_far.lives_on:
                del self.members[process]
                self._idle[process] = pipe
                ends.append(so_far)
            elif not process.is_alive():
                ends.append(self._end(process))
        return ends

    def so_far(self) -> list[Ended]:
        """What the processes that have not ended have told so far; may be called in any thread."""
        return [so_far for so_far, _ in list(self.members.values())]

    def stop(self) -> None:
        """Asks all processes to save and end."""
        for process in list(self.members):
            process.terminate()
        for pipe in list(self._idle.values()):
            with suppress(OSError):
                pipe.send(None)

    @contextmanager
    def follow_signals(self) -> Iterator[None]:
        """Passes signals of this process on to the others, which are not in its process group: each is asked to stop."""
        handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            handlers = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def stop_and_handle(number: int, frame: FrameType | None) -> None:
            self.stop()
            before = handlers[number]
            if callable(before):
                before(number, frame)

        for number in handlers:
            signal.signal(number, stop_and_handle)
        try:
            yield
        finally:
            self.stop()
            for process, pipe in self._idle.items():
                process.join()
                pipe.close()
            self._idle.clear()
            for number, before in handlers.items():
                signal.signal(number, before)

    def _end(self, process: BaseProcess) -> Ended:
        process.join()
        self._receive(process)
        so_far, pipe = self.members.pop(process)
        pipe.close()
        return so_far._replace(exitcode=process.exitcode or 0)

    def _receive(self, process: BaseProcess) -> None:
        """Reads what a process has sent; a pipe at its end, or with a message that was cut off, is closed."""
        so_far, pipe = self.members[process]
        try:
            while not pipe.closed and pipe.poll():
                so_far = so_far._replace(**pipe.recv())
                self.members[process] = so_far, pipe
        except (EOFError, OSError):
            pipe.close()


def set_log_format(formatter: logging.Formatter) -> None:
    """Sets the format of this process's log, whose lines replace the progress that the first process may show."""
    if is_terminal(sys.stderr):
        formatter = ClearingFormat(formatter)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter)


def _picklable(error: UserError | RunError) -> UserError | RunError:
    """Returns an error of the same kind that can be sent; instances of other subclasses may not be picklable."""
    text = str(error)[:MAX_TEXT]
    if isinstance(error, ConfigError):
        return ConfigError(text.splitlines())
    if isinstance(error, UserError):
        return UserError(text)
    return RunError(text)


def _make_process(args: tuple[Any, ...]) -> BaseProcess:
    """Returns a process that is not started yet: a fork of this one if that is safe, which has all modules already.

    A fork copies the memory but not the threads, whose locks would stay held: it is made only in a process of the command
    itself before it has any other thread, and never where a GPU may have been looked at.
    """
    import torch

    is_plain = EnvWatch.owns_process and threading.active_count() == 1 and not torch.cuda.is_available()
    if sys.platform == 'linux' and is_plain:
        return multiprocessing.get_context('fork').Process(target=_run, args=args)
    return multiprocessing.get_context('spawn').Process(target=_run, args=args)


def _run(
    work: Work, task: Any, imports: Sequence[str], level: int, pipe: Connection, parent_pid: int, is_main_thread: bool
) -> None:
    """Main function of a process. The stop signals are blocked until their handlers are set."""
    if hasattr(os, 'setpgrp'):
        os.setpgrp()  # Ctrl-C reaches only the first process, which tells the others once
    forget_signals()
    if hasattr(os, 'setpgrp'):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # drops one that has reached this process before
    EnvWatch.owns_process = False
    parent = multiprocessing.parent_process()
    assert parent is not None
    die_with_parent(parent_pid, is_main_thread, lambda seconds: bool(connection.wait([parent.sentinel], seconds)))
    import torch

    torch.set_num_threads(1)
    logging.basicConfig(level=level, stream=sys.stderr)
    set_log_format(LogFormat())
    logging.getLogger('zoo.core.processes').setLevel(logging.ERROR)  # the first process reports signals for all
    exit_code: Any = 1
    try:
        with catch_signals() as received:
            if hasattr(signal, 'pthread_sigmask'):
                unblock_stop_signals()
            from zoo.config.source import import_module_or_file

            for name in imports:
                import_module_or_file(name)
            gc.freeze()  # what is here stays: the collection after each task looks at the objects of the task alone
            _do_tasks(work, task, received, pipe)
        exit_code = 0
    except (UserError, RunError) as error:
        pipe.send({'error': _picklable(error)})
    except Interrupted as interrupted:
        exit_code = interrupted.code
    except BaseException as error:  # also SystemExit of code that the run was given
        failure = env_failure(error)
        if failure is None:  # not an env's error: unexpected, so its traceback is shown
            logger.exception('this was not expected')
        pipe.send({'error': RunError((failure or show_error(error))[:MAX_TEXT])})
    end_in_time(exit_code, MEMBER_EXIT_S)
    sys.exit(exit_code)


def _do_tasks(work: Work, task: Any, received: list[int], pipe: Connection) -> None:
    """Does tasks, the next ones from the pipe, until one leaves something behind, or this process is to stop."""
    folder = os.getcwd()
    words = list(sys.argv)
    message: tuple[Any, ...] | None = (task,)
    while message is not None:
        before = _left_behind()
        value = work(message[0], received, lambda text: pipe.send({'told': text}))
        os.chdir(folder)  # an env may have changed it
        sys.argv = list(words)
        gc.collect()  # envs and networks of the task, before the next one needs memory
        lives_on = not received and _left_behind() <= before
        pipe.send({'value': value, 'lives_on': lives_on})
        message = None
        if lives_on:
            message = _next_task(received, pipe)


def _next_task(received: list[int], pipe: Connection) -> tuple[Any, ...] | None:
    """Waits for a task; None if there is none, or this process is to stop."""
    while not pipe.poll(IDLE_S):
        if received:
            return None
    try:
        message: tuple[Any, ...] | None = pipe.recv()
    except EOFError:
        return None
    return message


def _left_behind() -> set[object]:
    """The threads and processes of this process, which its tasks may leave."""
    return {*threading.enumerate(), *multiprocessing.active_children()}
