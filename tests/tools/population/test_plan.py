"""Plans of populations: derived sizes and defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tools.population.small import SPACES, small
from zoo.tools.population.plan import make_population_plan
from zoo.tools.sweep.spaces import DEFAULT_SPACES


@pytest.mark.parametrize(
    ('options', 'every', 'n_generation', 'max_env_step'),
    [
        (dict(), 64, 10, 640),  # a 20th of 640 is half a rollout of 64
        (dict(every=65), 128, 5, 640),
        (dict(every=128, generations=2), 128, 2, 640),
        (dict(every=128, generations=7), 128, 7, 896),  # longer than the config: 7 * 128
    ],
)
def test_sizes_follow_from_those_given(
    options: dict[str, Any], every: int, n_generation: int, max_env_step: int, tmp_path: Path
) -> None:
    plan = make_population_plan(small(tmp_path), SPACES, **options)
    assert (plan.every, plan.n_generation, plan.max_env_step) == (every, n_generation, max_env_step)


def test_rules_and_spaces_have_defaults(tmp_path: Path) -> None:
    pbt = make_population_plan(small(tmp_path), [])
    evolution = make_population_plan(small(tmp_path), [], how='evolution', mutate='activation=.1')
    assert (pbt.selection.name, dict(pbt.selection.options)) == ('truncation', {'quantile': 0.25})
    assert (evolution.selection.name, dict(evolution.selection.options)) == ('tournament', {'size': 2})
    assert list(pbt.spaces) == list(DEFAULT_SPACES['ppo']) and pbt.n_member == 8
    assert (evolution.weights['activation'], evolution.weights['none']) == (0.1, 0.4)
    assert pbt.folder == tmp_path / 'small_population'
    assert not pbt.folder.exists()
