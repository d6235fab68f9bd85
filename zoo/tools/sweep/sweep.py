"""Sweep: runs the trials, in this process or several, with a run for each seed, and writes the best config."""

from __future__ import annotations

import logging
import math
import os
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zoo.config.section import ConfigError, put_at, short_keys, value_at
from zoo.config.yaml_io import storable, yaml_text
from zoo.core.errors import RunError, UserError, env_failure, show_error
from zoo.core.files import refuse_failure, whole_file
from zoo.core.processes import Interrupted, catch_signals, end_words, peak_memory_mb, signal_name
from zoo.core.streams import log_levels
from zoo.pipeline import serial_pipeline
from zoo.run.config import explain_config, resolve_config, without_derived_values
from zoo.run.observers.callbacks import STOP_FOR
from zoo.tools.results.read import from_here
from zoo.tools.results.sweep_file import SweptTrial, SweptTrials, read_trials, write_trials
from zoo.tools.sweep.plan import (
    METRICS,
    RESULT_NAMES,
    Curve,
    Metric,
    Plan,
    Pruner,
    Sampler,
    Score,
    finer_freq,
    make_plan,
)
from zoo.tools.sweep.progress import Work, share_of, shown_progress
from zoo.tools.sweep.study import COUNTED, StorageError, Study, SweepResult, TrialOutcome, TrialRow, beating
from zoo.tools.sweep.team import Team, Tell, say_if_too_many
from zoo.worker.evaluator import Evaluation

logger = logging.getLogger(__name__)
MAX_FAILED = 3  # first trials that may all fail: after that, every trial would fail
N_FINER = 5  # evaluations, in place of one, that a hint recommends
N_SEED = 2  # seeds that a hint adds
N_EVALUATION = 10  # evaluations of a run that a hint recommends
MAX_RESTART = 20  # most processes that are started to replace others
MAX_REASON = 300  # most characters
PRUNED = f'{STOP_FOR}the sweep pruned it, since other trials were better at the same step'


def sweep(
    config: Any,
    texts: Sequence[str] = (),
    *,
    n: int | None = None,
    seeds: int = 1,
    jobs: int = 1,
    metric: Metric | None = None,
    sampler: Sampler = 'tpe',
    pruner: Pruner | None = 'median',
    storage: str | None = None,
    name: str | None = None,
    imports: Sequence[str] = (),
) -> SweepResult:
    """Trains a config with sampled values of some keys, and finds the best ones.

    The same call continues a sweep that ended in any way. Several processes, also on machines that share a disk, may make
    the same call at the same time: together they run n trials.

    Args:
      config: as for `serial_pipeline`.
      texts: 'key=value' overrides of all trials, and 'key=space' with a space of `zoo.tools.sweep.spaces`; without a space, those
        of DEFAULT_SPACES for the policy of the config.
      n: number of trials that are complete, pruned, refused or failed at the end; None: 20, or all points of a grid.
      seeds: runs of a trial, with consecutive seeds from the config's seed on.
      jobs: processes, each with one torch thread; 1: this process.
      metric: the number to compare, see METRICS; by default steps if policy.eval.stop_value is set, else best.
      sampler: tpe learns from earlier trials, random does not, grid tries all combinations.
      pruner: ends trials early: median if they are worse than the median of others at the same step; or successive halving.
      storage: the journal, a file; by default <logger.root>/<name>/journal.log.
      name: of the folder; by default <exp_name>_sweep.
      imports: modules or files that the processes import first.
    Returns: SweepResult. Raises: UserError, ConfigError before anything starts; Interrupted after a signal, with all saved.
    """
    if type(jobs) is not int or jobs < 1:
        raise UserError(f'jobs is {jobs!r} but must be an integer >= 1, the processes on this machine; e.g. 2')
    if int(os.environ.get('WORLD_SIZE') or 1) > 1:
        raise UserError('a sweep starts its own processes, and torchrun started this one; run it without torchrun')
    plan = make_plan(
        config, texts, n=n, seeds=seeds, metric=metric, sampler=sampler, pruner=pruner, storage=storage, name=name
    )
    study = Study(plan)
    for old, new in study.moved.items():
        logger.warning('the sweep began with %s, whose file is gone; it continues with %s', old, new)
    n_done = plan.n_trial - study.n_left()
    logger.info('sweep %s: %d of %d trials are done; storage: %s', plan.name, n_done, plan.n_trial, plan.storage)
    if n_done < plan.n_trial:
        doubt = doubts(plan)
        if doubt:
            logger.warning('%s', doubt)
    look = partial(_look, plan, jobs, frozenset(_run_folders(plan)))
    with catch_signals() as received, ExitStack() as undo:
        show = partial(undo.enter_context, shown_progress(look, plan.overrides))
        if jobs == 1:
            show()
            work(plan, study, received)
        elif study.n_left():
            say_if_too_many(min(jobs, study.n_left()))
            run_workers(plan, study, min(jobs, study.n_left()), received, imports, show)
    study.mark_lost()
    rows = ranked(study.rows(), plan.score.minimises)
    _write_trials(plan, rows)
    best = None
    best_file = None
    if rows and rows[0].state == 'complete':
        best = rows[0]
        best_file = _write_best(plan, best)
    result = SweepResult(plan, rows, best, best_file, study.n_left())
    if received:
        message = 'the sweep was stopped with %d of %d trials done; the same command continues it (storage: %s)'
        logger.warning(message, plan.n_trial - result.n_left, plan.n_trial, plan.storage)
        raise Interrupted(128 + received[0])
    return result


