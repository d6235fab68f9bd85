"""Completion: the shells' code, and what it asks of the command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zoo.tools.cli.command import main

pytestmark = pytest.mark.slow


@pytest.mark.parametrize('shell', ['bash', 'zsh', 'fish'])
def test_code_of_each_shell_names_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['completion', shell]) == 0
    code = capsys.readouterr().out
    assert '_ARGCOMPLETE' in code and 'zoo' in code
    if shutil.which(shell):
        assert subprocess.run([shell, '-n'], input=code, text=True, capture_output=True, timeout=60).returncode == 0


def _complete(line: str, tmp_path: Path) -> list[str]:
    """What a shell is given for a line with the cursor at its end."""
    out = tmp_path / 'completions'
    env = {
        **os.environ,
        '_ARGCOMPLETE': '1',
        '_ARGCOMPLETE_IFS': '\n',
        '_ARGCOMPLETE_SUPPRESS_SPACE': '1',
        '_ARGCOMPLETE_STDOUT_FILENAME': str(out),
        'COMP_LINE': line,
        'COMP_POINT': str(len(line)),
        'COMP_TYPE': '9',
    }
    subprocess.run([sys.executable, '-m', 'zoo'], env=env, cwd=tmp_path, timeout=60, check=True)
    return [word.strip() for word in out.read_text().split('\n')]


@pytest.mark.long
@pytest.mark.parametrize(
    ('line', 'found'),
    [
        ('zoo tr', 'train'),
        ('zoo list pol', 'policies'),
        ('zoo train cartpole_pp', 'cartpole_ppo'),
        ('zoo train cartpole_ppo policy.learn.clip_r', 'policy.learn.clip_ratio='),
        ('zoo train --env CartPole', 'CartPole-v1'),
        ('zoo eval run --stoch', '--stochastic'),
    ],
)
def test_words_are_completed(line: str, found: str, tmp_path: Path) -> None:
    assert found in _complete(line, tmp_path)
