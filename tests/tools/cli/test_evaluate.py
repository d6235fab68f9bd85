"""`zoo eval`: the best checkpoint, other envs, sampled actions, a row for each episode."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from zoo import serial_pipeline
from zoo.tools.cli.command import main

pytestmark = pytest.mark.slow

CONFIG: dict[str, Any] = {
    'max_env_step': 4_096,
    'env': {'id': 'CartPole-v1'},
    'policy': {
        'type': 'ppo',
        'collect': {'n_step': 64},
        'eval': {'eval_freq': 1_024, 'n_episode': 2, 'sets': {'short': {'max_episode_steps': 9}}},
    },
    'logger': {'console': 'off', 'tensorboard': False},
}


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('runs')
    return serial_pipeline({**CONFIG, 'logger': {**CONFIG['logger'], 'root': str(root)}}).run_dir


def _json(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(['eval', *words, '--json', '--episodes', '4']) == 0
    return json.loads(capsys.readouterr().out)


def test_best_is_the_best_checkpoint_of_the_run(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best, by_path = (
        _json(words, capsys)
        for words in ([str(run_dir), '--best'], [str(run_dir / 'checkpoints' / 'best.safetensors')])
    )
    assert best == by_path
    (run_dir.parent / 'empty').mkdir(exist_ok=True)
    assert main(['eval', str(run_dir.parent / 'empty'), '--best']) == 2
    assert 'has no best checkpoint' in capsys.readouterr().err


@pytest.mark.parametrize('word', ['run', 'runs', 'last', 'runs/run/new'])
def test_the_newest_run_goes_by_a_name(
    word: str, run_dir: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO')
    for k, name in enumerate(('old', 'new')):
        shutil.copytree(run_dir, Path('runs', 'run', name))
        os.utime(Path('runs', 'run', name, 'metrics.jsonl'), (2e9 + k, 2e9 + k))
    shutil.copytree(run_dir, Path('runs', 'run', 'no_checkpoint'), ignore=shutil.ignore_patterns('*.safetensors'))
    os.utime(Path('runs', 'run', 'no_checkpoint', 'metrics.jsonl'), (2e9 + 2, 2e9 + 2))
    assert _json([word], capsys) == _json(['runs/run/new'], capsys)
    said = [text for text in caplog.messages if 'newest' in text]
    assert said == ([] if word == 'runs/run/new' else [f'{word} is runs/run/new, the newest of 3 runs'])


def test_keys_of_the_env_and_sets_change_where_it_is_evaluated(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = _json([str(run_dir), 'env.max_episode_steps=7'], capsys)
    assert cut['return_mean'] == cut['length_mean'] == 7.0
    assert _json([str(run_dir), '--set', 'short'], capsys)['return_max'] == 9.0
    assert main(['eval', str(run_dir), '--set', 'none']) == 2
    assert 'it has short' in capsys.readouterr().err
    assert main(['eval', str(run_dir), 'policy.type=ppg']) == 2
    assert 'env.KEY=value' in capsys.readouterr().err
    assert main(['eval', str(run_dir), 'env.id=Pendulum-v1']) == 2
    assert 'the policy takes' in capsys.readouterr().err


def test_sampled_actions_are_others_and_the_same_with_the_same_seed(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sampled = _json([str(run_dir), '--stochastic'], capsys)
    assert sampled == _json([str(run_dir), '--stochastic'], capsys) != _json([str(run_dir)], capsys)


@pytest.mark.parametrize('suffix', ['csv', 'json', 'jsonl'])
def test_output_has_a_row_for_each_episode(
    suffix: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f'episodes.{suffix}'
    summary = _json([str(run_dir), '-o', str(file)], capsys)
    text = file.read_text()
    rows: list[dict[str, Any]] = {
        'csv': lambda: list(csv.DictReader(text.splitlines())),
        'json': lambda: json.loads(text),
        'jsonl': lambda: [json.loads(line) for line in text.splitlines()],
    }[suffix]()
    returns = [float(row['return']) for row in rows]
    assert len(returns) == 4 and sum(returns) / 4 == pytest.approx(summary['return_mean'], abs=1e-9)
    assert {'episode', 'return', 'length', 'cut'} <= set(rows[0])


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['-o', 'rows.txt'], 'must end in .csv, .json, .jsonl'),
        (['-o', 'nowhere/rows.csv'], 'there is no folder nowhere'),
        (['--max-step', '0'], '--max-step is 0'),
        (['--episodes', '0'], '--episodes is 0'),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_loaded(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(['eval', 'no_such_run', *words]) == 2
    assert said in capsys.readouterr().err


def test_max_step_cuts_episodes_off(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _json([str(run_dir), '--max-step', '5'], capsys)['episodes_cut'] == 4