def _look(plan: Plan, jobs: int, before: frozenset[Path]) -> Work:
    """Returns the trials in work. Args: before: folders of runs that were there when this command began."""
    swept = read_trials(plan.folder)
    done: set[str] = set()
    if swept is not None:
        done = {trial.label for trial in swept.trials if trial.state in COUNTED}
    running: dict[str, float] = {}
    for folder in sorted(set(_run_folders(plan)) - before):
        label, _, seed = folder.parent.name.partition('_seed_')
        if label not in done:  # a later seed replaces an earlier one
            share = (int(seed) - plan.seed + share_of(folder)) / plan.n_seed
            running[f'trial {int(label.removeprefix("trial_"))}'] = share
    newest = list(running)[-jobs:]  # others are of processes that were killed
    return Work(plan.n_trial, len(done), {name: running[name] for name in newest})


def _run_folders(plan: Plan) -> list[Path]:
    return [file.parent for file in plan.folder.glob('trial_[0-9]*_seed_[0-9]*/*/config.yaml')]


def doubts(plan: Plan) -> str:
    """Returns a sentence on why the order of the trials may be luck, with the words that change it; '' for no reason."""
    cfg = plan.resolve({})
    rollout_step = cfg.policy.collect.n_step * cfg.env.collector_env_num
    is_evaluated_once = plan.score.max_step <= max(plan.eval_freq, rollout_step)
    if not is_evaluated_once:
        if plan.n_seed == 1:
            return 'each trial trains one seed, so their order may be luck; --seeds 3 compares the means of three'
        return ''
    once = 'each run of a trial is evaluated once'
    luck = 'their order may be luck'
    seeds = ''
    if plan.n_seed == 1:
        once = 'each trial is evaluated once, with one seed'
        seeds = ' --seeds 3'
        if plan.pruner is not None:
            luck = 'no trial can be pruned, and their order may be luck'
    if plan.score.max_step < 2 * rollout_step:  # evaluations are between rollouts, so that no eval_freq gives more
        longer = f'a run has one rollout, of {rollout_step:,} env steps'
        return f'{once}: {luck}; {longer}: set max_env_step={10 * rollout_step:_}{seeds}'
    finer = finer_freq(plan.score.max_step / N_EVALUATION)
    return f'{once}: {luck}; set policy.eval.eval_freq={finer:_}{seeds}'


