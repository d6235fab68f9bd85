"""Hooks of a population: called at its events, checked for names that nothing would call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tools.population.small import LR, SPACES, small
from zoo.config.section import ConfigError
from zoo.core.errors import CallbackError
from zoo.tools.population.evolution import PopulationHooks, evolve
from zoo.tools.population.mutation import Mutation


class Watch:
    """Notes all events, and gives each child a learning rate of 5e-4."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_generation(self, population: Any, generation: int) -> None:
        self.events.append(('generation', generation, len(population.members)))

    def on_mutation(self, member: Any, mutation: Mutation) -> Mutation:
        self.events.append(('mutation', member.place))
        return mutation._replace(overrides=(f'{LR}=0.0005',))

    def on_fork(self, parent: Path, child: Path) -> None:
        self.events.append(('fork', parent.name, child.name))

    def on_end(self, population: Any) -> None:
        self.events.append(('end', population.best.life))


class Veto:
    def on_mutation(self, member: Any, mutation: Mutation) -> None:
        return None


@pytest.mark.long
def test_hooks_are_called_in_order_and_may_change_a_mutation(tmp_path: Path) -> None:
    watch = Watch()
    population = evolve(small(tmp_path), SPACES, pop=4, every=64, generations=2, callbacks=[watch])
    child = next(birth for birth in population.lineage.lives.values() if birth.parent is not None)
    assert population.best is not None
    assert watch.events == [
        ('generation', 0, 4),
        ('mutation', int(child.parent[1:3])),
        ('fork', child.parent, child.life),
        ('generation', 1, 4),
        ('end', population.best.life),
    ]
    assert child.values[LR] == '0.0005'


@pytest.mark.long
def test_veto_leaves_a_copy_with_the_values_of_its_parent(tmp_path: Path) -> None:
    lineage = evolve(small(tmp_path), SPACES, pop=4, every=64, generations=2, callbacks=[Veto]).lineage
    child = next(birth for birth in lineage.lives.values() if birth.parent is not None)
    assert (child.kind, child.changed) == ('none', {})
    assert child.values == lineage.lives[child.parent].values and child.seed != lineage.lives[child.parent].seed


class Misspelt:
    def on_generations(self, population: Any, generation: int) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ('hook', 'sentence'),
    [
        (Misspelt, "has a method 'on_generations', which no population calls: did you mean on_generation?"),
        (object(), 'has none of the methods on_generation, on_mutation, on_fork, on_end; give it one'),
        ('Watch', "--callback is 'Watch', which is no 'module:Class' and no 'path/file.py:Class'"),
    ],
)
def test_hook_that_nothing_would_call_is_refused(hook: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        PopulationHooks([hook])
    assert sentence in str(error.value)


def test_error_of_a_hook_names_it() -> None:
    class Broken:
        def on_end(self, population: Any) -> None:
            raise ValueError('by hand')

    with pytest.raises(CallbackError, match=r'raised in on_end ValueError: by hand \(.*test_evolution_hooks.py'):
        PopulationHooks([Broken()]).tell('on_end', None)
