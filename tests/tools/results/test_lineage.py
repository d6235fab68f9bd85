"""The file of a population: what is written is read, a cut line is dropped, others are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from zoo.core.errors import UserError
from zoo.tools.results.lineage import NAME, Beginning, Birth, Births, Generation, Lineage, StageResult, is_population


def born(life: str, parent: str | None = None, env_step: int = 0) -> Birth:
    place = int(life[1:3])
    return Birth(place=place, life=life, parent=parent, env_step=env_step, seed=place, kind='', values={'a.b': '1'})


def results(lives: list[str], *fitness: float | None, env_step: int = 10) -> list[StageResult]:
    return [
        StageResult(place=place, life=life, fitness=value, env_step=env_step, state='done')
        for place, (life, value) in enumerate(zip(lives, fitness, strict=True))
    ]


def example(folder: Path) -> Lineage:
    """Two generations of three members, of which the second selection replaces the last one by a child of the first."""
    lineage = Lineage(folder / NAME)
    lineage.add(Beginning(seed=1, n_member=3, words={'every': 10}))
    lineage.add(Births(generation=0, children=[born(f'm0{place}_g00') for place in range(3)]))
    lineage.add(Generation(generation=0, members=results(['m00_g00', 'm01_g00', 'm02_g00'], 3.0, 2.0, None)))
    lineage.add(Births(generation=1, children=[born('m02_g01', 'm00_g00', 10)]))
    lineage.add(
        Generation(generation=1, members=results(['m00_g00', 'm01_g00', 'm02_g01'], 3.0, 5.0, 5.0, env_step=20))
    )
    return lineage


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = example(tmp_path)
    read = Lineage.read(tmp_path)
    assert vars(read) == vars(written) and is_population(tmp_path)
    assert read.at_places == ['m00_g00', 'm01_g00', 'm02_g01']
    assert [birth.life for birth in read.ancestors('m02_g01')] == ['m00_g00', 'm02_g01']
    assert (read.env_step_of('m02_g00'), read.env_step_of('m02_g01')) == (10, 20)
    assert read.best_place() == 1  # of two equal ones the first
    result = read.result_of('m02_g00')
    assert result is not None and result.fitness is None


def test_line_that_was_cut_off_is_dropped_and_replaced(tmp_path: Path) -> None:
    whole = example(tmp_path / 'whole').path.read_bytes()
    lines = whole.splitlines(keepends=True)
    (tmp_path / NAME).write_bytes(b''.join(lines[:4]) + lines[4][:30])
    lineage = Lineage.read(tmp_path)
    assert len(lineage.generations) == 1 and lineage.n_births == 2
    lineage.add(Generation(generation=1, members=results(lineage.at_places, 3.0, 5.0, 5.0, env_step=20)))
    assert (tmp_path / NAME).read_bytes() == whole


@pytest.mark.parametrize(
    ('old', 'new', 'line'),
    [
        (b'"seed": 1,', b'"seed": -1,', 1),
        (b'm01_g00', b'../../etc', 2),
        (b'"generation": 1', b'"generation": 3', 4),
        (b'"parent": "m00_g00"', b'"parent": "m07_g00"', 4),
        (b'"fitness": 2.0', b'"fitness": NaN', 3),
        (b'{"event": "begin"', b'{"event": "end"', 1),
    ],
)
def test_line_that_no_population_writes_is_refused(old: bytes, new: bytes, line: int, tmp_path: Path) -> None:
    path = example(tmp_path).path
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(UserError, match=f'has a line {line} that no population writes; name another folder'):
        Lineage.read(tmp_path)
