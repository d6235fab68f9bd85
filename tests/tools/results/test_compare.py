"""Comparisons of runs, against numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.real_runs import made_run
from zoo.core.errors import UserError
from zoo.tools.results.compare import compare, differences
from zoo.tools.results.read import Run, State

METRIC = 'eval/return_mean'


def side(returns: list[float], end: int = 100, **learn: float) -> list:
    return [made_run([0, end], [0, value], seed=seed, **learn) for seed, value in enumerate(returns)]


def test_last_values_and_the_chance_to_beat_the_first_side() -> None:
    # of the 4 pairs 3 wins against 1 and 2, and 2 wins against 1 and ties with 2: (2 + 1.5) / 4
    found = compare({'plain': side([1, 2]), 'new': side([3, 2])}, METRIC, 'mean')
    first, second = found.sides
    assert (first.last.values, first.last.center, first.last.low, first.last.high) == ((1, 2), 1.5, 1, 2)
    assert first.chance is None and second.chance is not None and second.chance.value == 3.5 / 4
    # of the 6 ways to split 1, 2, 2, 3, four are as far from .5: either 2 is with the 3, and they are on either side
    assert second.chance == (3.5 / 4, None, None, 4 / 6)


def test_interval_of_the_chance_and_whether_it_is_clear() -> None:
    apart = compare({'plain': side([1, 2, 3, 4]), 'new': side([5, 6, 7, 8])}, METRIC).sides[1].chance
    assert apart == (1, 1, 1, 2 / 70) and apart.is_clear
    # of 16 pairs only (5, 6) is lost: 15/16. p: 4 of 70 ways, with 5 and 6 exchanged or not, and the sides exchanged or not
    near = compare({'plain': side([1, 2, 3, 6]), 'new': side([5, 7, 8, 9])}, METRIC).sides[1].chance
    assert (near.value, near.p) == (15 / 16, 4 / 70) and not near.is_clear and near.low > 0.5


def test_runs_of_different_length_are_compared_where_all_have_values() -> None:
    # at step 50 the first side, which rises from 0 to 10 in 100 steps, is at 5; the second is at its end, 6
    found = compare({'long': side([10, 10, 10]), 'short': side([6, 6, 6], end=50)}, METRIC)
    assert found.common_step == 50 and [s.last.center for s in found.sides] == [10, 6]
    assert [s.common.center for s in found.sides if s.common] == [5, 6]
    assert found.sides[1].chance.value == 0 and found.sides[1].common_chance.value == 1


def test_runs_of_about_one_length_are_compared_at_their_ends_only() -> None:
    found = compare({'a': side([1], end=100), 'b': side([2], end=99)}, METRIC)
    assert found.common_step is None and found.sides[1].common is None and found.sides[1].common_chance is None


def test_runs_without_a_common_step_are_compared_at_their_ends_only() -> None:
    late = [made_run([500, 600], [1, 2])]
    assert compare({'a': side([1]), 'late': late}, METRIC).common_step is None


def unfinished(value: float, end: int, state: State, seed: int = 9) -> Run:
    run = made_run([0, end], [0, value], seed=seed)
    run.state = state
    return run


def test_run_that_died_early_does_not_decide_the_common_step_and_is_named() -> None:
    a = [*side([10, 10], end=200), unfinished(99, 4, 'failed')]
    b = side([6, 6], end=100)
    found = compare({'a': a, 'b': [made_run([0, 100], [0, 6], name='b', seed=k) for k in range(len(b))]}, METRIC)
    assert found.common_step == 100 and found.left_out == [(str(a[2].path), 'failed', 4)]
    # at step 100 the first side, which rises from 0 to 10 in 200 steps, is at 5
    assert found.sides[0].last.values == (10, 10) and found.sides[0].common.values == (5, 5)
    assert (found.sides[0].n_run, found.sides[0].env_step) == (3, (200, 200)) and found.sides[
        1
    ].common_chance.value == 1


def test_run_that_was_killed_before_its_first_evaluation_is_named_and_counts_in_no_number() -> None:
    killed = made_run([], [], name='killed')
    killed.state = 'killed'
    found = compare({'a': [killed, *side([10, 20])], 'b': side([6, 6])}, METRIC)
    first = found.sides[0]
    assert (first.n_run, len(first.env_step), first.last.values) == (3, 2, (10, 20))
    assert [(run.path, run.state) for run in found.left_out] == [(str(killed.path), 'killed')]
    assert np.isfinite(first.speed)


def test_unfinished_run_that_came_as_far_as_the_others_counts() -> None:
    found = compare({'a': [*side([1, 2]), unfinished(3, 99, 'killed')], 'b': side([5])}, METRIC)
    assert found.sides[0].last.values == (1, 2, 3) and found.common_step is None and found.left_out == []


@pytest.mark.parametrize(
    ('states', 'step', 'n_left_out'),
    [
        (('stopped', 'running', 'failed'), 40, 1),  # the runs end at steps 60, 40 and 20 of 100
        (('failed', 'killed', 'failed'), 20, 0),
        (('stopped', 'done', 'done'), 20, 0),
    ],
)
def test_side_without_finished_runs_is_compared_as_far_as_it_came(
    states: tuple[State, ...], step: int, n_left_out: int
) -> None:
    short = [unfinished(1, 60 - 20 * k, state, seed=k) for k, state in enumerate(states)]
    found = compare({'a': [made_run([0, 100], [0, 1], name='a')], 'b': short}, METRIC)
    assert found.common_step == step and len(found.left_out) == n_left_out


def test_speed_is_of_the_whole_run_and_the_median_of_runs() -> None:
    runs = side([1, 2, 3])
    for run, seconds in zip(runs, (10.0, 20.0, 40.0), strict=True):
        run.columns['wall_s'] = np.array([1.0, seconds])
    found = compare({'a': runs, 'b': side([1])}, METRIC)
    assert [s.speed for s in found.sides] == [5, 1]  # 100 steps in 10, 20 and 40 s; made runs take 1 s a step


def test_runs_without_the_metric_are_left_out_and_a_side_without_it_has_no_values() -> None:
    other = made_run([1, 100], [1, 1], metric='collect/return_mean', rate=0.5)
    found = compare({'a': [*side([4]), other], 'b': side([5])}, METRIC)
    assert found.sides[0].last.values == (4,) and found.sides[0].n_run == 2
    found = compare({'a': side([4], end=500, rate=0.1), 'b': [other]}, METRIC)
    first, second = found.sides
    assert first.last.values == (4,) and second.last is second.chance is None and found.left_out == []
    assert (second.n_run, second.env_step, found.common_step) == (1, (100,), None)
    assert found.differences == {'policy.learn.rate': {'a': 0.1, 'b': 0.5}}
    with pytest.raises(UserError, match='no run has a value of the metric eval/return_mean'):
        compare({'a': [other], 'b': [other]}, METRIC)


def test_differences_are_of_what_changes_results_and_keys_may_be_missing() -> None:
    one = {
        'exp_name': 'x',
        'seed': 1,
        'logger': {'root': 'a'},
        'policy': {'type': 'ppo', 'learn': {'rate': 0.1, 'both': 2, 'clip': {'start': 0.2, 'end': 0.1}}},
    }
    two = {
        'exp_name': 'y',
        'seed': 2,
        'logger': {'root': 'b'},
        'policy': {'type': 'ppg', 'learn': {'aux': None, 'both': 2, 'clip': 0.2}},
    }
    assert differences({'A': one, 'B': two}) == {
        'policy.type': {'A': 'ppo', 'B': 'ppg'},
        'policy.learn.rate': {'A': 0.1},
        'policy.learn.clip': {'A': {'start': 0.2, 'end': 0.1}, 'B': 0.2},
    }
    assert differences({'A': one, 'B': {**one, 'seed': 5}}) == {}
