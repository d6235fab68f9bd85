"""The words of the command line: near misses, help, short forms; no torch is needed for any of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zoo.cli.command import main
from zoo.cli.parser import COMMANDS, make_parser, parse
from zoo.core.version import VERSION


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['trian', 'cartpole_ppo'], "no command 'trian'; did you mean zoo train?"),
        (['lst'], 'did you mean zoo list?'),
        (['cartpole_ppo'], 'to train it: zoo train cartpole_ppo'),
        (['my_env.py:MyEnv'], 'to train it: zoo train my_env.py:MyEnv'),
        (['frobnicate'], 'the commands are train, eval,'),
        (['list', 'env'], 'did you mean zoo list envs?'),
        (['list', 'frobs'], 'the kinds are configs, envs,'),
        (['train', 'cartpole_ppo', '--stepz', '3'], 'did you mean --steps?'),
        (['train', 'cartpole_ppo', '--learning-rate', '3'], 'KEY=VALUE: policy.learn.learning_rate=...'),
        (['train', 'cartpole_ppo', '--lr=3e-4'], 'KEY=VALUE: policy.learn.learning_rate=3e-4'),
        (['train', 'cartpole_ppo', '--total-timesteps', '3'], 'max_env_step=...'),
        (['train', 'cartpole_ppo', 'seed', '3'], "override 'seed' is not key=value"),
        (['eval', 'run', '--episode'], 'expected one argument'),
        (['check-env', 'CartPole-v1', '--fast'], "does not take '--fast'; its options are "),
        (['list', 'envs', 'seed=1'], "zoo list does not take 'seed=1'"),
        (['completion', 'tcsh'], "invalid choice: 'tcsh'"),
    ],
)
def test_a_wrong_word_is_one_line_with_the_right_one_and_exit_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == '' and err.count('\n') == 1 and err.startswith('zoo: error: ') and said in err, err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(['--version'])
    assert ended.value.code == 0 and capsys.readouterr().out == f'zoo {VERSION}\n'


@pytest.mark.parametrize('command', list(COMMANDS))
def test_help_of_each_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(['help', command])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and shown.startswith(f'usage: zoo {command} ') and '--log-level' in shown


def test_help_alone_is_that_of_zoo(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(['help'])
    assert all(command in capsys.readouterr().out for command in ['usage: zoo'])
    assert set(COMMANDS) == set(make_parser()._subparsers._group_actions[0].choices)  # type: ignore[union-attr, arg-type]


def test_the_page_has_every_command() -> None:
    page = (Path(__file__).parents[2] / 'docs' / 'commands.md').read_text()
    assert set(re.findall(r'^\| `zoo ([\w-]+)', page, re.MULTILINE)) == set(COMMANDS)


def test_overrides_stand_anywhere() -> None:
    args = parse(['train', 'seed=1', '--resume', 'run', 'a.b=2', '--json'])
    assert args.config == 'seed=1' and args.overrides == ['a.b=2'] and args.json
    args = parse(['eval', 'run', '--best', 'env.id=X', '--episodes', '3', 'env.window=2'])
    assert args.overrides == ['env.id=X', 'env.window=2'] and args.best and args.episodes == 3
