"""`zoo check-env`: the report as lines or JSON, keys of the env, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tools.cli.test_train import ENV
from zoo.tools.cli.command import main

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def line_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'line.py').write_text(ENV)


@pytest.mark.parametrize(
    'words',
    [
        ['--kwargs', 'size=4', 'line.py:make', 'env.window=2'],
        ['line.py:make', 'env.window=2', '--kwargs', 'size=4'],
        ['line.py:make', 'env.kwargs.size=4', 'env.window=2'],
    ],
)
def test_keys_of_the_env_may_stand_anywhere(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['check-env', *words, '--json', '--steps', '50']) == 0
    report = json.loads(capsys.readouterr().out)
    assert report['env'].endswith('line.py:make') and report['problems'] == []
    assert '(2, 2)' in json.dumps(report['facts']) or '[2, 2]' in json.dumps(
        report['facts']
    )  # two observations of two numbers


@pytest.mark.parametrize(
    ('words', 'code', 'said'),
    [
        (['line.py:Nothing'], 2, 'Nothing'),
        (['line.py:make', '--kwargs', 'colour=1'], 2, "env.kwargs has 'colour' but"),
        (['line.py:make', 'policy.type=ppg'], 2, 'env.KEY=value'),
        (['line.py:make', '--steps', '0'], 2, 'wanted 1 or more'),
        (['line.py'], 2, 'line.py:Line or line.py:make'),
    ],
)
def test_mistakes_are_one_line(words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['check-env', *words]) == code
    out, err = capsys.readouterr()
    assert said in err and err.count('\n') == 1 and out == ''
