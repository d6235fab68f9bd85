"""A sweep from its config and spaces to its best config."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from zoo.core.errors import UserError
from zoo.run.interrupt import Interrupted, catch_signals
from zoo.sweep.plan import Plan, Pruner, Sampler, make_plan
from zoo.sweep.score import Metric
from zoo.sweep.study import Study, SweepResult
from zoo.sweep.table import result_of
from zoo.sweep.team import say_if_too_many
from zoo.sweep.workers import run_workers, work

logger = logging.getLogger(__name__)


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

    The same call continues a sweep that was ended in any way. Several processes, also on machines that share a disk, may
    make the same call at once: together they do n trials.

    Args:
      config: what `serial_pipeline` takes.
      texts: 'key=value' overrides of all trials, and 'key=space' with a space of `zoo.sweep.spaces`; without a space, those
        of DEFAULT_SPACES for the policy of the config.
      n: trials that are complete, pruned, refused or failed at the end; 20, or all points of a grid.
      seeds: runs of a trial, with the seeds of the config and after.
      jobs: processes, each with one torch thread; 1: this process.
      metric: what is compared, see METRICS; by default steps if policy.eval.stop_value is set, else best.
      sampler: tpe learns from the trials before, random does not, grid tries all combinations.
      pruner: ends trials that are worse than the median of the others at the same step, or by successive halving.
      storage: the journal, a file; by default <logger.root>/<name>/journal.log.
      name: of the folder; by default <exp_name>_sweep.
      imports: modules or files that the processes import first.
    Returns: SweepResult. Raises: UserError, ConfigError before anything starts; Interrupted after a signal, with all saved.
    """
    if type(jobs) is not int or jobs < 1:
        raise UserError(f'jobs is {jobs!r} but must be an integer >= 1, the processes on this machine; e.g. 2')
    if int(os.environ.get('WORLD_SIZE') or 1) > 1:
        raise UserError('a sweep starts its own processes, and torchrun started this one; run it without torchrun')
    rules: dict[str, Any] = dict(n=n, seeds=seeds, metric=metric, sampler=sampler, pruner=pruner)
    plan = make_plan(config, texts, **rules, storage=storage, name=name)
    study = Study(plan)
    n_done = plan.n_trial - study.n_left()
    logger.info('sweep %s: %d of %d trials are done; storage: %s', plan.name, n_done, plan.n_trial, plan.storage)
    with catch_signals() as received:
        if jobs == 1:
            work(plan, study, received)
        elif study.n_left():
            say_if_too_many(min(jobs, study.n_left()))
            run_workers(plan, study, min(jobs, study.n_left()), received, imports)
    study.mark_lost()
    if received:
        _tell_how_to_continue(plan, study)
        raise Interrupted(128 + received[0])
    return result_of(plan, study)


def _tell_how_to_continue(plan: Plan, study: Study) -> None:
    n_done = plan.n_trial - study.n_left()
    result_of(plan, study)
    logger.warning(
        'the sweep was stopped with %d of %d trials done; the same command continues it (storage: %s)',
        n_done,
        plan.n_trial,
        plan.storage,
    )
