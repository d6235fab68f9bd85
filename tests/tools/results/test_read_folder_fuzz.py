"""Run folders changed at random: every command that reads them ends with a result or an error message, and does no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import run_fuzz


@pytest.mark.soak
def test_changed_run_folders_end_in_a_sentence_and_lead_nowhere_else(tmp_path: Path) -> None:
    """Each folder goes through runs, plot, report, compare, eval and a resume; `folder_fuzz` watches them.

    For more folders: `python benchmarks/faults.py folders --n 2000`.
    """
    n = 40
    report = run_fuzz('tests.tools.results.folder_fuzz', tmp_path, n, timeout=600)
    assert report['ends'].keys() <= {'done', 'refused', 'failed'} and sum(report['ends'].values()) == 6 * n
    assert report['ends']['refused'] > 10 and report['peak_gb'] < 1
