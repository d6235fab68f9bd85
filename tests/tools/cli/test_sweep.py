"""`zoo sweep`: its command line, its table, its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.cli.commands import Zoo

TINY = '--steps 2_048 policy.eval.eval_freq=1_024 policy.eval.n_episode=1 policy.eval.stop_value=9'
QUICK = f'{TINY} logger.tensorboard=false policy.learn.learning_rate=log(1e-4,1e-2)'.split()


@pytest.mark.long
@pytest.mark.slow
def test_table_ends_with_the_command_that_trains_the_best(in_tmp: Path, zoo: Zoo) -> None:
    pytest.importorskip('optuna')
    lines = zoo('sweep cartpole_ppo --n 2', *QUICK).lines
    columns = ['trial', 'state', 'learning_rate', 'return', 'steps', 'to', '9', 'seconds', 'CPU', 's', 'MB']
    assert lines[0].split() == columns
    assert [line.split()[1] for line in lines[1:3]] == ['complete', 'complete']
    command = lines[-1].partition('train the best: zoo ')[2]
    assert zoo(f'{command} logger.console=off --json').data['env_step'] <= 2_048
    data = zoo('sweep cartpole_ppo --n 2 --json', *QUICK).data
    assert [trial['number'] for trial in data['trials']] == [int(line.split()[0]) for line in lines[1:3]]
    assert data['train'] == f'zoo {command}' and data['n_left'] == 0


@pytest.mark.soak
def test_env_of_a_file_is_swept_in_two_processes(in_tmp: Path, zoo: Zoo) -> None:
    pytest.importorskip('optuna')
    (in_tmp / 'my_pole.py').write_text('import gymnasium\ndef make():\n    return gymnasium.make("CartPole-v1")\n')
    trials = zoo('sweep my_pole.py:make --n 2 --jobs 2 --json', *QUICK).data['trials']
    assert [trial['state'] for trial in trials] == ['complete'] * 2
