"""The table of runs: returns, speed, order."""

from pathlib import Path

import pytest

from tests.real_runs import made_run, write_run
from zoo.tools.results.read import read_run
from zoo.tools.results.table import HEADS, as_data, as_text, fit, rows_of, sorted_rows


def test_row_has_last_and_best_return_and_steps_per_second(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / 'a', made_run([100, 200], [7.0, 5.0], seed=3)))  # one step a second
    assert (*run.last_and_best, run.speed, run.env_step, run.seed) == (5.0, 7.0, 1.0, 200, 3)
    words = dict(zip(HEADS, as_text((run, 'made'), tmp_path), strict=True))
    assert (words['run'], words['last'], words['best'], words['env steps']) == ('a', '5', '7', '200')


def test_returns_of_training_are_marked_in_the_row_of_a_run_without_evaluations(tmp_path: Path) -> None:
    made = made_run([100, 200], [7.0, 5.0], metric='collect/return_mean')
    row = read_run(write_run(tmp_path / 'a', made)), 'made'
    assert as_text(row)[6:8] == ('5 train', '7 train') and as_data(row)['return_of'] == 'training'
    assert as_data((made_run([1], [1.0]), 'made'))['return_of'] == 'evaluations'


def test_row_of_a_run_without_a_line_has_no_numbers(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / 'a', made_run([], [])))
    assert (*run.last_and_best, run.speed, run.env_step) == (None, None, None, 0)
    assert as_text((run, 'made'))[6:9] == ('-', '-', '-')


def test_rows_of_one_name_say_how_their_configs_differ(tmp_path: Path) -> None:
    runs = [made_run([1], [1.0], seed=seed, rate=rate) for rate in (0.1, 0.2) for seed in (0, 1)]
    rows = rows_of([read_run(write_run(tmp_path / str(i), run)) for i, run in enumerate(runs)])
    assert [(label, run.seed) for run, label in rows] == [
        (f'made rate={rate}', k) for rate in (0.1, 0.2) for k in (0, 1)
    ]
    data = as_data(rows[0])
    assert data['label'] == as_text(rows[0])[1] == 'made rate=0.1' and data['exp_name'] == 'made'


def test_a_narrow_terminal_is_shown_the_columns_that_fit(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / '20261124-153700_seed0', made_run([100], [500.0], name='cartpole_ppo')))
    run.state, run.result = 'done', {'stop_reason': 'policy.eval.stop_value is reached'}
    texts = [HEADS, as_text((run, run.label), tmp_path)]
    # widths: 21 12 6 11 4 9 4 4 7 5 and 9 gaps of 2 are 101
    assert fit(texts, 101) == [HEADS, (*texts[1][:-1], 'done')]
    assert fit(texts, 100)[0] == tuple(head for head in HEADS if head != 'steps/s')
    assert fit(texts, 10)[0] == ('run', 'env steps', 'last', 'state')


@pytest.mark.parametrize('order, seeds', [('return', [1, 0, 2]), ('steps', [2, 0, 1]), ('name', [0, 1, 2])])
def test_rows_are_sorted(order: str, seeds: list[int], tmp_path: Path) -> None:
    made = [made_run([5], [1.0], seed=0), made_run([5], [9.0], seed=1), made_run([9], [0.0], seed=2)]
    rows = rows_of([read_run(write_run(tmp_path / str(i), run)) for i, run in enumerate(made)])
    found = sorted_rows(rows[::-1] if order == 'name' else rows, order)  # type: ignore[arg-type]
    assert [run.seed for run, _ in found] == seeds