def work(plan: Plan, study: Study, received: list[int]) -> None:
    """Runs trials in this process until none is left or a signal is received; adds a signal that ended a run to `received`.

    Raises: RunError if the first trials all fail.
    """
    level = logging.getLogger('zoo').getEffectiveLevel()  # of runs only warnings, not the hint to continue one
    wanted = {
        'zoo': max(level, logging.WARNING),
        'zoo.tools.sweep': level,
        **dict.fromkeys(('zoo.pipeline', 'zoo.core.processes'), max(level, logging.ERROR)),
    }
    with log_levels(wanted), beating(study.beats):
        while not received:
            trial = study.next_trial()
            if trial is None:
                break
            _run_and_end(plan, study, trial, received)


def _run_and_end(plan: Plan, study: Study, trial: Any, received: list[int]) -> None:
    """Runs a trial and writes its outcome, also if a signal or an error ends it."""
    try:
        outcome = run_trial(plan, trial, study.values_of(trial.params))
    except Interrupted as interrupted:
        assert isinstance(interrupted.code, int), 'it is 128 + the signal'
        study.end(trial, TrialOutcome('stopped', reason=f'by {signal_name(interrupted.code - 128)}'))
        received.append(interrupted.code - 128)
        return
    except StorageError:
        raise
    except BaseException as error:
        with suppress(StorageError):  # the error says more
            study.end(trial, TrialOutcome('stopped', reason=f'by {type(error).__name__}'))
        raise
    study.end(trial, outcome)
    _tell(plan, study, trial.number)


def run_workers(
    plan: Plan,
    study: Study,
    jobs: int,
    received: list[int],
    imports: Sequence[str],
    show: Callable[[], object] = lambda: None,
) -> None:
    """Runs trials in `jobs` processes; replaces a process that is killed.

    Args: show: called once all processes are started: it may start a thread, and they are made before that, see `Team`.
    Raises: UserError or RunError of a process.
    """
    team = Team(_run_worker, imports)
    n_restart = 0
    failure: Exception | None = None
    with team.follow_signals():
        for _ in range(jobs):
            team.start(plan)
        show()
        while team.members:
            for ended in team.ended():
                failure = failure or ended.error
                if failure is None and ended.exitcode > 0:
                    failure = RunError(
                        f'a process of the sweep ended with exit code {ended.exitcode}; its error is shown above'
                    )
                if failure is not None:
                    team.stop()
                elif ended.exitcode < 0 and not received and n_restart < MAX_RESTART and study.n_left():
                    logger.warning('a process of the sweep %s; another one takes its place', end_words(ended.exitcode))
                    n_restart += 1
                    team.start(plan)
    if failure is not None:
        raise failure


def _run_worker(plan: Plan, received: list[int], tell: Tell) -> None:
    work(plan, Study(plan), received)


def _tell(plan: Plan, study: Study, number: int) -> None:
    """Logs the outcome of a trial. Raises: RunError if the first trials all failed."""
    rows = study.rows()
    _write_trials(plan, ranked(rows, plan.score.minimises))
    done = [row for row in rows if row.state in COUNTED]
    row = rows[number]
    values = ' '.join(f'{key.rpartition(".")[2]}={text}' for key, text in row.values.items())
    result = row.reason
    if row.value is not None:
        result = plan.score.words(row.value)
    logger.info('%d of %d: trial %d %s (%s); %s', len(done), plan.n_trial, number, row.state, result, values)
    if len(done) >= MAX_FAILED and all(row.state in ('failed', 'refused') for row in done):
        raise RunError(
            f'the first {len(done)} trials all failed, the last one so: {done[-1].reason}; fix that, and begin again with '
            'another --name or --storage'
        )


