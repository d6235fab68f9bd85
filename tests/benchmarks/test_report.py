"""The averages that the benchmark tables report."""

from __future__ import annotations

import numpy as np
import pytest

from report import bootstrap_interval, holds, interquartile_mean, last_json_line, settings, table


def test_interquartile_mean_of_eight_is_the_mean_of_the_middle_four():
    assert interquartile_mean(np.array([1000, 3, 4, 5, 6, 1, 2, -1000])) == pytest.approx((2 + 3 + 4 + 5) / 4)


def test_interquartile_mean_of_five_counts_the_quartiles_in_part():
    # 5/4 = 1.25 values cut from either end: weights 0, .75, 1, .75, 0 -> (.75*20 + 30 + .75*60) / 2.5 = 36
    assert interquartile_mean(np.array([0, 20, 30, 60, 900])) == pytest.approx(36.0)


def test_interquartile_mean_of_one_value_is_that_value():
    assert interquartile_mean(np.array([7.0])) == 7.0


def test_bootstrap_interval_of_equal_scores_has_no_width():
    assert bootstrap_interval([np.full(3, 5.0), np.full(4, 5.0)], n_draw=50) == (5.0, 5.0)


def test_bootstrap_interval_draws_within_strata_only():
    # every draw has two 0 and two 10, so the middle half is always one of each; without strata it would vary
    assert bootstrap_interval([np.zeros(2), np.full(2, 10.0)], n_draw=200) == (5.0, 5.0)


def test_bootstrap_interval_of_the_mean_matches_the_normal_approximation():
    # the mean of the middle half of n normal values has the variance 1.19/n (efficiency 0.84), n = 400:
    # half width 1.96 * sqrt(1.19) / 20 = 0.107; one sample and 2,000 draws estimate it to some 5%, so 15% is safe
    low, high = bootstrap_interval([np.random.default_rng(0).normal(size=400)], n_draw=2_000)
    assert (high - low) / 2 == pytest.approx(0.107, rel=0.15)


def test_last_json_line_ignores_what_a_library_printed():
    assert last_json_line('banner\n{"a": 1}\n\n{"a": 2}\n') == {'a': 2}
    assert last_json_line('Traceback') is None


def test_table_has_a_header_a_rule_and_the_rows():
    assert table(['x', 'y'], [[1, 2]]) == '| x | y |\n| --- | --- |\n| 1 | 2 |\n'


def test_holds_sees_changed_values_but_no_keys_that_are_new():
    assert holds({'a': {'b': 1, 'new': 2}, 'c': [1]}, {'a': {'b': 1}, 'c': [1]})
    assert not holds({'a': {'b': 2}}, {'a': {'b': 1}})
    assert not holds({'a': {}}, {'a': {'b': 1}})
    assert not holds({'a': 1}, {'a': {'b': 1}})


def test_settings_are_the_same_with_another_log_folder_or_number_of_threads():
    one, other = (
        {'logger': {'root': root}, 'policy': {'n_thread': n, 'type': 'ppo'}, 'seed': 3}
        for root, n in (('here', 1), ('there', None))
    )
    assert settings(one) == settings(other) == {'policy': {'type': 'ppo'}, 'seed': 3}
