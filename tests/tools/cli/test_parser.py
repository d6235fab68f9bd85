"""The words of the command line: near misses, help, short forms; no torch is needed for any of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zoo.core.version import VERSION
from zoo.tools.cli.command import main
from zoo.tools.cli.parser import COMMANDS, parse


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['--quiet'], '--quiet names no command'),
        (['train', 'cartpole_ppo', '--policy.learn.clip_ratio=.1'], 'KEY=VALUE: policy.learn.clip_ratio=.1'),
        (['config', 'CartPole-v1'], 'zoo config --env CartPole-v1'),
        (['trian', 'cartpole_ppo'], "no command 'trian'; did you mean zoo train?"),
        (['lst'], 'did you mean zoo list?'),
        (['tune', 'cartpole_ppo'], "no command 'tune'; did you mean zoo sweep?"),
        (['optimize'], 'did you mean zoo sweep?'),
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
    words = ' '.join(shown.split())
    assert 'e.g. --import my_policy.py' in words and ('--metric NAME' not in words or 'e.g. --metric ' in words)


def test_help_alone_is_that_of_zoo(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(['help'])
    shown = capsys.readouterr().out
    assert all(f'\n    {command}' in shown for command in COMMANDS) and 'first steps:' in shown


def test_the_page_has_every_command() -> None:
    page = (Path(__file__).parents[3] / 'docs' / 'commands.md').read_text()
    assert set(re.findall(r'^\| `zoo ([\w-]+)', page, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize(
    'words',
    [
        ['--quiet', 'train', 'cartpole_ppo', 'seed=1'],
        ['-q', '--json', '--log-level', 'debug', 'train', 'cartpole_ppo'],
        ['--log-level=error', '--import', 'math', 'train', 'cartpole_ppo'],
    ],
)
def test_shared_options_may_stand_before_the_command(words: list[str]) -> None:
    args = parse(words)
    assert (args.command, args.config) == ('train', 'cartpole_ppo')
    assert args.quiet == (words[0] in ('--quiet', '-q')) and args.imports == (['math'] if 'math' in words else [])
    assert args.log_level == {'-q': 'debug', '--log-level=error': 'error'}.get(words[0])


def test_a_command_alone_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    for command, needed in (('eval', 'CHECKPOINT'), ('check-env', 'ENV'), ('convert', 'FILE'), ('init', 'FILE')):
        assert main([command]) == 2
        assert f'the following arguments are required: {needed};' in capsys.readouterr().err


def test_overrides_stand_anywhere() -> None:
    args = parse(['train', 'seed=1', '--resume', 'run', 'a.b=2', '--json'])
    assert args.config == 'seed=1' and args.overrides == ['a.b=2'] and args.json
    args = parse(['eval', 'run', '--best', 'env.id=X', '--episodes', '3', 'env.window=2'])
    assert args.overrides == ['env.id=X', 'env.window=2'] and args.best and args.episodes == 3
