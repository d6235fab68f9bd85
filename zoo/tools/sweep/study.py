"""Trials of a sweep in an Optuna journal, a file that processes and machines share; detection of processes that have ended."""

from __future__ import annotations

import importlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, FiniteFloat, create_model

from zoo.config.section import value_at
from zoo.config.user_code import is_in_file, split_name
from zoo.core.errors import RunError, UserError, missing_extra
from zoo.core.files import open_without_link, refuse_failure
from zoo.policy.config import migrate_old_keys
from zoo.tools.sweep.plan import Plan

if TYPE_CHECKING:
    import optuna

logger = logging.getLogger(__name__)
BEAT_S = 15.0  # seconds between two signs of life
LOST_S = 300.0  # seconds without a sign of life after which a process of another host counts as lost
STUDY = 'zoo'
MAX_LINE = 1_000_000  # most bytes in a line of the journal
LOST = 'its process ended in the middle'
N_ATTEMPT = 3  # most times that the same values are tried if their process ends in the middle
State = Literal['complete', 'pruned', 'refused', 'failed', 'lost', 'stopped', 'running']
COUNTED: tuple[State, ...] = ('complete', 'pruned', 'refused', 'failed')
"""States of a trial that is done. A lost one (its process ended) or a stopped one (by the user) is tried again."""


def this_process() -> dict[str, Any]:
    """Returns host, process id and start time of this process, which together are unique."""
    return {'host': socket.gethostname(), 'pid': os.getpid(), 'start': _start_of(os.getpid())}


