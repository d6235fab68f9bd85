"""The processes of a sweep on this machine; each takes trials from the storage until all are done."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from zoo.core.errors import RunError
from zoo.core.processes import end_words
from zoo.run.interrupt import Interrupted
from zoo.sweep.owner import beating
from zoo.sweep.plan import Plan
from zoo.sweep.study import COUNTED, Outcome, Study
from zoo.sweep.team import Ended, Team
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
    team = Team(_run_worker, imports)
    n_restart, failure = 0, None
    with team.follow_signals():
        for _ in range(jobs):
            team.start(plan)
        while team.members:
            for ended in team.ended():
                failure = failure or _failure(ended)
                if failure is not None:
                    team.stop()
                elif ended.exitcode < 0 and not received and n_restart < MAX_RESTART and study.n_left():
                    logger.warning('a process of the sweep %s; another one takes its place', end_words(ended.exitcode))
                    n_restart += 1
                    team.start(plan)
    if failure is not None:
        raise failure


def _failure(ended: Ended) -> Exception | None:
    if ended.error is None and ended.exitcode > 0:
        return RunError(f'a process of the sweep ended with exit code {ended.exitcode}; its error is shown above')
    return ended.error


def _run_worker(plan: Plan, received: list[int]) -> None:
    work(plan, Study(plan), received)


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
