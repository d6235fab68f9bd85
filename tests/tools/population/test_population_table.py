"""The table of members, and the env steps that a population took."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.population.small import LR, SPACES, small
from zoo.tools.population.evolution import evolve
from zoo.tools.population.population import env_step_words, member_rows


@pytest.mark.long
def test_table_has_the_best_member_first_and_steps_are_counted_once(tmp_path: Path) -> None:
    population = evolve(small(tmp_path), SPACES, pop=4, every=64, generations=2)
    heads, *table = member_rows(population)
    assert heads == ('member', 'return', 'env steps', 'parent', 'learning_rate', 'epoch_per_collect')
    best = population.best
    assert best is not None and table[0][0] == best.life and table[0][1] == f'{best.fitness:.5g}'
    assert [row[0] for row in table] == [
        member.life for member in sorted(population.members, key=lambda member: -(member.fitness or 0))
    ]
    assert table[0][4] == best.values[LR]
    # each of 4 members trains 2 rollouts of 64 env steps, less those that only reset an env
    n_step = int(env_step_words(population).split(' ')[0])
    assert 4 * 2 * 64 * 0.8 < n_step <= 4 * 2 * 64
    assert f'of training of {len(population.lineage.lives)} runs in all' in env_step_words(population)
