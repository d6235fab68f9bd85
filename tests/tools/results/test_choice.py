"""Which runs words name, and which of them may be compared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.real_runs import made_run, write_run
from zoo.core.errors import UserError
from zoo.tools.results.read import check_same_env, named_runs, sides_of


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """runs/ of the current folder: a with seeds 0 and 1, b with seed 0 at two learning rates."""
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        write_run(tmp_path / 'runs' / 'a' / f'1_seed{seed}', made_run([1], [seed], seed=seed, name='a'))
    for rate in (0.1, 0.2):
        write_run(tmp_path / 'runs' / 'b' / f'2_rate{rate}', made_run([1], [rate], name='b', learning_rate=rate))
    return tmp_path / 'runs'


@pytest.fixture
def in_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_name_in_the_folder_of_runs_will_do(runs: Path) -> None:
    assert [run.path for run in named_runs(['a'])] == [Path('runs/a/1_seed0'), Path('runs/a/1_seed1')]
    assert len(named_runs([runs / 'a' / '1_seed1', 'b/2_rate0.1'])) == 2
    with pytest.raises(UserError, match='no run at c'):
        named_runs(['a', 'c'])


@pytest.mark.parametrize(
    ('word', 'said'),
    [
        ('zzz', 'no run at zzz; there is no file or folder of that name'),
        ('z/y', 'no run at z/y; there is nothing at z'),
    ],
)
def test_a_word_that_names_nothing_is_said_once(word: str, said: str, in_empty: Path) -> None:
    with pytest.raises(UserError, match=f'^{said}$'):
        named_runs([word])


def test_a_folder_of_that_name_comes_first(runs: Path) -> None:
    write_run(Path('a') / 'here', made_run([1], [5]))
    assert [run.path for run in named_runs(['a'])] == [Path('a/here')]


def test_two_words_are_two_sides_even_of_one_config(runs: Path) -> None:
    sides = sides_of(['a/1_seed0', 'a/1_seed1'])
    assert {label: [run.seed for run in side] for label, side in sides.items()} == {
        'a (a/1_seed0)': [0],
        'a (a/1_seed1)': [1],
    }


def test_a_word_with_several_configs_is_several_sides(runs: Path) -> None:
    assert [len(side) for side in sides_of(['a', 'b']).values()] == [2, 1, 1]
    assert list(sides_of(['b'])) == ['b learning_rate=0.1', 'b learning_rate=0.2']


def test_more_words_are_grouped_by_their_config(runs: Path) -> None:
    sides = sides_of(['a/1_seed0', 'b/2_rate0.1', 'a/1_seed1'])
    assert {label: len(side) for label, side in sides.items()} == {'a': 2, 'b': 1}


@pytest.mark.parametrize(
    ('words', 'said'),
    [(['a'], 'all 2 runs are of one config, a;'), (['a/1_seed0'], 'the one run is of one config, a;')],
)
def test_one_side_is_nothing_to_compare(words: list[str], said: str, runs: Path) -> None:
    with pytest.raises(UserError, match=said):
        sides_of(words)


def test_runs_of_different_envs_are_refused_unless_they_are_allowed() -> None:
    runs = [made_run([1], [1]), made_run([1], [1], name='other', env='Acrobot-v1')]
    with pytest.raises(UserError, match='made/0 is of the env CartPole-v1 but .*other/0 of Acrobot-v1'):
        check_same_env(runs)
    check_same_env(runs, allow=True)
    check_same_env(runs[:1])


def test_last_is_the_newest_run(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level('INFO')
    os.utime(runs / 'b' / '2_rate0.1' / 'metrics.jsonl', (2e9, 2e9))
    assert [run.path for run in named_runs(['last'])] == [Path('runs/b/2_rate0.1')]
    assert caplog.messages == ['last is runs/b/2_rate0.1, the newest of 4 runs']


def test_repeated_runs_of_one_config_and_seed_are_one_sample(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level('INFO')
    for k, state in enumerate(('done', 'done', 'killed')):  # the newest that is done: the second
        write_run(runs / 'a' / f'2_again{k}', made_run([1], [k], seed=0, name='a'))
        (runs / 'a' / f'2_again{k}' / 'result.json').write_text(f'{{"state": "{state}"}}')
        os.utime(runs / 'a' / f'2_again{k}' / 'metrics.jsonl', (2e9 + k, 2e9 + k))
    assert [run.path.name for run in named_runs(['a'])] == ['1_seed1', '2_again1']
    left = 'runs/a/1_seed0, runs/a/2_again0, runs/a/2_again2'
    assert caplog.messages == [f'left out, since another run has the same config and seed: {left}']
    assert [len(side) for side in sides_of(['a', 'b']).values()] == [2, 1, 1]
