"""The importance of settings among many configs: shares worked by hand, and their part of a report."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.real_runs import made_run
from zoo.tools.results.importance import LEAST, importance_of, rank_share, setting_share
from zoo.tools.results.report import report

pytest.importorskip('matplotlib')


def test_share_of_a_choice_is_that_of_ranks_around_the_mean_of_each() -> None:
    # ranks 0, 1 | 2, 3 about their means .5 and 2.5: residual variance 4 * .25 / (4 - 2) = .5 of the total 5 / 3: 1 - .3
    assert rank_share(np.array([0, 0, 1, 1]), np.array([1, 20, 30, 400]), is_choice=True) == pytest.approx(0.7)


def test_share_of_a_number_is_that_of_a_parabola_through_ranks() -> None:
    at = np.arange(6.0)
    assert rank_share(at, np.exp(at)) == pytest.approx(1)  # only the order counts
    # ranks 4.5, 2.5, .5, .. (minus the mean 2.5: 2, 0, -2, ..), squares 6.25, 2.25, .25, .. (minus the mean 35 / 12: 10/3, -2/3,
    # -8/3, ..): the fit explains 24^2 / (112 / 3) of 16; the rest, 4/7, has 3 degrees of freedom, the total, 16, has 5
    assert rank_share(at, np.array([9, 4, 1, 1, 4, 9])) == pytest.approx(1 - (4 / 7 / 3) / (16 / 5))
    assert rank_share(np.array([0.0, 1, 0, 1]), np.array([1.0, 2, 2, 1])) == 0  # two values: a line, explains nothing
    assert math.isnan(rank_share(at[:3], at[:3]))


def test_a_setting_without_effect_has_about_the_share_of_luck() -> None:
    random = np.random.default_rng(0)
    shares = [rank_share(random.uniform(size=30), random.uniform(size=30)) for _ in range(200)]
    assert 0 < np.mean(shares) < 0.06 and np.mean(np.array(shares) == 0) > 0.5


def _share(values: list[Any], result: Any = None) -> Any:
    return setting_share('a.key', 'key', values, np.arange(len(values)) * 1.0 if result is None else result)


def test_numbers_over_many_sizes_are_placed_by_their_logarithm() -> None:
    rate = _share([1e-4, 1e-3, 1e-2])
    assert rate.at.tolist() == pytest.approx([-4, -3, -2])
    assert [text for _, text in rate.ticks] == ['1e-4', '1e-3', '1e-2']
    assert _share([0.1, 0.2, 0.3]).at.tolist() == [0.1, 0.2, 0.3] and _share([-1.0, 1, 100]).at[0] == -1


def test_choices_are_placed_in_order_numbers_last_and_named_shortly() -> None:
    assert _share(['off', None, True]).ticks == [(0, 'null'), (1, 'off'), (2, 'true')]
    assert [text for _, text in _share([10, 'x', 9, 1e-5, math.inf, 10**400]).ticks][-2:] == ['9', '10']
    assert _share([False, True] * 4).ticks == [(0, 'false'), (1, 'true')]
    [_, (_, long)] = _share(['a', 'x' * 300]).ticks
    assert len(long) == 13 and long.endswith('…')
    assert len(_share([f'name_{i}' for i in range(20)]).ticks) == 5 and math.isnan(_share(['a', 'b', 'c']).share)
    assert _share(['a', 'a', 'a']) is None and _share([1, 1, 1]) is None


def _configs(n: int) -> list[dict[str, Any]]:
    return [
        {'policy': {'learn': {'learning_rate': 10.0**i, 'adv_norm': 'off' if i % 2 else 'batch'}}} for i in range(n)
    ]


def test_settings_are_sorted_by_their_share_and_few_configs_say_nothing() -> None:
    keys = ['policy.learn.adv_norm', 'policy.learn.learning_rate', 'policy.learn.missing']
    found = importance_of(_configs(LEAST + 1), [*range(LEAST), None], keys, 'return')
    assert found is not None and found.n_config == LEAST
    [first, second] = found.slices
    assert first[:2] == ('policy.learn.learning_rate', pytest.approx(1)) and second[:2] == ('policy.learn.adv_norm', 0)
    assert importance_of(_configs(LEAST - 1), range(LEAST - 1), keys, 'return') is None
    assert importance_of(_configs(LEAST), [1.0] * LEAST, keys, 'return') is None  # equal
    assert importance_of(_configs(LEAST), range(LEAST), keys[2:], 'return') is None


@pytest.mark.long
def test_report_of_a_sweep_says_what_mattered_and_joins_the_seeds_of_a_trial() -> None:
    runs = []
    for i in range(LEAST):
        for seed in (0, 1):
            run = made_run([10, 20], [0, i + seed / 10], seed=seed, name=f'trial_{i:03d}_seed_{seed}')
            run.config['max_env_step'] = 1000 + i
            run.config['policy']['learn'] = {
                'clip_ratio': 0.1 + i / 100,
                'note': '<b>$\\frac$' if i else 'x',
                'file': f'/home/me/own{i}.py:Part',
            }
            runs.append(run)
    page = report(runs)
    words = page[: page.index('id="repeat"')]
    assert 'trial_000' in words and 'trial_000_seed' not in words and '2 runs, seeds 0 and 1' in words
    section = page[page.index('What mattered') : page.index('id="runs"')]
    assert f'of {LEAST} configs' in section and '<code>policy.learn.clip_ratio</code> 1.00' in section
    assert '<b>' not in section and '/home/me' not in section and 'ended early' not in section
    assert 'best quarter' in section
    assert words.index(f'trial_{LEAST - 1:03d}') < words.index('trial_000')  # the best trial is first
    assert 'What mattered' not in report(runs[: 2 * LEAST - 2])
    runs[0].config['env']['id'] = 'Other-v0'  # returns of two envs cannot be compared
    assert 'What mattered' not in report(runs)
