"""Checkpoints changed at random, checksum mended: every command ends, with a result or in a sentence, and does no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import run_fuzz


@pytest.mark.soak
def test_changed_checkpoints_end_in_a_sentence_and_start_import_and_overwrite_nothing(tmp_path: Path) -> None:
    """Each file goes through load_policy, eval and resume; see `tests.run.checkpoint_fuzz` for what is watched.

    More files: `python benchmarks/faults.py checkpoints --n 2000`.
    """
    n = 150
    report = run_fuzz('tests.run.checkpoint_fuzz', tmp_path, n, timeout=900)
    assert report['ends'].keys() <= {'done', 'refused', 'failed'} and sum(report['ends'].values()) == 3 * n
    assert report['ends']['refused'] > n  # most are noticed
    assert report['peak_gb'] < 2
    assert not {'sprung', 'pwned'} & set(report['made'])
