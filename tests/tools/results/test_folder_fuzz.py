"""Run folders changed at random: every command that reads them ends, with a result or in a sentence, and does no harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.long
def test_changed_run_folders_end_in_a_sentence_and_lead_nowhere_else(tmp_path: Path) -> None:
    """Each goes through runs, plot, report, compare, eval and a resume; see `folder_fuzz` for what is watched.

    More folders: `python benchmarks/faults.py folders --n 2000`.
    """
    n = 40
    env = {'PYTHONPATH': str(ROOT), 'TMPDIR': str(tmp_path), 'PYTHONDONTWRITEBYTECODE': '1', 'OMP_NUM_THREADS': '1'}
    done = subprocess.run(
        [sys.executable, '-m', 'tests.tools.results.folder_fuzz', str(tmp_path), '0', str(n)],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert not report['faults'], '\n'.join(report['faults'])
    assert report['ends'].keys() <= {'done', 'refused', 'failed'} and sum(report['ends'].values()) == 6 * n
    assert report['ends']['refused'] > 10 and report['peak_gb'] < 1
