"""Several runs of one command, a grid of seeds and values, in one or several processes; a failure ends no other run."""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import os
import re
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from zoo.config.section import ConfigError
from zoo.config.source import parse_value, split_override
from zoo.core.errors import UserError
from zoo.core.processes import Interrupted, catch_signals, end_words, signal_name
from zoo.core.streams import LogFormat
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.consent import Trust
from zoo.run.config import resolve_config
from zoo.run.folder import refuse_other_configs
from zoo.run.observers.base import RunView
from zoo.tools.results.read import from_here, read_run
from zoo.tools.results.table import as_data, rows_of, table
from zoo.tools.sweep.progress import Work, share_of, shown_progress
from zoo.tools.sweep.spaces import parts_of_text
from zoo.tools.sweep.team import Ended, Team, Tell, say_if_too_many, set_log_format

logger = logging.getLogger(__name__)
State = Literal['done', 'failed', 'stopped', 'waiting']
MAX_RUN = 1_000
MAX_NAME = 100  # most characters in the name of a folder
QUIET = 'logger.console=off'  # otherwise lines of several runs would mix
_RANGE = re.compile(r'(-?\d+)\.\.(-?\d+)')
_NEARLY_RANGE = re.compile(r'(\d+)(?:\.{3,}|-|:)(\d+)')  # other notations for a range of seeds
TEXT_KEYS = ('exp_name', 'logger.root')
"""Keys whose value is one text, even with commas."""


class Member(NamedTuple):
    """One run of a grid.

    values: for each key with several values, the value in this run; name: of its folder, 'seed0_batch_size=64'.
    """

    values: dict[str, str]
    name: str

    @property
    def overrides(self) -> list[str]:
        """The values as overrides."""
        return [f'{key}={text}' for key, text in self.values.items()]


def grid_of(texts: Sequence[str], seeds: int | None = None, first_seed: int = 0) -> tuple[list[Member], list[str]]:
    """Returns a member for each combination of the values of keys, with seeds varying fastest; and the other overrides.

    Args: texts: overrides; for each key the last one counts; '1..5' and 'a,b' are several values, except commas inside
      brackets or quotes; seeds: number of seeds, from first_seed on.
    Returns: one member without values if no key has several values. Raises: ConfigError, also if a key has several values
      twice, because they may be meant together; UserError.
    """
    several: dict[str, list[str]] = {}
    fixed: list[str] = []
    for text in texts:
        key, raw = split_override(text)
        if key in TEXT_KEYS:
            values = [raw]
        else:
            values = _values(key, raw)
        if len(values) == 1:
            several.pop(key, None)
            fixed.append(f'{key}={values[0]}')
        elif key in several:
            raise ConfigError(f'{key} has several values twice; give them once.')
        else:
            fixed = [other for other in fixed if split_override(other)[0] != key]
            several[key] = values
    if seeds is not None:
        _check_seeds(seeds, several)
        fixed = [text for text in fixed if split_override(text)[0] != 'seed']
        several['seed'] = [str(first_seed + i) for i in range(seeds)]
    n_run = math.prod(map(len, several.values()))
    if n_run > MAX_RUN:
        raise UserError(
            f'these values make {n_run:,} runs but at most {MAX_RUN:,} are trained by one command; give fewer'
        )
    keys = sorted(several, key=lambda key: key == 'seed')
    combinations = itertools.product(*(several[key] for key in keys))
    members = [_member(dict(zip(keys, values, strict=True))) for values in combinations]
    return _with_unique_names(members), fixed


def _check_seeds(seeds: int, several: dict[str, list[str]]) -> None:
    if 'seed' in several:
        raise UserError(f'--seeds {seeds} and seed={",".join(several["seed"])} both name seeds; give one of them')
    if seeds < 1:
        raise UserError(f'--seeds is {seeds} but must be 1 or more; e.g. --seeds 5')


