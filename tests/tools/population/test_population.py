"""A population as data, with and without training."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import zoo
from tests.tools.population.small import SPACES, small
from zoo.core.errors import UserError
from zoo.tools.population.population import Population, env_step_words
from zoo.tools.results.lineage import MEMBERS


@pytest.mark.long
def test_population_is_read_from_its_folder(tmp_path: Path) -> None:
    trained = zoo.population.evolve(small(tmp_path), SPACES, pop=4, every=64, generations=2)
    read = zoo.population.Population.open(trained.folder)
    assert read.members == trained.members == read.generation(1) and read.best == trained.best
    assert [member.place for member in read.generation(0)] == [0, 1, 2, 3]
    best = read.best
    assert best is not None and best.fitness == max(member.fitness or 0 for member in read.members)
    assert zoo.load_policy(best.run_dir).act  # an ordinary run
    assert repr(read) == f"Population('{read.folder}', 2 generations, best {best.life} with {best.fitness:.5g})"


@pytest.mark.long
def test_lives_without_a_folder_are_left_out_of_evaluation_and_seconds(tmp_path: Path) -> None:
    population = zoo.population.evolve(small(tmp_path), SPACES, pop=4, every=64, generations=2)
    whole = env_step_words(population)
    gone = next(life for life in population.lineage.lives if life not in population.lineage.at_places)
    shutil.rmtree(population.folder / MEMBERS / gone)
    without = env_step_words(population)
    assert 'without a folder' not in whole
    assert without.split(',')[0] == whole.split(',')[0]  # the lineage has the env steps of training
    assert without.endswith('; runs without a folder, which the last two numbers leave out: 1')


def test_folder_of_no_population_is_refused(tmp_path: Path, finished: Path) -> None:
    for folder in (finished, tmp_path / 'none'):
        with pytest.raises(
            UserError, match='is no population: it has no lineage.jsonl; name the folder that zoo evolve'
        ):
            Population.open(folder)
