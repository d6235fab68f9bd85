"""`zoo serve`: what it asks for before a run begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from zoo.tools.cli.command import main


@pytest.mark.parametrize(
    'words, sentence',
    [
        ((), 'there is no run cartpole_ppo; to learn from clients by a config, write zoo serve CONFIG --train'),
        (('env.id=x',), 'zoo serve RUN acts with a saved run'),
        (('--run-dir', 'x'), 'zoo serve RUN acts with a saved run'),
        (('--seed', 'x'), '--seed is x but must be a whole number from 0 to 2**64 - 1'),
        (('--seed', str(2**64)), 'but must be a whole number from 0 to 2**64 - 1'),
        (('--port', '70000'), '--port is 70000 but must be 0 to 65535'),
        (('--train', '--best'), '--stochastic and --best say how a saved run acts'),
        (('--train', '--token-file', 'missing'), 'cannot be read (No such file or directory)'),
        (('--train', '--token-file', 'empty'), 'is empty; write a token of random letters into it'),
    ],
)
def test_serve_says_what_is_missing(
    words: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path('empty').touch()
    assert main(['serve', 'cartpole_ppo', *words]) == 2
    assert sentence in capsys.readouterr().err
