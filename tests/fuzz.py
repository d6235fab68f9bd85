"""Runs a fuzz module in a separate process: it changes files at random and prints its report as the last line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_fuzz(module: str, folder: Path, n: int, timeout: float) -> dict[str, Any]:
    """The report on the first n files, made below a folder. Fails the test if the process fails or reports a fault."""
    env = {'PYTHONPATH': str(ROOT), 'TMPDIR': str(folder), 'PYTHONDONTWRITEBYTECODE': '1', 'OMP_NUM_THREADS': '1'}
    done = subprocess.run(
        [sys.executable, '-m', module, str(folder), '0', str(n)],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not report['faults'], '\n'.join(report['faults'])
    return report
