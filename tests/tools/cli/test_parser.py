"""The parser of the command line: near misses, help, short forms. It needs no torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zoo.core import VERSION
from zoo.tools.cli.command import main
from zoo.tools.cli.parser import COMMANDS, parse


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


def test_overrides_stand_anywhere() -> None:
    args = parse(['train', 'seed=1', '--resume', 'run', 'a.b=2', '--json'])
    assert args.config == 'seed=1' and args.overrides == ['a.b=2'] and args.json
    args = parse(['eval', 'run', '--best', 'env.id=X', '--episodes', '3', 'env.window=2'])
    assert args.overrides == ['env.id=X', 'env.window=2'] and args.best and args.episodes == 3
