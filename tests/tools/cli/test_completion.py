"""Completion: the code for each shell, and the words that the command completes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.forked import run_python
from tests.tools.cli.commands import Zoo

pytestmark = pytest.mark.slow


@pytest.mark.parametrize('shell', ['bash', 'zsh', 'fish'])
def test_code_of_each_shell_names_the_command(shell: str, zoo: Zoo) -> None:
    code = zoo(f'completion {shell}').out
    assert '_ARGCOMPLETE' in code and 'zoo' in code
    if shutil.which(shell):
        assert subprocess.run([shell, '-n'], input=code, text=True, capture_output=True, timeout=60).returncode == 0


def _complete(line: str, tmp_path: Path) -> list[str]:
    """The completions that a shell gets for a line with the cursor at its end."""
    out = tmp_path / 'completions'
    env = {
        '_ARGCOMPLETE': '1',
        '_ARGCOMPLETE_IFS': '\n',
        '_ARGCOMPLETE_SUPPRESS_SPACE': '1',
        '_ARGCOMPLETE_STDOUT_FILENAME': str(out),
        'COMP_LINE': line,
        'COMP_POINT': str(len(line)),
        'COMP_TYPE': '9',
        'XDG_CACHE_HOME': str(tmp_path / 'cache'),
    }
    assert run_python('-m', 'zoo', cwd=tmp_path, **env).returncode == 0
    return [word.strip() for word in out.read_text().split('\n')]


@pytest.mark.parametrize(
    ('line', 'found'),
    [
        ('zoo tr', 'train'),
        ('zoo list pol', 'policies'),
        ('zoo train cartpole_pp', 'cartpole_ppo'),
        ('zoo train cartpole_ppo policy.learn.clip_r', 'policy.learn.clip_ratio='),
        ('zoo train --env CartPole', 'CartPole-v1'),
        ('zoo eval run --stoch', '--stochastic'),
        ('zoo eval pend', 'pendulum'),
        ('zoo compare la', 'last'),
        ('zoo init --kind po', 'policy'),
    ],
)
def test_words_are_completed(line: str, found: str, tmp_path: Path) -> None:
    (tmp_path / 'runs' / 'pendulum').mkdir(parents=True)
    assert found in _complete(line, tmp_path)


def test_keys_are_kept_until_a_file_that_they_are_from_changes(tmp_path: Path) -> None:
    config = tmp_path / 'mine.yaml'
    config.write_text('env: {id: CartPole-v1}')
    line = f'zoo train {config} policy.learn.sur'
    assert _complete(line, tmp_path) == ['policy.learn.surrogate=']

    kept = tmp_path / 'cache' / 'zoo' / 'completions.json'
    kept.write_text(kept.read_text().replace('policy.learn.surrogate', 'policy.learn.surely'))
    assert _complete(line, tmp_path) == ['policy.learn.surely=']  # from the cache, not computed again

    os.utime(config, ns=(2**62, 2**62))
    assert _complete(line, tmp_path) == ['policy.learn.surrogate=']
    for odd in ('[1]', json.dumps({str(config): 1}), json.dumps({str(config): {}})):
        kept.write_text(odd)
        assert _complete(line, tmp_path) == ['policy.learn.surrogate=']