def run_trial(plan: Plan, trial: Any, values: dict[str, str]) -> TrialOutcome:
    """Trains the runs of a trial, and reports each evaluation to the pruner.

    A refused config and a failed run are outcomes. Raises: Interrupted after a signal; StorageError; UserError for an error
    that every trial would have, such as a folder that cannot be written.
    """
    try:
        return _Runs(plan, trial, values).outcome()
    except ConfigError as error:
        return TrialOutcome('refused', reason=' '.join(error.problems)[:MAX_REASON])
    except StorageError:
        raise
    except Exception as error:
        if not isinstance(error, RuntimeError | MemoryError) and env_failure(error) is None:
            raise
        return TrialOutcome('failed', reason=show_error(error, MAX_REASON))


class _Runs:
    """The runs of a trial, one after the other."""

    def __init__(self, plan: Plan, trial: Any, values: dict[str, str]) -> None:
        self._plan = plan
        self._trial = trial
        self._values = values
        cfg = plan.resolve(values)
        self._rollout_step = cfg.policy.collect.n_step * cfg.env.collector_env_num
        self._eval_step = max(plan.eval_freq, self._rollout_step)  # between two evaluations: one a rollout at most
        self._n_evaluation = plan.score.max_step // plan.eval_freq + 1  # evaluations of a run, including one at its end
        self._curves: list[Curve] = []
        self._reported = -1
        self._is_pruned = False

    def outcome(self) -> TrialOutcome:
        """Runs all seeds, unless the pruner ends the trial earlier."""
        runs: list[dict[str, Any]] = []
        for k in range(self._plan.n_seed):
            self._curves.append(Curve([], []))
            runs.append(self._run(k))
            if self._is_pruned:
                return TrialOutcome(
                    'pruned', runs=runs, reason=f'after {sum(run["env_step"] for run in runs):,} env steps'
                )
            self._report_rest(k)
        value = self._plan.score.of(self._curves)
        if not math.isfinite(value):
            return TrialOutcome('failed', reason=f'its value is {value}')
        return TrialOutcome('complete', value, runs)

    def _run(self, k: int) -> dict[str, Any]:
        plan = self._plan
        seed = self._plan.seed + k
        curve = self._curves[k]
        place = [f'logger.root={plan.folder}', f'exp_name=trial_{self._trial.number:03d}_seed_{seed}', f'seed={seed}']
        overrides = [*plan.overrides_of(self._values), *place, 'logger.console=off']
        before = time.process_time()
        result = serial_pipeline(plan.source, overrides=overrides, on_evaluation=self._on_evaluation)
        return {
            'seed': seed,
            'run_dir': str(result.run_dir),
            'env_step': result.env_step,
            'solved_at': curve.solved_at(plan.score.stop_value),
            'best_return': max(curve.returns),
            'last_return': curve.returns[-1],
            'auc': plan.score.area(curve),
            'wall_s': round(result.wall_s, 3),
            'cpu_s': round(time.process_time() - before, 3),
            'memory_mb': round(peak_memory_mb(), 1),
        }

    def _on_evaluation(self, env_step: int, evaluation: Evaluation) -> str | None:
        """Reports the value so far to the pruner, which compares trials at equal steps; returns `PRUNED` to end the run."""
        k = len(self._curves) - 1
        n_evaluation = env_step // self._plan.eval_freq
        curve = self._curves[k]
        curve.steps.append(min((len(curve.steps) + 1) * self._eval_step, self._plan.score.max_step))
        curve.returns.append(evaluation.return_mean)
        step = k * self._n_evaluation + min(n_evaluation, self._n_evaluation - 1)
        if step <= self._reported:  # the last evaluation of a run may share the step of the one before
            return None
        self._reported = step
        self._trial.report(self._plan.score.of(self._curves), step)
        if self._plan.pruner is not None and not self._is_over(env_step):
            self._is_pruned |= bool(self._trial.should_prune())
        if self._is_pruned:
            return PRUNED
        return None

    def _is_over(self, env_step: int) -> bool:
        """Whether the trial ends with this evaluation anyway: its last run reached stop_value, or trains no further rollout."""
        is_last = len(self._curves) == self._plan.n_seed
        has_room = env_step + self._rollout_step <= self._plan.score.max_step
        is_solved = self._curves[-1].solved_at(self._plan.score.stop_value) is not None
        return is_last and (is_solved or not has_room)

    def _report_rest(self, k: int) -> None:
        """Repeats the report for the remaining steps of a run that ended early, so that slower trials are compared there."""
        value = self._plan.score.of(self._curves)
        last = (k + 1) * self._n_evaluation - 1
        for step in range(self._reported + 1, last + 1):
            self._trial.report(value, step)
        self._reported = last