def _with_unique_names(members: list[Member]) -> list[Member]:
    """Gives each member whose name another one has, too, a unique one."""
    n_use = Counter(member.name.casefold() for member in members)  # a file system may ignore case
    renamed = []
    for member in members:
        if n_use[member.name.casefold()] > 1:
            member = _with_unique_name(member)
        renamed.append(member)
    return renamed


def _with_unique_name(member: Member) -> Member:
    """Gives a member a unique name that is short enough for a file system."""
    digest = hashlib.sha256(repr(sorted(member.values.items())).encode()).hexdigest()[:8]
    return member._replace(name=f'{member.name[:MAX_NAME]}-{digest}')


def _values(key: str, raw: str) -> list[str]:
    """Returns the values in a text. Raises: ConfigError for a list or range that is empty or has a value twice."""
    numbers = _RANGE.fullmatch(raw)
    if numbers:
        return _values_of_range(key, raw, low=int(numbers[1]), high=int(numbers[2]))
    seeds = _NEARLY_RANGE.fullmatch(raw)
    if key == 'seed' and seeds:
        raise ConfigError(f'{key}={raw} is no range; write {key}={seeds[1]}..{seeds[2]}.')
    values = [part.strip() for part in parts_of_text(raw)]
    if len(values) > 1 and not all(values):
        there = ','.join(value for value in values if value)
        raise ConfigError(f'{key}={raw} has an empty value; there are no spaces around commas: {key}={there}.')
    if len(values) > 1:
        _refuse_repeated(key, raw, values)
    return values


def _values_of_range(key: str, raw: str, low: int, high: int) -> list[str]:
    if high < low:
        raise ConfigError(f'{key}={raw} counts down, which has no values; write {key}={high}..{low}.')
    if high - low >= MAX_RUN:
        raise ConfigError(
            f'{key}={raw} has {high - low + 1:,} values; at most {MAX_RUN:,} runs are trained by one command.'
        )
    return [str(i) for i in range(low, high + 1)]


def _refuse_repeated(key: str, raw: str, values: list[str]) -> None:
    """Raises: ConfigError if two values mean the same, such as 1e-3 and 0.001."""
    first_of: dict[str, str] = {}  # by meaning, the first text that has it
    equal_texts = []
    for value in values:
        first = first_of.setdefault(_meaning(value), value)
        if value != first:
            equal_texts.append(f'{first} and {value} are equal')
    if len(first_of) == len(values):
        return
    ways = ''
    if equal_texts:
        ways = f' ({", ".join(equal_texts)})'
    raise ConfigError(
        f'{key}={raw} has a value twice{ways}; write {key}={",".join(first_of.values())}, '
        f"or for a list '{key}=[{raw}]'."
    )


def _meaning(text: str) -> str:
    """Returns a text that is the same for all ways to write a value."""
    value = parse_value(text)
    if value == text:
        with suppress(ValueError):  # YAML reads 00 as a text, a numeric key does not
            value = float(text)
    return repr(_plain_number(value))


def _plain_number(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain_number(part) for part in value]
    return value


def _member(values: dict[str, str]) -> Member:
    parts = [f'{key.rpartition(".")[2]}={text}' for key, text in values.items() if key != 'seed']
    if 'seed' in values:
        parts.insert(0, f'seed{values["seed"]}')
    name = '_'.join(parts).strip('_')
    member = Member(values, re.sub(r'[^\w.=+-]+', '-', name))
    if len(member.name) > MAX_NAME:
        return _with_unique_name(member)
    return member


class RunOutcome(NamedTuple):
    """The outcome of one run. reason: why it failed or ended early; run_dir: its folder, None if it did not begin."""

    member: Member
    state: State
    run_dir: Path | None = None
    reason: str = ''


