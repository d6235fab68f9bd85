"""The picture of a population: the curves of its lives, and the values of the best member's ancestors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.cli.commands import Zoo
from tests.tools.cli.conftest import in_tmp, zoo  # noqa: F401 (fixtures)
from zoo.core.errors import UserError
from zoo.tools.results.lineage import NAME, Beginning, Birth, Births, Generation, Lineage, StageResult
from zoo.tools.results.lineage_figure import drawn_keys, life_curves, lineage_figure
from zoo.tools.results.plot import COLORS

pytest.importorskip('matplotlib')
RATE = 'policy.learn.learning_rate'


def born(place: int, generation: int, rate: str, parent: str | None = None, env_step: int = 0) -> Birth:
    life = f'm{place:02d}_g{generation:02d}'
    values = {RATE: rate, 'buffer.type': 'x'}
    return Birth(place=place, life=life, parent=parent, env_step=env_step, seed=0, kind='', values=values)


def result(place: int, life: str, fitness: float | None, env_step: int) -> StageResult:
    return StageResult(place=place, life=life, fitness=fitness, env_step=env_step, state='done')


def example(folder: Path) -> Lineage:
    """Two members; after the first generation the second is replaced by a copy of the first, which then is best."""
    lineage = Lineage(folder / NAME)
    words = {'spaces': {RATE: 'log(1e-05,0.1)', 'buffer.type': 'choice(x,y)'}}
    lineage.add(Beginning(seed=0, n_member=2, words=words))
    lineage.add(Births(generation=0, children=[born(0, 0, '0.01'), born(1, 0, '0.1')]))
    lineage.add(Generation(generation=0, members=[result(0, 'm00_g00', 3.0, 10), result(1, 'm01_g00', 2.0, 11)]))
    lineage.add(Births(generation=1, children=[born(1, 1, '0.008', 'm00_g00', 10)]))
    lineage.add(Generation(generation=1, members=[result(0, 'm00_g00', 4.0, 20), result(1, 'm01_g01', 6.0, 21)]))
    return lineage


def test_curve_of_a_copy_begins_at_the_fitness_of_its_parent(tmp_path: Path) -> None:
    curves = {curve.birth.life: curve.points for curve in life_curves(example(tmp_path))}
    assert curves == {
        'm00_g00': [(10, 3.0), (20, 4.0)],
        'm01_g00': [(11, 2.0)],
        'm01_g01': [(10, 3.0), (21, 6.0)],
    }


def test_picture_has_a_coloured_line_for_each_ancestor_of_the_best_and_values_on_their_scale(tmp_path: Path) -> None:
    lineage = example(tmp_path)
    assert drawn_keys(lineage) == [RATE]  # the other one has no numbers
    fitness, rate = lineage_figure(tmp_path).axes
    lines = [(line.get_color(), line.get_xydata().tolist()) for line in fitness.lines]
    color = COLORS['light'][0]
    assert [points for own, points in lines if own == color] == [[[10, 3], [20, 4]], [[10, 3], [21, 6]]]
    assert len(lines) == 3 and rate.get_yscale() == 'log'
    values = [line.get_xydata().tolist() for line in rate.lines if line.get_color() == color]
    # the parent's rate up to the copy, the change, the copy's rate
    assert values == [[[10, 0.01], [10, 0.008]], [[0, 0.01], [10, 0.01]], [[10, 0.008], [21, 0.008]]]
    assert fitness.get_title('left') == f'{tmp_path.name}: 2 members, 2 generations, 3 runs'


def test_command_draws_a_population_by_its_folder(zoo: Zoo, in_tmp: Path) -> None:  # noqa: F811
    example(in_tmp / 'runs' / 'p')
    assert zoo('plot runs/p -o lineage.svg').lines == ['lineage.svg: lineage of runs/p']
    assert '<svg' in (in_tmp / 'lineage.svg').read_text()


def test_population_without_a_generation_is_refused(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path / NAME)
    lineage.add(Beginning(seed=0, n_member=2, words={}))
    with pytest.raises(UserError, match='has no generation with a fitness yet, so there is nothing to draw'):
        lineage_figure(tmp_path)
