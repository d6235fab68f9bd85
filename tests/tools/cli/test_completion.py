"""Completion: the code for each shell, and the words that the command completes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
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


def _request(line: str, tmp_path: Path) -> dict[str, str]:
    """The environment variables by which a shell asks for the completions of a line."""
    return {
        '_ARGCOMPLETE': '1',
        '_ARGCOMPLETE_IFS': '\n',
        '_ARGCOMPLETE_SUPPRESS_SPACE': '1',
        '_ARGCOMPLETE_STDOUT_FILENAME': str(tmp_path / 'completions'),
        'COMP_LINE': line,
        'COMP_POINT': str(len(line)),
        'COMP_TYPE': '9',
        'XDG_CACHE_HOME': str(tmp_path / 'cache'),
    }


def _words(tmp_path: Path) -> list[str]:
    return [word.strip() for word in (tmp_path / 'completions').read_text().split('\n')]


def _complete(line: str, tmp_path: Path) -> list[str]:
    """The completions that a shell gets for a line with the cursor at its end."""
    env = _request(line, tmp_path)
    assert run_python('-m', 'zoo', cwd=tmp_path, **env).returncode == 0
    return _words(tmp_path)


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
        ('zoo train --resume pend', 'pendulum'),
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


MARK = 'import pathlib\npathlib.Path("ran").touch()\nconfig = {}\n'


@pytest.mark.many
@pytest.mark.parametrize(
    'line',
    [
        'zoo train evil.py policy.learn.clip_r',
        'zoo train evil.py:Env policy.learn.clip_r',
        'zoo config ./evil.py policy.learn.clip_r',
        'zoo sweep evil.py policy.learn.clip_r',
        'zoo train --env evil.py:Env policy.learn.clip_r',
        'zoo train --import evil.py cartpole_ppo policy.learn.clip_r',
        'zoo train evil.yaml policy.learn.clip_r',
        'zoo train --resume evil.py policy.learn.clip_r',
    ],
)
def test_nothing_that_the_line_names_runs_before_enter(line: str, tmp_path: Path) -> None:
    (tmp_path / 'evil.py').write_text(MARK)
    code = 'evil:Env'
    (tmp_path / 'evil.yaml').write_text(
        f'env: {{id: "{code}", wrappers: ["{code}"]}}\npolicy: {{type: "{code}", model: {{type: "{code}"}}}}\n'
        f'callbacks: ["{code}"]\nstop: ["{code}"]\nlogger: {{sinks: ["{code}"]}}\n'
    )
    assert 'policy.learn.clip_ratio=' in _complete(line, tmp_path)
    assert not (tmp_path / 'ran').exists()


def test_keys_of_a_yaml_file_are_those_of_its_policy_and_its_own(tmp_path: Path) -> None:
    (tmp_path / 'mine.yaml').write_text('env: {id: X-v0, kwargs: {wind: 1}}\npolicy: {type: ppg}\n')
    assert _complete('zoo train mine.yaml policy.learn.aux_f', tmp_path) == ['policy.learn.aux_freq=']
    assert _complete('zoo train mine.yaml env.kwargs.w', tmp_path) == ['env.kwargs.wind=']


ODD = {
    'no list': '{"%s": {"stamp": %s, "words": 7}}',
    'no texts': '{"%s": {"stamp": %s, "words": [7, null]}}',
    'words are a text': '{"%s": {"stamp": %s, "words": "abc"}}',
    'deep': '[' * 100_000,
    'other bytes': '\udcff',
}


@pytest.mark.many
@pytest.mark.parametrize('odd', ODD)
def test_cache_of_other_content_is_computed_again(odd: str, tmp_path: Path) -> None:
    line = 'zoo train cartpole_ppo policy.learn.clip_r'
    assert _complete(line, tmp_path) == ['policy.learn.clip_ratio=']
    kept = tmp_path / 'cache' / 'zoo' / 'completions.json'
    stamp = json.dumps(json.loads(kept.read_text())['cartpole_ppo']['stamp'])
    text = ODD[odd] % ('cartpole_ppo', stamp) if '%s' in ODD[odd] else ODD[odd]
    kept.write_bytes(text.encode(errors='surrogateescape'))
    assert _complete(line, tmp_path) == ['policy.learn.clip_ratio=']


@pytest.mark.parametrize('odd', ['pipe', 'link'])
def test_cache_that_is_no_regular_file_is_not_read(odd: str, tmp_path: Path) -> None:
    kept = tmp_path / 'cache' / 'zoo' / 'completions.json'
    kept.parent.mkdir(parents=True)
    if odd == 'pipe':
        os.mkfifo(kept)
    else:
        kept.symlink_to('/dev/zero')
    assert _complete('zoo train cartpole_ppo policy.learn.clip_r', tmp_path) == ['policy.learn.clip_ratio=']


def test_run_whose_name_is_no_text_is_left_out(tmp_path: Path) -> None:
    (tmp_path / 'runs' / 'pendulum').mkdir(parents=True)
    os.mkdir(os.fsencode(tmp_path / 'runs') + b'/odd\xff')
    assert 'pendulum' in _complete('zoo eval pend', tmp_path) and 'last' in _complete('zoo eval la', tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ('line', 'found'),
    [
        ('zoo eval pend', 'pendulum'),
        ('zoo train cartpole_pp', 'cartpole_ppo'),
        ('zoo train cartpole_ppo policy.learn.clip_r', 'policy.learn.clip_ratio='),
        ('zoo train --env CartPole', 'CartPole-v1'),
    ],
)
def test_answer_from_the_cache_imports_no_library_that_takes_long(line: str, found: str, tmp_path: Path) -> None:
    (tmp_path / 'runs' / 'pendulum').mkdir(parents=True)
    _complete(line, tmp_path)
    (tmp_path / 'completions').unlink()
    words, env = [sys.executable, '-X', 'importtime', '-m', 'zoo'], {**os.environ, **_request(line, tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    imported = {row.rsplit('|', 1)[-1].strip() for row in done.stderr.splitlines()}
    assert done.returncode == 0 and found in _words(tmp_path) and {'zoo', 'argcomplete'} <= imported
    assert not {'torch', 'gymnasium', 'numpy', 'pydantic'} & imported