class Task(NamedTuple):
    """A run in one process. options: of `serial_pipeline`; command: repeats the run, () if unknown."""

    options: dict[str, Any]
    name: str
    command: tuple[str, ...]


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
    on_end: Callable[[RunOutcome, int], None] | None = None,
) -> list[RunOutcome]:
    """Trains the runs of a grid, `jobs` at a time in as many processes, each with one torch thread.

    A process trains one run after the other; a run that failed ends its process, and no other run.

    Args:
      source: a config for `serial_pipeline`; members: from `grid_of`; overrides: of all runs.
      run_dir: folder with a folder for each run, by its name; the same call continues runs that have not ended. None: each
        run has a new folder below logger.root.
      command: words that train one run: 'zoo', 'train', config and overrides; result.json has them with the run's own
        overrides.
      on_end: called with each outcome and the number of runs that have ended.
    Returns: outcomes in the order of members. Raises: ConfigError or UserError before anything starts, also if a folder of
      run_dir has a run of another config; Interrupted after a signal, once all runs have saved.
    """
    _check(source, members, overrides, jobs)
    folders: list[Path | None] = [None] * len(members)
    if run_dir is not None:
        folders = [Path(run_dir) / (member.name or 'run') for member in members]
    refuse_other_configs(source, [[*overrides, *member.overrides] for member in members], folders)
    outcomes = [RunOutcome(member, 'waiting') for member in members]
    n_at_a_time = min(jobs, len(members))
    logger.info('%d runs, %d at a time', len(members), n_at_a_time)
    say_if_too_many(n_at_a_time)
    team = Team(_train_one, imports)
    waiting = list(range(len(members)))
    with catch_signals() as received, team.follow_signals(), ExitStack() as undo:
        tasks = []
        for member, folder in zip(members, folders, strict=True):
            options = dict(config=source, overrides=(*overrides, *member.overrides, QUIET), trust=trust, run_dir=folder)
            tasks.append(Task(options, member.name, _command_of(member, command, folder)))

        def start() -> None:
            while waiting and not received and len(team.members) < jobs:
                i = waiting.pop(0)
                team.start((i, tasks[i]))

        start()  # before there is the thread that shows the progress, see `Team`
        undo.enter_context(shown_progress(partial(_work_of, team, outcomes), overrides))
        while team.members:
            for ended in team.ended():
                i = ended.task[0]
                outcomes[i] = _outcome(members[i], ended, received)
                if on_end is not None:
                    on_end(outcomes[i], _n_ended(outcomes))
            start()
    if received:
        n_done = sum(outcome.state == 'done' for outcome in outcomes)
        if run_dir is not None:
            way = 'the same command continues the others'
        else:
            way = 'zoo runs shows the others, zoo train --resume RUN continues one; with --run-dir DIR the same command would'
        logger.warning('stopped with %d of %d runs done; %s', n_done, len(outcomes), way)
        raise Interrupted(128 + received[0])
    return outcomes


def _command_of(member: Member, command: Sequence[str], folder: Path | None) -> tuple[str, ...]:
    """Returns the words that train one member alone; () if the words for all are unknown."""
    if not command:
        return ()
    words = [*command, *member.overrides]
    if folder is not None:
        words += ['--run-dir', str(folder)]
    return tuple(words)


def _work_of(team: Team, outcomes: Sequence[RunOutcome]) -> Work:
    """Returns the work at this time; called in the thread that shows it."""
    shares = {ended.task[1].name: _share_of(ended.told) for ended in team.so_far()}
    return Work(len(outcomes), _n_ended(outcomes), shares)


def _n_ended(outcomes: Sequence[RunOutcome]) -> int:
    return sum(outcome.state != 'waiting' for outcome in outcomes)


def _check(source: Any, members: Sequence[Member], overrides: Sequence[str], jobs: int) -> None:
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
    """Yields sentences on writing a list, for keys that need a list and were given several values."""
    for key in members[0].values:
        texts = list(dict.fromkeys(member.values[key] for member in members))
        if key != 'seed' and any(problem.startswith(f'{key} ') and 'a list' in problem for problem in problems):
            yield (
                f'{key}={",".join(texts)} is {len(texts)} values, for a run each; '
                f'one list of them is {key}=[{",".join(texts)}].'
            )


