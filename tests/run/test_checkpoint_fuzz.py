"""Checkpoints changed at random, with a correct checksum: each command ends with a result or one sentence, and does no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import run_fuzz


@pytest.mark.soak
def test_changed_checkpoints_end_in_a_sentence_and_start_import_and_overwrite_nothing(tmp_path: Path) -> None:
    """Each file goes through load_policy, eval and resume; see `Watch` of `tests.run.checkpoint_fuzz` for the forbidden events.

    More files: `python benchmarks/faults.py checkpoints --n 2000`.
    """
    n = 150
    report = run_fuzz('tests.run.checkpoint_fuzz', tmp_path, n, timeout=900)
    assert report['ends'].keys() <= {'done', 'refused', 'failed'} and sum(report['ends'].values()) == 3 * n
    assert report['ends']['refused'] > n  # most changes are refused
    assert report['peak_gb'] < 2
    assert not {'sprung', 'pwned'} & set(report['made'])
