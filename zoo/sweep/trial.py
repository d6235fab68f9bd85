"""One trial: the config with the values that it was given, trained once for each seed."""

from __future__ import annotations

import math
from typing import Any

from zoo.config.section import ConfigError
from zoo.core.errors import env_failure, show_error
from zoo.pipeline import serial_pipeline
from zoo.sweep.plan import Plan
from zoo.sweep.score import Curve
from zoo.sweep.study import Outcome
from zoo.worker.evaluation import Evaluation

MAX_REASON = 300  # characters


def run_trial(plan: Plan, trial: Any, values: dict[str, str]) -> Outcome:
    """Trains, and reports each evaluation to the pruner.

    A config that is refused and a run that fails are outcomes. Raises: Interrupted after a signal, UserError for what
    would fail in every trial, such as a folder that cannot be written.
    """
    try:
        plan.resolve(values)
        return _Runs(plan, trial, values).outcome()
    except ConfigError as error:
        return Outcome('refused', reason=' '.join(error.problems)[:MAX_REASON])
    except Exception as error:
        if not isinstance(error, RuntimeError | MemoryError) and env_failure(error) is None:
            raise
        return Outcome('failed', reason=show_error(error, MAX_REASON))


class _Runs:
    """The runs of a trial, one after the other."""

    def __init__(self, plan: Plan, trial: Any, values: dict[str, str]) -> None:
        self._plan, self._trial, self._values = plan, trial, values
        self._n_evaluation = plan.score.max_step // plan.eval_freq + 1  # of a run, one at its end included
        self._curves: list[Curve] = []
        self._reported, self._is_pruned = -1, False

    def outcome(self) -> Outcome:
        """Runs all seeds, or as many as the pruner lets it."""
        runs: list[dict[str, Any]] = []
        for k in range(self._plan.n_seed):
            self._curves.append(Curve([], []))
            runs.append(self._run(k))
            if self._is_pruned:
                return Outcome('pruned', runs=runs, reason=f'after {sum(run["env_step"] for run in runs):,} env steps')
            self._report_rest(k)
        value = self._plan.score.of(self._curves)
        if not math.isfinite(value):
            return Outcome('failed', runs=runs, reason=f'its value is {value}')
        return Outcome('complete', value, runs)

    def _run(self, k: int) -> dict[str, Any]:
        plan, seed, curve = self._plan, self._plan.seed + k, self._curves[k]
        place = [f'logger.root={plan.folder}', f'exp_name=trial_{self._trial.number:03d}_seed_{seed}', f'seed={seed}']
        overrides = [*plan.overrides_of(self._values), *place, 'logger.console=off']
        result = serial_pipeline(plan.source, overrides=overrides, on_evaluation=self._on_evaluation)
        return {
            'seed': seed,
            'run_dir': str(result.run_dir),
            'env_step': result.env_step,
            'solved_at': curve.solved_at(plan.score.stop_value),
            'best_return': max(curve.returns),
            'last_return': curve.returns[-1],
            'wall_s': round(result.wall_s, 3),
        }

    def _on_evaluation(self, env_step: int, evaluation: Evaluation) -> str | None:
        k = len(self._curves) - 1
        self._curves[k].steps.append(env_step)
        self._curves[k].returns.append(evaluation.return_mean)
        return 'stop' if self._report(k, env_step // self._plan.eval_freq) else None

    def _report(self, k: int, n_evaluation: int) -> bool:
        """Tells the pruner the value so far; returns whether the trial is to end. Trials are compared at equal steps."""
        step = k * self._n_evaluation + min(n_evaluation, self._n_evaluation - 1)
        if step <= self._reported:  # the last evaluation of a run may share the step of the one before
            return False
        self._reported = step
        self._trial.report(self._plan.score.of(self._curves), step)
        self._is_pruned |= self._plan.pruner is not None and bool(self._trial.should_prune())
        return self._is_pruned

    def _report_rest(self, k: int) -> None:
        """Reports the value of a run that ended early at its later steps too: slower trials are compared with it there."""
        value = self._plan.score.of(self._curves)
        last = (k + 1) * self._n_evaluation - 1
        for step in range(self._reported + 1, last + 1):
            self._trial.report(value, step)
        self._reported = last
