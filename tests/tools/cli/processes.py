"""Runs the `zoo` command in a separate process."""

from __future__ import annotations

from pathlib import Path

from tests.forked import Done, run_python


def run_in(*args: str, cwd: Path | None = None) -> Done:
    """Runs `zoo ARGS` in a folder and waits until it ends."""
    return run_python('-m', 'zoo', *args, cwd=cwd)
