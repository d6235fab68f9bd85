"""What mattered among many configs: shares worked by hand, and the pictures of a report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.real_runs import made_run
from zoo.tools.results.importance import LEAST, explained, mattered, tried
from zoo.tools.results.report import report

pytest.importorskip('matplotlib')


def test_share_of_a_choice_is_that_of_ranks_around_the_mean_of_each() -> None:
    # ranks 0 to 3 about means .5 and 2.5 leave 4 * .25 / (4 - 2) = .5 of 5 / 3: 1 - .3
    assert explained(np.array([0, 0, 1, 1]), np.array([1, 20, 30, 400]), is_choice=True) == pytest.approx(0.7)


def test_share_of_a_number_is_that_of_a_parabola_through_ranks() -> None:
    at = np.arange(6.0)
    assert explained(at, np.exp(at)) == pytest.approx(1)  # its order is all that counts
    # ranks 4.5, 2.5, .5, ... (less 2.5: 2, 0, -2, ...) and squares 6.25, 2.25, .25, ... (less their mean 35 / 12: 10/3, -2/3,
    # -8/3, ...): 24^2 / (112 / 3) of 16 is explained, 4/7 is left to 3 degrees of freedom, beside 16 to 5
    assert explained(at, np.array([9, 4, 1, 1, 4, 9])) == pytest.approx(1 - (4 / 7 / 3) / (16 / 5))
    assert explained(np.array([0.0, 1, 0, 1]), np.array([1.0, 2, 2, 1])) == 0  # two values: a line, and nothing
    assert explained(np.ones(5), at[:5]) == -1 and explained(at[:3], at[:3]) == 0


def test_a_setting_without_effect_has_about_the_share_of_luck() -> None:
    random = np.random.default_rng(0)
    shares = [explained(random.uniform(size=30), random.uniform(size=30)) for _ in range(200)]
    assert 0 < np.mean(shares) < 0.06 and np.mean(np.array(shares) == 0) > 0.5


def test_numbers_over_many_sizes_are_placed_by_their_logarithm() -> None:
    result = np.arange(3.0)
    of_rate = tried('rate', [1e-4, 1e-3, 1e-2], result)
    assert of_rate.is_log and of_rate.at.tolist() == pytest.approx([-4, -3, -2])
    assert [text for _, text in of_rate.ticks] == ['0.0001', '0.01']
    assert not tried('ratio', [0.1, 0.2, 0.3], result).is_log and not tried('x', [-1.0, 1, 100], result).is_log
    assert tried('norm', ['off', None, True], result).ticks == [(0, 'none'), (1, 'off'), (2, 'true')]


def _configs(n: int) -> list[dict[str, Any]]:
    return [
        {'policy': {'learn': {'learning_rate': 10.0**i, 'adv_norm': 'off' if i % 2 else 'batch'}}} for i in range(n)
    ]


def test_settings_are_sorted_by_their_share_and_few_configs_say_nothing() -> None:
    keys = ['policy.learn.adv_norm', 'policy.learn.learning_rate', 'policy.learn.missing']
    found = mattered(_configs(LEAST + 1), [*range(LEAST), None], keys, 'return')
    assert found is not None and found.n_config == LEAST
    [first, second] = found.slices
    assert first[:2] == ('policy.learn.learning_rate', pytest.approx(1)) and second[:2] == ('policy.learn.adv_norm', 0)
    assert mattered(_configs(LEAST - 1), range(LEAST - 1), keys, 'return') is None
    assert mattered(_configs(LEAST), [1.0] * LEAST, keys, 'return') is None  # all alike
    assert mattered(_configs(LEAST), range(LEAST), keys[2:], 'return') is None


def test_report_of_a_sweep_says_what_mattered_and_joins_the_seeds_of_a_trial() -> None:
    runs = []
    for i in range(LEAST):
        for seed in (0, 1):
            run = made_run([10, 20], [0, i + seed / 10], seed=seed)
            run.config.update(exp_name=f'trial_{i:03d}_seed_{seed}', max_env_step=1000 + i)
            run.config['policy']['learn'] = {'clip_ratio': 0.1 + i / 100, 'note': '<b>' if i else 'x'}
            runs.append(run)
    page = report(runs)
    words = page[: page.index('id="repeat"')]
    assert 'trial_000' in words and 'trial_000_seed' not in words and '2 runs, seeds 0 and 1' in words
    section = page[page.index('What mattered') : page.index('id="runs"')]
    assert f'each of {LEAST} configs' in section and '<code>policy.learn.clip_ratio</code> 1.00' in section
    assert '<b>' not in section
    assert words.index(f'trial_{LEAST - 1:03d}') < words.index('trial_000')  # the best one is first
    assert 'What mattered' not in report(runs[: 2 * LEAST - 2])
    runs[0].config['env']['id'] = 'Other-v0'  # returns of two envs are no two results
    assert 'What mattered' not in report(runs)
