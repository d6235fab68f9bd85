"""What trials are compared by."""

from __future__ import annotations

import pytest

from zoo.tools.sweep.plan import Curve, Score


def test_returns_are_means_over_seeds() -> None:
    curves = [Curve([100, 200], [10.0, 6.0]), Curve([100, 200], [2.0, 4.0])]
    assert Score('best', None, 200).of(curves) == 7.0  # (10 + 4) / 2
    assert Score('last', None, 200).of(curves) == 5.0  # (6 + 4) / 2


def test_area_is_the_mean_return_over_all_env_steps() -> None:
    # 0..100: 10; 100..200: 15 on average; 200..400: 20, the last value held: (1000 + 1500 + 4000) / 400
    assert Score('auc', None, 400).of([Curve([100, 200], [10.0, 20.0])]) == pytest.approx(16.25)


def test_steps_are_those_of_the_first_evaluation_at_the_goal() -> None:
    curves = [Curve([100, 200, 300], [1.0, 9.0, 9.5]), Curve([100, 200], [1.0, 9.0])]
    assert Score('steps', 9.0, 1000).of(curves) == 200.0
    assert Score('steps', 9.5, 1000).of(curves) > 1000


def test_trials_that_miss_the_goal_rank_behind_all_by_solved_seeds_then_return() -> None:
    score = Score('steps', 100.0, 1000)
    solved, late = Curve([10], [100.0]), Curve([1000], [100.0])
    near, far = Curve([1000], [99.0]), Curve([1000], [-500.0])
    values = [score.of(curves) for curves in ([late, late], [solved, near], [solved, far], [near, near], [far, far])]
    assert values == sorted(values) and len(set(values)) == 5
    assert values[0] == 1000.0 < values[1] and values[-1] <= 3000


def test_words_name_the_goal() -> None:
    score = Score('steps', 475.0, 1000)
    assert score.words(900.0) == '900 steps to 475' and score.words(1001.0) == 'not all seeds reached 475'
    assert Score('best', None, 1).words(12.5) == 'best 12.5'
