"""`zoo fork`: the new folder, the command that trains it, and words that it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.tools.cli.commands import Zoo


@pytest.mark.slow
def test_fork_prints_a_command_that_trains_it(zoo: Zoo, in_tmp: Path, finished: Path) -> None:
    said = zoo(f'fork {finished} -o new learning_rate=5e-4 seed=3 --json')
    data = said.data
    assert (data['run_dir'], data['checkpoint']) == ('new', 'new/checkpoints/step_000000256.safetensors')
    record = json.loads((in_tmp / 'new' / 'fork.json').read_text())
    assert record['changed'] == 'seed 0 -> 3, policy.learn.learning_rate 0.001 -> 0.0005'
    again = zoo(data['train'].removeprefix('zoo '), 'max_env_step=320', '--json').data
    assert (again['run_dir'], again['env_step']) == (str(in_tmp / 'new'), 320)


@pytest.mark.slow
def test_resume_with_a_run_dir_takes_the_names_of_runs(zoo: Zoo, in_tmp: Path, finished: Path) -> None:
    shutil.copytree(finished, in_tmp / 'runs' / 'mine' / 'run')
    data = zoo('train --resume mine --run-dir new max_env_step=320 --trust --json').data
    assert (data['run_dir'], data['env_step']) == (str(in_tmp / 'new'), 320)


@pytest.mark.parametrize(
    ('words', 'sentence'),
    [
        ('fork RUN', 'zoo fork got no folder for the new run; name one with -o, e.g. -o runs/my_fork'),
        ('fork RUN -o new learning_rate=-1', 'policy.learn.learning_rate is -1'),
        ('fork none -o new', 'does not exist'),
        ('train --resume RUN --run-dir RUN', 'the run to resume and its new folder are both '),
    ],
)
def test_words_that_no_fork_takes_are_refused(
    zoo: Zoo, in_tmp: Path, finished: Path, words: str, sentence: str
) -> None:
    said = zoo(words.replace('RUN', str(finished)), code=2)
    assert sentence in said.err and not (in_tmp / 'new').exists()
