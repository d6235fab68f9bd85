"""Plans of populations: derived sizes and defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tools.population.small import LR, SPACES, small
from zoo.config.section import ConfigError, value_at
from zoo.run.config import resolve_config
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


def test_section_of_a_config_has_the_words_and_arguments_count_first(tmp_path: Path) -> None:
    section = dict(
        members=6, every=128, how='evolution', spaces={LR: 'log(1e-4,1e-2)', 'policy.learn.clip_ratio': '{.1,.2}'}
    )
    config = small(tmp_path, population=section)
    plan = make_population_plan(config, [f'{LR}=0.001'], pop=5)
    assert (plan.n_member, plan.every, plan.selection.name) == (5, 128, 'tournament')
    assert list(plan.spaces) == ['policy.learn.clip_ratio'] and value_at(plan.cfg, LR) == 0.001
    assert 'population' not in plan.source
    with pytest.raises(ConfigError, match=r'population.members is 0 .* must be an integer >= 1'):
        make_population_plan(small(tmp_path, population=dict(members=0)), [])
    with pytest.raises(ConfigError, match='population.memberz'):
        make_population_plan(small(tmp_path, population=dict(memberz=3)), [])


def test_run_refuses_the_section_and_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'population.*`zoo evolve CONFIG .* trains a population of runs'):
        resolve_config(small(tmp_path, population=dict(members=6)))
