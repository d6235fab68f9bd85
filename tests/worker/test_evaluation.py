"""What can be read from an evaluation."""

from __future__ import annotations

import math
import pickle

import pytest

from zoo.worker.evaluator import Evaluation

FOUR = Evaluation(
    [1.0, 2.0, 6.0, 3.0], [10, 20, 30, 40], [False, True, False, False], {'is_success': [1.0, 0.0, 1.0, 1.0]}
)


def test_returns_in_numbers() -> None:
    assert FOUR.return_mean == 3 and FOUR.return_std == pytest.approx((14 / 4) ** 0.5)  # (4 + 1 + 9 + 0) / 4
    assert (FOUR.return_min, FOUR.return_max, FOUR.length_mean, FOUR.n_cut) == (1, 6, 25, 1)


def test_a_quantile_lies_between_the_returns_on_a_straight_line() -> None:
    assert [FOUR.return_quantile(q) for q in (0, 0.5, 0.75, 1)] == [1, 2.5, 3.75, 6]  # 3 + .25 * (6 - 3)


def test_rows_have_one_dict_per_episode() -> None:
    assert FOUR.rows()[1] == {'episode': 1, 'return': 2.0, 'length': 20, 'cut': True, 'is_success': 0.0}
    assert [row['episode'] for row in FOUR.rows()] == [0, 1, 2, 3]
    assert Evaluation([1.0], [2]).rows() == [{'episode': 0, 'return': 1.0, 'length': 2, 'cut': False}]


def test_an_info_key_that_is_a_column_already_gets_another_name() -> None:
    assert Evaluation([1.0], [2], infos={'length': [5.0]}).rows()[0] == {
        'episode': 0, 'return': 1.0, 'length': 2, 'cut': False, 'info/length': 5.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ('infos', 'rate'),
    [
        ({'is_success': [1.0, 0.0]}, 0.5),
        ({'success': [1.0, 1.0]}, 1.0),
        ({'success': [1.0, 1.0], 'is_success': [0.0, 0.0]}, 0.0),
        ({'is_success': [1.0, math.nan]}, 1.0),
        ({'other': [1.0, 1.0]}, None),
    ],
)
def test_success_rate(infos: dict[str, list[float]], rate: float | None) -> None:
    assert Evaluation([0.0, 0.0], [1, 1], infos=infos).success_rate == rate


def test_metrics_have_the_names_of_the_log() -> None:
    whole = FOUR._replace(sets={'unseen': Evaluation([7.0], [1])})
    metrics = whole.metrics()
    assert metrics['return_mean'] == 3 and metrics['return_max'] == 6 and metrics['episode_cut'] == 1
    assert metrics['info/is_success_mean'] == metrics['success_rate'] == 0.75
    assert metrics['unseen/return_mean'] == 7 and 'unseen/success_rate' not in metrics


def test_an_evaluation_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(FOUR)) == FOUR
