"""The numbers of a report, against ones worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.real_runs import made_run
from zoo.tools.results.report import (
    PARTS,
    duration,
    has_all_times,
    number,
    numbers_of,
    seeds,
    spread,
    steps,
    time_shares,
)

METRIC = 'eval/return_mean'


def test_numbers_are_the_last_and_highest_of_each_run_and_their_average() -> None:
    runs = [made_run([10, 20, 40], values, seed=i) for i, values in enumerate(([1, 9, 5], [1, 2, 3], [0, 1, 4]))]
    [group] = numbers_of({'a': runs}, METRIC, 'mean')
    assert [(row.last, row.highest) for row in group.runs] == [(5, 9), (3, 3), (4, 4)]
    assert group.last == 4 and group.highest == pytest.approx(16 / 3)
    assert 3 <= group.low < 4 < group.high <= 5
    assert group.runs[0].run.wall_s == 40 and group.runs[0].run.speed == 1.0  # one step a second


def test_numbers_of_runs_without_the_metric_are_unknown() -> None:
    runs = [made_run([1, 2], [5, 6]), made_run([1, 2], [0, 0], metric='other')]
    [group] = numbers_of({'a': runs}, METRIC, 'iqm')
    assert (group.last, group.n_with) == (6, 1) and group.runs[1].last is None
    [group] = numbers_of({'a': runs}, None, 'iqm')
    assert group.last is group.low is group.highest is None


def test_number_of_steps_of_a_run_without_lines_is_zero() -> None:
    [group] = numbers_of({'a': [made_run([], [])]}, METRIC, 'iqm')
    assert group.runs[0].run.env_step == 0 and group.last is None and group.runs[0].run.speed is None


def test_time_shares_are_the_mean_over_runs_and_add_up_to_one() -> None:
    runs = [made_run([1], [1]), made_run([1], [1])]
    for run, share_env in zip(runs, (0.2, 0.6), strict=True):
        run.columns.update({f'time/share_{name}': np.array([0.0]) for name in PARTS})
        run.columns['time/share_env'], run.columns['time/share_learn'] = (
            np.array([share_env]),
            np.array([1 - share_env]),
        )
    shares = time_shares(runs)
    assert shares['env'] == pytest.approx(0.4) and shares['learn'] == pytest.approx(0.6) and shares['act'] == 0
    assert time_shares([made_run([1], [1])]) == {}


def test_time_and_shares_of_a_run_that_has_ended_are_those_of_all_of_it() -> None:
    run = made_run([1_000], [1])  # its last line is after 1,000 s
    run.columns.update({f'time/share_{name}': np.array([1.0 if name == 'learn' else 0.0]) for name in PARTS})
    run.result.update(
        env_step=1_000, wall_s=1_250.0, seconds={**dict.fromkeys(PARTS, 0), 'learn': 900, 'evaluate': 300}
    )
    [group] = numbers_of({'a': [run]}, METRIC, 'iqm')
    assert (group.runs[0].run.wall_s, group.runs[0].run.speed) == (1_250, 0.8)
    assert time_shares([run]) == {**dict.fromkeys(PARTS, 0), 'learn': 0.75, 'evaluate': 0.25}
    run.result['seconds'] = {'learn': 'much'}
    assert time_shares([run])['learn'] == 1


def test_shares_of_a_run_that_goes_on_add_its_last_process_to_those_before() -> None:
    run = made_run([400], [1])  # its last line is after 400 s
    run.columns.update({f'time/share_{name}': np.array([1.0 if name == 'learn' else 0.0]) for name in PARTS})
    run.result.update(state='running', seconds={}, timed_s=0.0)
    assert time_shares([run])['learn'] == 1 and has_all_times(run)
    run.result.update(seconds={**dict.fromkeys(PARTS, 0), 'env': 80, 'learn': 20}, timed_s=100.0)
    shares = time_shares([run])  # learn: 20 s, and the 300 s since
    assert shares == {**dict.fromkeys(PARTS, 0), 'env': pytest.approx(0.2), 'learn': pytest.approx(0.8)}
    assert has_all_times(run)
    run.result['n_killed'] = 1
    assert not has_all_times(run)


def test_times_of_a_run_that_has_ended_are_all_if_they_are_as_long_as_it() -> None:
    run = made_run([400], [1])
    for timed_s, has_all in ((None, False), ('x', False), (100.0, False), (399.0, True), (401.0, True)):
        run.result.update(state='done', wall_s=400.0, timed_s=timed_s)
        assert has_all_times(run) is has_all


@pytest.mark.parametrize(
    ('seconds', 'words'),
    [
        (0.04, '0.0 s'),
        (9.94, '9.9 s'),
        (9.96, '10 s'),
        (59.4, '59 s'),
        (59.6, '1 min'),
        (200, '3 min 20 s'),
        (3599.4, '59 min 59 s'),
        (3600, '1 h'),
        (7199, '2 h'),
        (7500, '2 h 5 min'),
        (math.nan, '–'),
    ],
)
def test_duration_is_in_units_that_one_reads(seconds: float, words: str) -> None:
    assert duration(seconds).replace('\u00a0', ' ') == words


@pytest.mark.parametrize(
    ('value', 'words'),
    [(7, '7'), (950, '950'), (999.6, '1k'), (40_670, '40.7k'), (999_999, '1M'), (1.5e6, '1.5M'), (2e9, '2G')],
)
def test_steps_are_short(value: float, words: str) -> None:
    assert steps(value) == words


def test_number_has_four_digits_or_all_of_a_large_one() -> None:
    assert [number(x) for x in (0.96637, 475.25, -12345.6, 0, None, math.inf)] == [
        '0.9664',
        '475.2',
        '-12,346',
        '0',
        '–',
        '–',
    ]


@pytest.mark.parametrize(
    ('given', 'words'),
    [
        ([3], 'seed 3'),
        ([3, 3], 'seed 3'),
        ([1, 0], 'seeds 0 and 1'),
        ([0, 1, 2], 'seeds 0 to 2'),
        ([1, 5, 9], 'seeds 1, 5 and 9'),
        (range(0, 20, 2), '10 seeds'),
    ],
)
def test_seeds_are_a_range_where_they_are_one(given: list[int], words: str) -> None:
    assert seeds([made_run([1], [1], seed=seed) for seed in given]) == words


def test_spread_is_one_value_where_all_look_alike() -> None:
    assert spread([1.01, 1.02], lambda x: f'{x:.1f}') == '1.0' and spread([3, 1, 2], str) == '1 to 3'
