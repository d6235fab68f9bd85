"""The command in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_in(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`zoo ARGS` in a folder, which is waited for."""
    return subprocess.run([sys.executable, '-m', 'zoo', *args], cwd=cwd, capture_output=True, text=True, timeout=120)
