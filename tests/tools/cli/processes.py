"""The command in a process of its own."""

from __future__ import annotations

from pathlib import Path

from tests.forked import Done, run_python


def run_in(*args: str, cwd: Path | None = None) -> Done:
    """`zoo ARGS` in a folder, which is waited for."""
    return run_python('-m', 'zoo', *args, cwd=cwd)
