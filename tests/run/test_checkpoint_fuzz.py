"""Checkpoints changed at random, checksum mended: every command ends, with a result or in a sentence, and does no harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_changed_checkpoints_end_in_a_sentence_and_start_import_and_overwrite_nothing(tmp_path: Path) -> None:
    """Each file goes through load_policy, eval and resume; see `tests.run.checkpoint_fuzz` for what is watched.

    More files: `python benchmarks/faults.py checkpoints --n 2000`.
    """
    n = 400
    env = {'PYTHONPATH': str(ROOT), 'TMPDIR': str(tmp_path), 'PYTHONDONTWRITEBYTECODE': '1', 'OMP_NUM_THREADS': '1'}
    done = subprocess.run(
        [sys.executable, '-m', 'tests.run.checkpoint_fuzz', str(tmp_path), '0', str(n)],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=1_200,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert not report['faults'], '\n'.join(report['faults'])
    assert report['ends'].keys() <= {'done', 'refused', 'failed'} and sum(report['ends'].values()) == 3 * n
    assert report['ends']['refused'] > n  # most are noticed
    assert report['peak_gb'] < 2
    assert not {'sprung', 'pwned'} & set(report['made'])
