"""A trial's reports to the pruner, and its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.sweep.tiny import LR, config
from zoo.tools.sweep.plan import make_plan
from zoo.tools.sweep.sweep import run_trial

pytestmark = pytest.mark.slow
SPACE = f'{LR}=log(1e-4,1e-2)'


class Trial:
    """Stands in for optuna's trial: keeps the reports and asks to be pruned from the step `ends_at` on."""

    number = 4

    def __init__(self, ends_at: int = 99) -> None:
        self.reports: dict[int, float] = {}
        self._ends_at = ends_at

    def report(self, value: float, step: int) -> None:
        assert step not in self.reports
        self.reports[step] = value

    def should_prune(self) -> bool:
        return max(self.reports) >= self._ends_at


def test_run_that_reaches_its_goal_early_is_reported_at_all_later_steps_too(tmp_path: Path) -> None:
    # an episode of CartPole has 8 steps or more, so the first evaluation reaches 5; a run has 4 evaluations, and 1 at its end
    plan, trial = make_plan(config(tmp_path, 1024, stop_value=5.0), [SPACE], seeds=2), Trial()
    outcome = run_trial(plan, trial, {LR: '1e-3'})
    assert outcome.state == 'complete' and sorted(trial.reports) == [1, 2, 3, 4, 6, 7, 8, 9]
    assert trial.reports[2] == trial.reports[4] == outcome.runs[0]['solved_at'] < 1024
    assert trial.reports[9] == outcome.value == sum(run['solved_at'] for run in outcome.runs) / 2


def test_pruned_trial_ends_with_the_evaluation_and_trains_no_further_seed(tmp_path: Path) -> None:
    plan, trial = make_plan(config(tmp_path, 2048), [SPACE], seeds=3), Trial(ends_at=2)
    outcome = run_trial(plan, trial, {LR: '1e-3'})
    assert outcome.state == 'pruned' and len(outcome.runs) == 1 and outcome.runs[0]['env_step'] < 1024
    assert max(trial.reports) == 2 and outcome.value is None


def test_refused_values_train_nothing(tmp_path: Path) -> None:
    outcome = run_trial(make_plan(config(tmp_path), [SPACE]), Trial(), {'policy.learn.batch_size': '96'})
    assert outcome.state == 'refused' and '96' in outcome.reason and not list(tmp_path.iterdir())
