"""The processes of a sweep on this machine; each takes trials from the storage until all are done."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

from zoo.core.errors import RunError, UserError
from zoo.core.processes import die_with_parent, end_words
from zoo.run.interrupt import Interrupted, catch_signals
from zoo.sweep.owner import beating
from zoo.sweep.plan import Plan
from zoo.sweep.study import COUNTED, Outcome, Study
from zoo.sweep.trial import run_trial

MAX_FAILED = 3  # trials that fail before any other one is done: then all would
MAX_RESTART = 20  # processes that are started in place of others

logger = logging.getLogger(__name__)


def work(plan: Plan, study: Study, received: list[int]) -> None:
    """Runs trials in this process until none is left to take, or a signal was received; that of a run is added there.

    Raises: RunError if the first trials all fail.
    """
    with _quiet(), beating(study.beats):
        while not received and (trial := study.next_trial()) is not None:
            try:
                outcome = run_trial(plan, trial, study.values_of(trial.params))
            except Interrupted as interrupted:
                assert isinstance(interrupted.code, int), 'it is 128 + the signal'
                study.end(trial, Outcome('stopped', reason=f'by signal {interrupted.code - 128}'))
                received.append(interrupted.code - 128)
                return
            except BaseException as error:
                study.end(trial, Outcome('stopped', reason=f'by {type(error).__name__}'))
                raise
            study.end(trial, outcome)
            _tell(plan, study, trial.number)
            _refuse_failures(study)


def run_workers(plan: Plan, study: Study, jobs: int, received: list[int], imports: Sequence[str]) -> None:
    """Runs trials in as many processes; one that is killed is replaced. Raises: UserError or RunError of a process."""
    team = _Team(plan, imports)
    n_restart, failure = 0, None
    with team.follow_signals():
        for _ in range(jobs):
            team.start()
        while team.members:
            for process, error in team.ended():
                failure = failure or error
                if failure is not None:
                    team.stop()
                elif process.exitcode < 0 and not received and n_restart < MAX_RESTART and study.n_left():
                    logger.warning(
                        'a process of the sweep %s; another one takes its place', end_words(process.exitcode)
                    )
                    n_restart += 1
                    team.start()
    if failure is not None:
        raise failure


class _Team:
    """The processes, and the ends of pipes on which they say what failed."""

    def __init__(self, plan: Plan, imports: Sequence[str]) -> None:
        self._context = multiprocessing.get_context('spawn')
        self._args = plan, list(imports), logging.getLogger().getEffectiveLevel()
        self.members: dict[Any, Connection] = {}
        try:
            pickle.dumps(plan)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f'the config cannot be sent to other processes ({error}); write it into a file, or use jobs=1'
            ) from error

    def start(self) -> None:
        here, there = self._context.Pipe(duplex=False)
        is_main = threading.current_thread() is threading.main_thread()
        process = self._context.Process(target=_run_worker, args=(*self._args, there, os.getpid(), is_main))
        process.start()
        there.close()
        self.members[process] = here

    def ended(self) -> list[tuple[Any, Exception | None]]:
        """Waits until a process ends; those that did, with what they could not do."""
        connection.wait([process.sentinel for process in self.members])
        ended = [process for process in self.members if not process.is_alive()]
        return [(process, _failure(process, self.members.pop(process))) for process in ended]

    def stop(self) -> None:
        """Asks all processes to save and end."""
        for process in list(self.members):
            process.terminate()

    @contextmanager
    def follow_signals(self) -> Iterator[None]:
        """The signals of this process go to the others too: they are no part of its process group."""
        handlers = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        is_main = threading.current_thread() is threading.main_thread()

        def handler(number: int, frame: Any) -> None:
            self.stop()
            before = handlers[number]
            if callable(before):
                before(number, frame)

        for number in handlers if is_main else ():
            signal.signal(number, handler)
        try:
            yield
        finally:
            self.stop()
            for number, before in handlers.items() if is_main else ():
                signal.signal(number, before)


def _failure(process: Any, pipe: Connection) -> Exception | None:
    process.join()
    with pipe:
        try:
            return pipe.recv()
        except EOFError:
            pass
    if process.exitcode > 0:
        return RunError(f'a process of the sweep ended with exit code {process.exitcode}; its error is shown above')
    return None


def _run_worker(
    plan: Plan, imports: list[str], level: int, pipe: Connection, parent_pid: int, is_main_thread: bool
) -> None:
    """The whole life of a process."""
    if hasattr(os, 'setpgrp'):
        os.setpgrp()  # Ctrl-C reaches the first process alone, which tells the others once
    parent = multiprocessing.parent_process()
    assert parent is not None
    die_with_parent(parent_pid, is_main_thread, lambda seconds: bool(connection.wait([parent.sentinel], seconds)))
    import torch

    torch.set_num_threads(1)
    logging.basicConfig(level=level, format='zoo: %(message)s', stream=sys.stderr)
    try:
        with catch_signals() as received:
            from zoo.config.source import import_module_or_file

            for name in imports:
                import_module_or_file(name)
            work(plan, Study(plan), received)
    except (UserError, RunError) as error:
        pipe.send(type(error)(*error.args) if type(error) in (UserError, RunError) else _plain(error))
        sys.exit(1)


def _plain(error: Exception) -> Exception:
    return UserError(str(error)) if isinstance(error, UserError) else RunError(str(error))


def _tell(plan: Plan, study: Study, number: int) -> None:
    rows = study.rows()
    row, n_done = rows[number], sum(row.state in COUNTED for row in rows)
    values = ' '.join(f'{key.rpartition(".")[2]}={text}' for key, text in row.values.items())
    found = plan.score.words(row.value) if row.value is not None else row.reason
    logger.info('%d of %d: trial %d %s (%s); %s', n_done, plan.n_trial, number, row.state, found, values)


def _refuse_failures(study: Study) -> None:
    done = [row for row in study.rows() if row.state in COUNTED]
    if len(done) >= MAX_FAILED and all(row.state in ('failed', 'refused') for row in done):
        raise RunError(
            f'the first {len(done)} trials all failed, the last one so: {done[-1].reason}; mend that, and begin again with '
            'another --name or --storage'
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Of the runs only warnings are logged, and not how to continue one of them: the sweep does that."""
    level = logging.getLogger('zoo').getEffectiveLevel()
    wanted = {'zoo': max(level, logging.WARNING), 'zoo.sweep': level}
    wanted |= dict.fromkeys(('zoo.pipeline', 'zoo.run.interrupt'), max(level, logging.ERROR))
    before = {name: logging.getLogger(name).level for name in wanted}
    for name, new in wanted.items():
        logging.getLogger(name).setLevel(new)
    try:
        yield
    finally:
        for name, old in before.items():
            logging.getLogger(name).setLevel(old)
