"""Fixture for tests of commands: an empty current folder for each test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, new and empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