def table(result: SweepResult) -> list[tuple[str, ...]]:
    """Returns the trials as texts, best first, below a row of headings."""
    score = result.plan.score
    keys = list(result.plan.spaces)
    heads = ['trial', 'state', *short_keys(keys)]
    if score.metric in ('last', 'auc'):
        heads.append(score.metric)
    heads.append('return')
    if score.stop_value is not None:
        heads.append(f'steps to {score.stop_value:g}')
    heads += ['seconds', 'CPU s', 'MB', '']
    return [tuple(heads), *(_cells(row, keys, score) for row in result.rows)]


def _cells(row: TrialRow, keys: Sequence[str], score: Score) -> tuple[str, ...]:
    """Returns the texts of a row of `table`."""
    cells = [str(row.number), row.state, *(row.values.get(key, '-') for key in keys)]
    if score.metric in ('last', 'auc'):
        cells.append('-' if row.value is None else f'{row.value:.5g}')
    cells.append(_mean([run['best_return'] for run in row.runs], '.1f'))
    if score.stop_value is not None:
        cells.append(_solved(row))
    for name in ('wall_s', 'cpu_s'):
        known = [run[name] for run in row.runs if run.get(name) is not None]
        cells.append(f'{sum(known):.1f}' if known else '-')
    memory = [run['memory_mb'] for run in row.runs if run.get('memory_mb') is not None]
    cells.append(f'{max(memory):.0f}' if memory else '-')
    return (*cells, row.reason[:100])


def tie_words(result: SweepResult) -> list[str]:
    """Returns a sentence if several trials are as good as the best one, with the words that tell them apart; else none."""
    plan = result.plan
    rows = result.rows
    tied = n_tied(rows, plan.score.minimises)
    best = result.best
    if tied < 2 or best is None or best.value is None:
        return []
    tie = f'the first {tied} of {len(rows)} trials tie ({plan.score.words(best.value)}), so their order says nothing'
    cfg = plan.resolve({})
    if plan.eval_freq <= cfg.policy.collect.n_step * cfg.env.collector_env_num:  # each rollout is evaluated already
        return [f'{tie}; more seeds tell them apart: --seeds {plan.n_seed + N_SEED} with another --name']
    freq = finer_freq(plan.eval_freq / N_FINER)
    return [f'{tie}; evaluate more often to tell them apart: policy.eval.eval_freq={freq:_} with another --name']


def as_data(result: SweepResult) -> dict[str, Any]:
    """Returns the result as data, for --json."""
    return {
        'best': None if result.best is None else result.best._asdict(),
        'best_file': result.best_file and str(result.best_file),
        'train': train_command(result),
        'metric': result.plan.score.metric,
        'n_left': result.n_left,
        'folder': str(result.plan.folder),
        'storage': str(result.plan.storage),
        'trials': [row._asdict() for row in result.rows],
    }


def train_command(result: SweepResult, more: Sequence[str] = ()) -> str | None:
    """Returns the command that trains the best config. Args: more: words to append. None if no trial is complete."""
    if result.best_file is None:
        return None
    return shlex.join(['zoo', 'train', str(from_here(result.best_file)), *more])


def best_config(plan: Plan, best: TrialRow) -> dict[str, Any]:
    """Returns the config of a trial, without default and derived values."""
    return given_config(plan.source, plan.overrides_of(best.values))