@contextmanager
def beating(folder: Path) -> Iterator[None]:
    """Gives signs of life while the context lasts: a thread updates the time of a file of this process."""
    file = _file(folder, this_process())
    end = threading.Event()
    with refuse_failure(f'the folder {folder} cannot be written', 'make that possible; the same command continues'):
        folder.mkdir(parents=True, exist_ok=True)
        file.touch()

    def beat() -> None:
        while not end.wait(BEAT_S):
            with suppress(OSError):  # the disk may be unavailable for a while
                file.touch()

    thread = threading.Thread(target=beat, name='signs of life', daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        with suppress(OSError):
            file.unlink()
            folder.rmdir()  # if it is empty


def is_lost(owner: Mapping[str, Any], folder: Path) -> bool:
    """Whether a process has ended. This host's system knows it; on another host its file is gone or older than LOST_S.

    The clock of the disk with the file, which all hosts share, measures the age.
    """
    if owner['host'] == socket.gethostname():
        return _start_of(owner['pid']) != owner['start']
    now = folder / f'now-{socket.gethostname()}-{os.getpid()}'
    try:
        folder.mkdir(parents=True, exist_ok=True)
        now.touch()
        return now.stat().st_mtime - _file(folder, owner).stat().st_mtime > LOST_S
    except FileNotFoundError:
        return True
    finally:
        with suppress(OSError):
            now.unlink(missing_ok=True)


def _file(folder: Path, owner: Mapping[str, Any]) -> Path:
    return folder / f'{owner["host"]}-{owner["pid"]}-{owner["start"].translate(str.maketrans("/ ", "__", ":"))}'


def _start_of(pid: int) -> str:
    """Returns the start time of a process of this host, as a text to compare; '' if it has ended, or is a zombie."""
    stat = Path(f'/proc/{pid}/stat')
    if stat.parent.parent.joinpath('self').exists():  # Linux
        try:
            state, *rest = stat.read_text().rpartition(')')[2].split()
            boot = Path('/proc/sys/kernel/random/boot_id').read_text().strip()
        except OSError:
            return ''
        if state in 'ZX':
            return ''
        return f'{boot}/{rest[18]}'  # field 22 of proc(5), in ticks since boot
    shown = subprocess.run(['ps', '-o', 'lstart=', '-p', str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()


class TrialOutcome(NamedTuple):
    """The outcome of a trial."""

    state: State
    value: float | None = None
    runs: list[dict[str, Any]] = []  # noqa: RUF012
    reason: str = ''


class TrialRow(NamedTuple):
    """One trial: the tried values and the outcome."""

    number: int
    state: State
    value: float | None
    values: dict[str, str]
    runs: list[dict[str, Any]]
    reason: str


_STRICT = ConfigDict(strict=True)
_TEXT = (str, ...)
_INT = (int, ...)
_FLOAT = (FiniteFloat, ...)
_Owner = create_model('_Owner', __config__=_STRICT, host=_TEXT, pid=_INT, start=_TEXT)
_MAYBE: Any = (FiniteFloat | None, None)  # numbers that runs of an older zoo do not have
_Run = create_model(
    '_Run',
    __config__=_STRICT,
    solved_at=(int | None, ...),
    best_return=_FLOAT,
    wall_s=_FLOAT,
    cpu_s=_MAYBE,
    memory_mb=_MAYBE,
)
_Own = create_model('_Own', __config__=_STRICT, state=(State, 'lost'), reason=(str, ''), runs=(list[_Run], []))
_Attributes = create_model('_Attributes', __base__=_Own, owner=(_Owner | None, None), attempt=(int, 1), again=(int, 0))
_Value = Annotated[list[float], Field(min_length=1, max_length=1)] | None  # infinite if a run is ended early
_Line = create_model(
    '_Line', __config__=_STRICT, op_code=(int, Field(ge=0, le=10)), user_attr=(_Attributes, None), values=(_Value, None)
)
"""A line of the journal: an operation of Optuna, with the attributes that this module writes."""


class SweepResult(NamedTuple):
    """A sweep so far. rows: trials, best first; best: the best complete trial; best_file: its config; n_left: trials to do."""

    plan: Plan
    rows: list[TrialRow]
    best: TrialRow | None
    best_file: Path | None
    n_left: int


class StorageError(RunError):
    """A sweep that cannot read or write its storage any more; what is in it stays."""


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turns an OSError of this context into a StorageError, also if a lock of Optuna hid it in an error of its own."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause: BaseException | None = error
        if not isinstance(error, OSError):
            cause = error.__context__
        if isinstance(error, StorageError) or not isinstance(cause, OSError):
            raise
        raise StorageError(
            f'the storage {path} cannot be read or written ({cause.strerror or cause}); once that is fixed, the same command '
            'continues the sweep'
        ) from error


class _Journal:
    """A journal file of Optuna whose failures are StorageErrors, whichever object of Optuna reads or writes it."""

    def __init__(self, backend: Any, path: Path) -> None:
        self._backend = backend
        self._path = path

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yields the operations from a number on."""
        with storage_errors(self._path):
            yield from self._backend.read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Adds operations at the end."""
        with storage_errors(self._path):
            self._backend.append_logs(logs)


class Study:
    """The trials of a plan. Raises: UserError if the storage cannot be written, or holds another sweep.

    All methods, and those of trials, raise a StorageError if the storage cannot be read or written any more.

    Attributes:
      beats: the folder where the processes of this storage give signs of life.
      moved: names of code in files that are gone since the sweep began -> the names that replace them in this config.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._optuna = load_optuna()
        self.moved: dict[str, str] = {}
        self.beats = plan.storage.with_name(f'{plan.storage.name}.workers')
        remedy = 'make that possible, or choose another file with --storage'
        with refuse_failure(f'the storage {plan.storage} cannot be written', remedy):
            plan.storage.parent.mkdir(parents=True, exist_ok=True)
            open(os.path.realpath(plan.storage), 'ab+', opener=open_without_link).close()
        with self._holding():
            self._check_journal()
            try:
                self._study = self._open()
                self._check_trials()
            except UserError:
                raise
            except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:  # unsuitable values
                raise UserError(
                    f'the storage {plan.storage} has lines that do not fit ({error!r:.60}); choose another with --storage'
                ) from error

    def rows(self) -> list[TrialRow]:
        """All trials in order of their numbers."""
        return [self._row(trial) for trial in self._study.get_trials(deepcopy=False)]

    def n_left(self) -> int:
        """Returns the number of trials that are not done."""
        return max(self._plan.n_trial - sum(row.state in COUNTED for row in self.rows()), 0)

    def next_trial(self) -> Any:
        """Returns a new optuna.Trial with its values, owned by this process; None if all trials are done or running.

        Only one process chooses at a time, so that no two try the same point and not more trials run than planned.
        """
        self.mark_lost()
        with self._holding():
            trials = self._study.get_trials(deepcopy=False)
            rows = [self._row(trial) for trial in trials]
            if sum(row.state in (*COUNTED, 'running') for row in rows) >= self._plan.n_trial:
                return None
            repeated, n_attempt = _to_try_again(trials, rows)
            if repeated is not None:
                fixed_values = repeated.params
            else:
                fixed_values = self._grid_point(rows)
            if fixed_values is None:
                return None
            self._study.sampler = self._sampler(fixed_values, len(trials))
            self._study.pruner = self._pruner()
            kinds = self._optuna.distributions
            trial = self._study.ask({key: space.distribution(kinds) for key, space in self._plan.spaces.items()})
            trial.set_user_attr('owner', this_process())
            if repeated is not None:
                trial.set_user_attr('again', repeated.number)
                trial.set_user_attr('attempt', n_attempt)
            return trial

    def mark_lost(self) -> None:
        """Ends the trials whose process has ended; they are tried again."""
        with self._holding():
            for trial in self._study.get_trials(deepcopy=False):
                owner = trial.user_attrs.get('owner')
                if trial.state.name == 'RUNNING' and (owner is None or is_lost(owner, self.beats)):
                    logger.warning('trial %d: its process ended in the middle', trial.number)
                    self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL, skip_if_finished=True)

    def end(self, trial: optuna.trial.FrozenTrial, outcome: TrialOutcome) -> None:
        """Writes the outcome of a trial of this process."""
        states = self._optuna.trial.TrialState
        state = {'complete': states.COMPLETE, 'stopped': states.FAIL}.get(outcome.state, states.PRUNED)
        try:
            for key in ('state', 'runs', 'reason'):
                trial.set_user_attr(key, getattr(outcome, key))
            self._study.tell(trial, outcome.value, state=state)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            logger.warning('trial %d: another process took it for lost meanwhile; it is tried again', trial.number)

    def values_of(self, params: Mapping[str, Any]) -> dict[str, str]:
        """Returns the values of a trial by key, as texts for overrides."""
        return {key: space.text(params[key]) for key, space in self._plan.spaces.items() if key in params}

    def _open(self) -> Any:
        backend = self._optuna.storages.journal.JournalFileBackend(str(self._plan.storage), lock_obj=self._lock(''))
        storage = self._optuna.storages.JournalStorage(_Journal(backend, self._plan.storage))
        if any(study.study_name != STUDY for study in storage.get_all_studies()):
            raise UserError(
                f'the storage {self._plan.storage} holds a study of another program; choose another file with --storage'
            )
        direction = 'minimize' if self._plan.score.minimises else 'maximize'
        study = self._optuna.create_study(storage=storage, study_name=STUDY, direction=direction, load_if_exists=True)
        stored = study.user_attrs.get('sweep')
        wanted = json.loads(json.dumps(self._plan.identity))  # as the journal returns it
        if stored is None:
            study.set_user_attr('sweep', wanted)
            return study
        migrate_old_keys(value_at(stored, 'config.policy'))
        self.moved = dict(_moved_names(stored, wanted))
        differences = list(_differences(_renamed(stored, self.moved), wanted, self._plan.defaulted))
        if differences:
            raise UserError(
                f'the storage {self._plan.storage} holds another sweep: {"; ".join(differences[:3])}; to continue '
                'that one, use its words, and give what has changed in the config since then as key=value; or choose another '
                '--name or --storage'
            )
        return study

    def _check_trials(self) -> None:
        """Raises an error if the values of a trial are not those of its space."""
        distributions = self._optuna.distributions
        for trial in self._study.get_trials(deepcopy=False):
            for key in self._row(trial).values:
                space = self._plan.spaces[key].distribution(distributions)
                distributions.check_distribution_compatibility(trial.distributions[key], space)

    def _check_journal(self) -> None:
        """Removes a last line that was cut off, e.g. by a full disk. Raises: UserError if another is not of a sweep."""
        with self._holding(''), open(self._plan.storage, 'rb+') as file:
            for n, line in enumerate(iter(partial(file.readline, MAX_LINE), b''), 1):
                is_cut_off = not line.endswith(b'\n') and len(line) < MAX_LINE
                if n == 1 or not is_cut_off:
                    self._check_line(n, line)
                if is_cut_off:  # it is the last
                    file.truncate(file.tell() - len(line))

    def _check_line(self, n: int, line: bytes) -> None:
        try:
            _Line.model_validate_json(line)
        except ValueError as error:
            problem = 'is no journal of a sweep;'
            if n > 1:
                problem = f'has a line {n} that no sweep writes; remove it, or'
            raise UserError(f'the storage {self._plan.storage} {problem} choose another file with --storage') from error

    @contextmanager
    def _holding(self, suffix: str = '.ask') -> Iterator[None]:
        lock = self._lock(suffix)
        with storage_errors(self._plan.storage):
            lock.acquire()
            try:
                yield
            finally:
                lock.release()

    def _lock(self, suffix: str) -> Any:
        journal = self._optuna.storages.journal
        path = f'{self._plan.storage}{suffix}'
        # symbolic links are safe on older network file systems too; Windows lets few users make them
        if sys.platform == 'win32' or suffix:
            return journal.JournalFileOpenLock(path)
        return journal.JournalFileSymlinkLock(path)

    def _sampler(self, fixed_values: Mapping[str, Any], n_trial: int) -> Any:
        """Returns a sampler seeded by the seed and the number of trials, so that processes draw different values."""
        samplers = self._optuna.samplers
        seed = (self._plan.seed * 100_003 + n_trial) % 2**32
        sampler = samplers.RandomSampler(seed=seed)
        if self._plan.sampler == 'tpe':
            n_first = max(4, min(10, self._plan.n_trial // 3))
            sampler = samplers.TPESampler(n_startup_trials=n_first, constant_liar=True, seed=seed)
        if fixed_values:
            return samplers.PartialFixedSampler(dict(fixed_values), sampler)
        return sampler

    def _pruner(self) -> Any:
        pruners = self._optuna.pruners
        n_evaluation = self._plan.score.max_step // self._plan.eval_freq
        if self._plan.pruner == 'median':
            return pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=max(1, n_evaluation // 5))
        if self._plan.pruner == 'halving':
            return pruners.SuccessiveHalvingPruner(min_resource=max(1, n_evaluation // 9), reduction_factor=3)
        return pruners.NopPruner()

    def _grid_point(self, rows: list[TrialRow]) -> dict[str, Any] | None:
        """Returns the first untried point of the grid as parameters; {} without a grid, None if all points were tried."""
        if self._plan.sampler != 'grid':
            return {}
        tried = [row.values for row in rows if row.state in (*COUNTED, 'running')]
        point = next((point for point in self._plan.grid() if point not in tried), None)
        if point is None:
            return None
        type_of_kind = {'int': int, 'choice': str, 'log': float, 'uniform': float}
        return {key: type_of_kind[self._plan.spaces[key].kind](text) for key, text in point.items()}

    def _row(self, trial: optuna.trial.FrozenTrial) -> TrialRow:
        attrs = trial.user_attrs
        state = attrs.get('state', 'lost')
        reason = attrs.get('reason', '')
        if trial.state.name == 'RUNNING':
            state = 'running'
        elif state == 'lost' or (state == 'complete' and trial.value is None):  # killed before the value was written
            n_attempt = attrs.get('attempt', 1)
            state = 'lost'
            reason = LOST
            if n_attempt >= N_ATTEMPT:
                state = 'failed'
                reason = f'{LOST}, {n_attempt} times'
        runs = attrs.get('runs', [])
        value = None
        if state == 'complete' and trial.value is not None:
            value = float(trial.value)
            if self._plan.score.metric == 'steps':
                value = self._in_evaluations(value, runs)
        values = self.values_of(trial.params)
        return TrialRow(number=trial.number, state=state, value=value, values=values, runs=runs, reason=reason)

    def _in_evaluations(self, value: float, runs: list[dict[str, Any]]) -> float:
        """Returns the value of metric steps counted in evaluations; an older zoo, which wrote no area, wrote true steps."""
        steps = [run['solved_at'] for run in runs]
        if not steps or None in steps or any('auc' in run for run in runs):
            return value
        freq = self._plan.eval_freq
        return sum(max(step // freq, 1) * freq for step in steps) / len(steps)


def load_optuna() -> Any:
    """Imports the package optuna and silences it. Raises: UserError if it is not installed."""
    try:
        optuna = importlib.import_module('optuna')
    except ModuleNotFoundError as error:
        if error.name != 'optuna':
            raise
        raise UserError(missing_extra('a sweep', 'sweep')) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings('ignore', category=optuna.exceptions.ExperimentalWarning)
    return optuna


def _to_try_again(trials: list[Any], rows: list[TrialRow]) -> tuple[Any, int]:
    """Returns the first lost or stopped trial that is not repeated yet, and the number of the new attempt; else None, 1."""
    followed = {trial.user_attrs.get('again') for trial in trials}
    for trial, row in zip(trials, rows, strict=True):
        if row.state in ('lost', 'stopped') and row.number not in followed and trial.params:
            return trial, trial.user_attrs.get('attempt', 1) + (row.state == 'lost')
    return None, 1


def _moved_names(stored: object, wanted: object) -> Iterator[tuple[str, str]]:
    """Yields names 'file.py:name' of two identities at the same place where the file of the stored one is gone."""
    if isinstance(stored, dict) and isinstance(wanted, dict):
        for key in stored.keys() & wanted.keys():
            yield from _moved_names(stored[key], wanted[key])
    elif isinstance(stored, list) and isinstance(wanted, list):
        for old, new in zip(stored, wanted, strict=False):
            yield from _moved_names(old, new)
    elif isinstance(stored, str) and isinstance(wanted, str) and is_in_file(stored) and is_in_file(wanted):
        file, name = split_name(stored)
        if name == split_name(wanted)[1] and not os.path.exists(file):
            yield stored, wanted


def _renamed(data: object, new_names: Mapping[str, str]) -> Any:
    """Returns data in which names are replaced."""
    if isinstance(data, dict):
        return {key: _renamed(value, new_names) for key, value in data.items()}
    if isinstance(data, list):
        return [_renamed(item, new_names) for item in data]
    if isinstance(data, str):
        return new_names.get(data, data)
    return data


def _differences(stored: Any, wanted: Any, defaulted: frozenset[str], path: str = '') -> Iterator[str]:
    """Yields sentences about the differences of two identities. Args: defaulted: see `Plan`."""
    if stored is None and isinstance(wanted, dict):  # a section that older sweeps did not have
        stored = {}
    if isinstance(stored, dict) and isinstance(wanted, dict):
        for key in {**stored, **wanted}:
            key_path = f'{path}.{key}'
            if path in ('', 'config', 'spaces'):
                key_path = key
            if key in stored or path == 'spaces' or key_path not in defaulted:
                yield from _differences(stored.get(key), wanted.get(key), defaulted, key_path)
    elif stored != wanted and not (stored is None and wanted == []):  # a key that older sweeps did not have
        yield f'it has {path}={_shown(stored)}, and this one {_shown(wanted)}'


def _shown(value: object) -> object:
    return 'nothing' if value is None else value
