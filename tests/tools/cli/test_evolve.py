"""`zoo evolve`: what it prints, and words that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.cli.commands import Zoo
from tests.tools.population.small import LR, small, written

SPACE = f"'{LR}=log(1e-4,1e-2)'"


@pytest.mark.long
def test_evolve_prints_members_and_commands_that_work(zoo: Zoo, in_tmp: Path) -> None:
    written(in_tmp / 'small.yaml', small(Path('runs')))
    words = f'evolve small.yaml {SPACE} --pop 4 --every 64 --generations 2'
    said = zoo(words)
    assert said.lines[0].split() == ['member', 'return', 'env', 'steps', 'parent', 'learning_rate']
    assert len([line for line in said.lines if line.startswith('m0')]) == 4
    assert 'folder: runs/small_population' in said.lines
    data = zoo(f'{words} --json').data
    assert data['train'] == 'zoo train runs/small_population/best.yaml'
    assert data['train_schedule'] == 'zoo train runs/small_population/schedule.yaml'
    assert data['best']['life'] == said.lines[1].split()[0]
    zoo(data['train_schedule'].removeprefix('zoo ') + ' --quiet')
    assert zoo(f'eval {data["best"]["run_dir"]} --episodes 1 --json').data
    names = [row for row in zoo('runs runs/small_population/members --json').data['runs']]
    assert len(names) in (4, 5)


def test_population_in_place_of_a_run_is_refused(zoo: Zoo, in_tmp: Path) -> None:
    (in_tmp / 'p').mkdir()
    (in_tmp / 'p' / 'lineage.jsonl').touch()
    for words in ('train --resume p', 'train cartpole_ppo --run-dir p'):
        said = zoo(words, code=2)
        assert 'is p, a population: name a member, e.g. p/best, or continue it by the zoo evolve command' in said.err


@pytest.mark.parametrize(
    ('words', 'sentence'),
    [
        ('evolve', 'zoo evolve got no config and no --env'),
        (f'evolve cartpole_ppo {SPACE} --pop x', "--pop is 'x' but must be an integer >= 1; e.g. --pop 8"),
        (f'evolve cartpole_ppo {SPACE} --every 1e9', "--every is '1e9' but must be an integer >= 1"),
        (f'evolve cartpole_ppo {SPACE} --pop 1', 'a population of 1 has nothing to select from'),
        (f'evolve cartpole_ppo {SPACE} --every 10000000', 'no generation would end'),
        (f'evolve cartpole_ppo {SPACE} --callback nothing', 'is no '),
    ],
)
def test_words_that_no_population_takes_are_refused(zoo: Zoo, in_tmp: Path, words: str, sentence: str) -> None:
    said = zoo(words, code=2)
    assert sentence in said.err and list(in_tmp.iterdir()) == []
