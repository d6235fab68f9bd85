"""`zoo init`: its file passes the check and trains; it never overwrites a file."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.tools.cli.commands import Zoo, run_in

QUICK = ['max_env_step=2_048', 'policy.eval.n_episode=2', 'logger.tensorboard=false', '--quiet']


@pytest.mark.long
@pytest.mark.parametrize(
    ('file', 'next_words'),
    [
        ('my_env.py', 'zoo train my_env.py:MyEnv'),
        ('my_game.py', 'zoo train my_game.py:MyGame'),
        ('my_policy.py', 'zoo train cartpole_ppo policy.type=my_ppo --import my_policy.py'),
        ('my_config.yaml', 'zoo train my_config.yaml'),
    ],
)
def test_the_next_commands_that_it_prints_work(file: str, next_words: str, in_tmp: Path, zoo: Zoo) -> None:
    said = zoo(f'init {file}')
    assert next_words in said.out
    for line in said.lines[1:]:
        words = line.partition(': ')[2].split()
        assert words[0] == 'zoo'
        done = run_in(*words[1:], *(QUICK if words[1] == 'train' else []), cwd=in_tmp)
        assert done.returncode == 0, done.stderr
        assert 'Warning' not in done.stderr and 'warning' not in done.stderr


@pytest.mark.parametrize('name', ['my env.py', 'my_env (1).py', "env's.py"])
def test_file_in_the_next_commands_is_quoted_for_a_shell(name: str, in_tmp: Path, zoo: Zoo) -> None:
    line = zoo('init', name).lines[-1]
    assert shlex.split(line.partition(': ')[2]) == ['zoo', 'train', f'{name}:MyEnv']