def _train_one(work: tuple[int, Task], received: list[int], tell: Tell) -> tuple[str, str]:
    """Trains one run, and tells the parent its folder. Returns: the folder, and the reason if it ended early."""
    task = work[1]
    if received:
        raise Interrupted(128 + received[0])
    prefix = 'zoo:'
    if task.name:
        prefix = f'zoo: {task.name}:'
    set_log_format(LogFormat(prefix))
    zoo = logging.getLogger('zoo')
    zoo.setLevel(max(zoo.getEffectiveLevel(), logging.WARNING))
    if task.command:
        sys.argv = list(task.command)  # replaces the words of the parent while this run lasts

    def on_start(job: RunView) -> None:
        tell(str(job.run_dir))

    result = serial_pipeline(**task.options, callbacks=[on_start])
    return str(result.run_dir), result.stop_reason


def _share_of(run_dir: str) -> float:
    """Returns the share of a run in work that is done. run_dir: its folder; '' before it begins."""
    if run_dir:
        with suppress(OSError):
            return share_of(Path(run_dir))
    return 0.0


def _outcome(member: Member, ended: Ended, received: Sequence[int]) -> RunOutcome:
    if ended.value is not None:
        run_dir, reason = ended.value
        return RunOutcome(member, 'done', Path(run_dir), reason)
    folder = None
    if ended.told:
        folder = Path(ended.told)
    if ended.error is not None:
        return RunOutcome(member, 'failed', folder, str(ended.error))
    if ended.exitcode > 128:
        signal_number = ended.exitcode - 128
        if received:
            signal_number = received[0]
        return RunOutcome(member, 'stopped', folder, f'by {signal_name(signal_number)}')
    if received and ended.exitcode == -signal.SIGTERM:  # from `Team.stop`, before the process was ready
        return RunOutcome(member, 'stopped', folder, f'by {signal_name(received[0])} before it began')
    return RunOutcome(member, 'failed', folder, f'its process {end_words(ended.exitcode)}')


def outcomes_shown(outcomes: Sequence[RunOutcome]) -> tuple[dict[str, Any], str]:
    """Returns outcomes as data, for --json, and as text: a table of the runs that are done, and lines about the others."""
    folders = [outcome.run_dir for outcome in outcomes if outcome.state == 'done' and outcome.run_dir is not None]
    rows = rows_of([read_run(folder) for folder in folders])
    data: dict[str, Any] = {'runs': [as_data(row) for row in rows], 'failed': []}
    lines = []
    if rows:
        lines.append(table(rows))
    for outcome in outcomes:
        if outcome.state == 'done':
            continue
        folder = outcome.run_dir and str(outcome.run_dir)
        data['failed'].append({'values': outcome.member.values, 'reason': outcome.reason, 'run_dir': folder})
        line = f'{outcome.state}: {outcome.member.name}: {outcome.reason}'
        if outcome.run_dir is not None:
            line += f'; run folder: {from_here(outcome.run_dir)}'
        lines.append(line)
    if folders:
        lines.append(f'draw them: zoo plot {_common(folders)} -o curve.svg')
    return data, '\n'.join(lines)


def outcome_words(outcome: RunOutcome) -> str:
    """Returns an outcome as one line, with the returns of the run."""
    reason = ''
    if outcome.reason:
        reason = f': {outcome.reason}'
    if outcome.run_dir is None:
        return f'{outcome.member.name} {outcome.state}{reason}'
    run = read_run(outcome.run_dir)
    last, best = run.last_and_best
    returns = 'no return'
    if last is not None:
        returns = f'return: last {last:.4g}, best {best:.4g}'
    return f'{outcome.member.name} {outcome.state}, {run.env_step:,} env steps, {returns}{reason}'


def _common(folders: Sequence[Path]) -> str:
    """Returns the folder that holds all runs if it holds no others, else the folders of the runs."""
    parent = folders[0].parent
    is_parent_of_all = all(folder.parent == parent for folder in folders)
    if is_parent_of_all and {path.parent for path in parent.glob('*/config.yaml')} == set(folders):
        folders = [parent]
    return shlex.join(str(from_here(folder)) for folder in folders)