def given_config(source: Any, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the config of a source and overrides, without default and derived values."""
    data = without_derived_values(resolve_config(source, overrides).to_dict())
    config: dict[str, Any] = {}
    for row in explain_config(source, overrides):
        if row.origin not in ('default', 'derived'):
            value = value_at(data, row.key)
            if value is None:
                value = row.value
            put_at(config, row.key, storable(value))
    return config


def _write_best(plan: Plan, best: TrialRow) -> Path:
    path = plan.folder / 'best.yaml'
    assert best.value is not None, 'it is complete'
    score = plan.score.words(best.value)
    head = f'# trial {best.number} of the sweep {plan.name}: {score}, mean of {plan.n_seed} seeds\n'
    text = head + yaml_text(best_config(plan, best))
    with _refuse_full(plan.folder):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(text.encode())
    return path


def _refuse_full(folder: Path) -> AbstractContextManager[None]:
    return refuse_failure(f'the folder {folder} cannot be written', 'make room there; the same command continues')


def _write_trials(plan: Plan, rows: list[TrialRow]) -> None:
    """Writes the trials, best first, for `zoo report`."""
    score = plan.score
    swept = SweptTrials(
        name=plan.name,
        metric=METRICS[score.metric].partition(' (')[0],
        result_name=RESULT_NAMES[score.metric],
        minimises=score.minimises,
        n_trial=plan.n_trial,
        n_seed=plan.n_seed,
        n_tied=n_tied(rows, score.minimises),
        keys=list(plan.spaces),
        trials=[_swept_trial(row, score) for row in rows],
    )
    with _refuse_full(plan.folder):
        write_trials(plan.folder, swept)


def _swept_trial(row: TrialRow, score: Score) -> SweptTrial:
    result = ''
    if row.value is not None:
        result = score.words(row.value)
    return SweptTrial(
        label=f'trial_{row.number:03d}',
        state=row.state,
        values=row.values,
        value=row.value,
        result=result,
        reason=row.reason,
    )


def ranked(rows: list[TrialRow], minimises: bool) -> list[TrialRow]:
    """Sorts trials: complete ones by `merits`, then the others by kind; those that are equal by number."""
    kinds = ['complete', 'pruned', 'running', 'refused', 'failed', 'stopped', 'lost']
    merit_of = {row.number: merit for row, merit in zip(rows, merits(rows, minimises), strict=True)}
    return sorted(rows, key=lambda row: (kinds.index(row.state), merit_of[row.number], row.number))


def merits(rows: Sequence[TrialRow], minimises: bool) -> list[tuple[float, float, float]]:
    """Returns the numbers that trials are sorted by, lower for better ones: value; if equal, return, then area.

    Return and area are means over the runs of the trial: of the highest mean return of an evaluation, and of the area under
    the curve. An older zoo did not write the area: where a run of a complete trial lacks it, it tells no trials apart.
    """
    complete_runs = [run for row in rows if row.state == 'complete' for run in row.runs]
    has_areas = all(run.get('auc') is not None for run in complete_runs)
    result = []
    for row in rows:
        value = row.value or 0.0
        if not minimises:
            value = -value
        return_ = _mean_of([run['best_return'] for run in row.runs])
        area = 0.0
        if has_areas:
            area = _mean_of([run.get('auc') or 0.0 for run in row.runs])
        result.append((value, -return_, -area))
    return result


def n_tied(rows: Sequence[TrialRow], minimises: bool) -> int:
    """Returns the number of complete trials that are as good as the first one. Args: rows: from `ranked`."""
    complete = [row for row in rows if row.state == 'complete']
    if not complete:
        return 0
    merit_of_each = merits(complete, minimises)
    return merit_of_each.count(merit_of_each[0])


def _solved(row: TrialRow) -> str:
    steps = [run['solved_at'] for run in row.runs if run['solved_at'] is not None]
    mean = _mean(steps, ',.0f')
    if len(steps) in (0, len(row.runs)):
        return mean
    return f'{mean} ({len(steps)} of {len(row.runs)} seeds)'


def _mean(values: list[float], form: str) -> str:
    if values:
        return f'{_mean_of(values):{form}}'
    return '-'


def _mean_of(values: Sequence[float]) -> float:
    if values:
        return float(np.mean(values))
    return 0.0
