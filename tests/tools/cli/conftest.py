"""Fixtures for tests of commands: a call of `zoo`, and an empty current folder for each test."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.tools.cli.commands import Said, Zoo
from zoo.tools.cli.command import main


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, new and empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def zoo(capsys: pytest.CaptureFixture[str]) -> Zoo:
    """Runs `zoo WORDS MORE`, WORDS as a shell splits them; asserts the exit code, 0 unless `code` is given."""

    def run(words: str, *more: object, code: int = 0) -> Said:
        capsys.readouterr()
        found, said = main([*shlex.split(words), *map(str, more)]), Said(*capsys.readouterr())
        assert found == code, said.err
        return said

    return run
