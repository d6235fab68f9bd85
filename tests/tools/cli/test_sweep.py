"""`zoo sweep`: its command line, its table, its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zoo.tools.cli.command import main

TINY = [
    'cartpole_ppo',
    '--steps',
    '2_048',
    'policy.eval.eval_freq=1_024',
    'policy.eval.n_episode=1',
    'policy.eval.stop_value=9',
]
QUICK = [*TINY, 'logger.tensorboard=false', 'policy.learn.learning_rate=log(1e-4,1e-2)']


@pytest.mark.slow
def test_table_ends_with_the_command_that_trains_the_best(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip('optuna')
    assert main(['sweep', *QUICK, '--n', '2']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ['trial', 'state', 'learning_rate', 'return', 'steps', 'to', '9', 'seconds']
    assert [line.split()[1] for line in lines[1:3]] == ['complete', 'complete']
    command = lines[-1].partition('train the best: zoo ')[2].split()
    assert main([*command, 'logger.console=off', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['env_step'] <= 2_048
    assert main(['sweep', *QUICK, '--n', '2', '--json']) == 0
    data = json.loads(capsys.readouterr().out)
    assert [trial['number'] for trial in data['trials']] == [int(line.split()[0]) for line in lines[1:3]]
    assert data['train'] == ' '.join(['zoo', *command]) and data['n_left'] == 0


@pytest.mark.soak
def test_env_of_a_file_is_swept_in_two_processes(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip('optuna')
    (in_tmp / 'my_pole.py').write_text('import gymnasium\ndef make():\n    return gymnasium.make("CartPole-v1")\n')
    words = ['my_pole.py:make', *QUICK[1:], '--n', '2', '--jobs', '2', '--json']
    assert main(['sweep', *words]) == 0
    assert [trial['state'] for trial in json.loads(capsys.readouterr().out)['trials']] == ['complete'] * 2
