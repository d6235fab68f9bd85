"""Several runs of one command: each in a process of its own, some at a time; one that fails ends no other."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.core.processes import end_words
from zoo.pipeline import serial_pipeline
from zoo.run.begun import refuse_other_configs
from zoo.run.config import resolve_config
from zoo.run.interrupt import Interrupted, catch_signals
from zoo.run.trust import Trust
from zoo.sweep.grid import Member
from zoo.sweep.team import Ended, Team, say_if_too_many

State = Literal['done', 'failed', 'stopped', 'waiting']
QUIET = 'logger.console=off'  # lines of several runs would mix

logger = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """What came of one run. reason: why it failed, or ended early; run_dir: its folder, None if it did not begin."""

    member: Member
    state: State
    run_dir: Path | None = None
    reason: str = ''


class Task(NamedTuple):
    """What the process of a run is given. command: that repeats it, () if it is not known; note: a file for its folder."""

    source: Any
    overrides: tuple[str, ...]
    trust: Trust
    run_dir: Path | None
    name: str
    command: tuple[str, ...]
    note: Path


class _NoteFolder:
    """A callback that writes the folder of a run into a file, for the process that started this one."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def on_start(self, job: Any) -> None:
        with suppress(OSError):  # it only serves a message
            self._file.write_text(str(job.run_dir), encoding='utf-8')


def train_many(
    source: Any,
    members: Sequence[Member],
    overrides: Sequence[str] = (),
    *,
    jobs: int = 1,
    run_dir: str | os.PathLike[str] | None = None,
    trust: Trust = (),
    imports: Sequence[str] = (),
    command: Sequence[str] = (),
    on_end: Callable[[Outcome, int], None] | None = None,
) -> list[Outcome]:
    """Trains the runs of a grid, `jobs` at a time, each with one torch thread.

    Args:
      source: what `serial_pipeline` takes as a config; members: of `grid_of`; overrides: of all runs.
      run_dir: holds the folder of each run, by its name; the same call then continues what has not ended. None: each run has
        a new folder below logger.root.
      command: words that train one run, 'zoo', 'train', config and overrides; with those of the run it is kept in its
        result.json.
      on_end: called with each outcome and how many runs have ended.
    Returns: outcomes in the order of members. Raises: ConfigError or UserError before anything starts, also if a folder of
      run_dir has a run of another config; Interrupted after a signal, once all runs have saved.
    """
    _check(source, members, overrides, jobs)
    folders = [None if run_dir is None else Path(run_dir) / (member.name or 'run') for member in members]
    refuse_other_configs(source, [[*overrides, *member.overrides] for member in members], folders)
    outcomes = [Outcome(member, 'waiting') for member in members]
    logger.info('%d runs, %d at a time', len(members), min(jobs, len(members)))
    say_if_too_many(min(jobs, len(members)))
    team, waiting = Team(_train_one, imports), list(range(len(members)))
    with tempfile.TemporaryDirectory() as notes, catch_signals() as received, team.follow_signals():
        tasks = [
            _task(source, member, overrides, trust, folder, command, Path(notes) / str(i))
            for i, (member, folder) in enumerate(zip(members, folders, strict=True))
        ]
        while team.members or (waiting and not received):
            while waiting and not received and len(team.members) < jobs:
                team.start((i := waiting.pop(0), tasks[i]))
            for ended in team.ended() if team.members else ():
                i = ended.task[0]
                outcomes[i] = _outcome(members[i], tasks[i], ended, received)
                if on_end is not None:
                    on_end(outcomes[i], sum(outcome.state != 'waiting' for outcome in outcomes))
    if received:
        _tell_how_to_continue(outcomes, run_dir)
        raise Interrupted(128 + received[0])
    return outcomes


def _check(source: Any, members: Sequence[Member], overrides: Sequence[str], jobs: Any) -> None:
    if type(jobs) is not int or jobs < 1:
        raise UserError(f'jobs is {jobs!r} but must be an integer >= 1, the runs that train at a time; e.g. 2')
    if int(os.environ.get('WORLD_SIZE') or 1) > 1:
        raise UserError(
            'several seeds or values are runs of their own, and torchrun started this one; leave torchrun out'
        )
    problems: dict[str, None] = {}
    for member in members:
        try:
            resolve_config(source, [*overrides, *member.overrides])
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise ConfigError([*problems, *_one_value(members, list(problems))])


def _one_value(members: Sequence[Member], problems: Sequence[str]) -> Iterator[str]:
    """How to write a list, for keys that must be one and have several values."""
    for key in members[0].values:
        texts = list(dict.fromkeys(member.values[key] for member in members))
        if key != 'seed' and any(problem.startswith(f'{key} ') and 'a list' in problem for problem in problems):
            yield f'{key}={",".join(texts)} is {len(texts)} values, for a run each; one list of them is {key}=[{",".join(texts)}].'


def _task(
    source: Any,
    member: Member,
    overrides: Sequence[str],
    trust: Trust,
    folder: Path | None,
    command: Sequence[str],
    note: Path,
) -> Task:
    place = () if folder is None else ('--run-dir', str(folder))
    words = (*command, *member.overrides, *place) if command else ()
    return Task(source, (*overrides, *member.overrides, QUIET), trust, folder, member.name, words, note)


def _train_one(work: tuple[int, Task], received: list[int]) -> tuple[str, str]:
    """Trains one run; returns its folder, and why it ended early."""
    task = work[1]
    if received:
        raise Interrupted(128 + received[0])
    for handler in logging.getLogger().handlers:
        handler.setFormatter(logging.Formatter(f'zoo: {task.name}: %(message)s' if task.name else 'zoo: %(message)s'))
    zoo = logging.getLogger('zoo')
    zoo.setLevel(max(zoo.getEffectiveLevel(), logging.WARNING))
    logging.getLogger('zoo.run.interrupt').setLevel(logging.ERROR)  # the first process says it for all
    if task.command:
        sys.argv = list(task.command)  # this process has that run alone; it was given the words of its parent
    listeners = [_NoteFolder(task.note)]
    result = serial_pipeline(
        task.source, overrides=task.overrides, trust=task.trust, run_dir=task.run_dir, callbacks=listeners
    )
    return str(result.run_dir), result.stop_reason


def _outcome(member: Member, task: Task, ended: Ended, received: Sequence[int]) -> Outcome:
    if ended.value is not None:
        run_dir, reason = ended.value
        return Outcome(member, 'done', Path(run_dir), reason)
    folder = Path(task.note.read_text(encoding='utf-8')) if task.note.exists() else None
    if ended.error is not None:
        return Outcome(member, 'failed', folder, str(ended.error))
    if ended.exitcode > 128:
        return Outcome(member, 'stopped', folder, f'by signal {received[0] if received else ended.exitcode - 128}')
    if received and ended.exitcode == -signal.SIGTERM:  # of `Team.stop`, while the process still started
        return Outcome(member, 'stopped', folder, f'by signal {received[0]} before it began')
    return Outcome(member, 'failed', folder, f'its process {end_words(ended.exitcode)}')


def _tell_how_to_continue(outcomes: Sequence[Outcome], run_dir: Any) -> None:
    n_done = sum(outcome.state == 'done' for outcome in outcomes)
    way = (
        'the same command continues the others'
        if run_dir is not None
        else 'zoo runs shows the others, zoo train --resume RUN continues one; with --run-dir DIR the same command would'
    )
    logger.warning('stopped with %d of %d runs done; %s', n_done, len(outcomes), way)
