"""Configs of any kind end in a sentence or a run: a part of what `python -m tests.config.config_fuzz` tries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.config.config_fuzz import all_kinds, cases, fields_in


def test_every_key_of_the_schema_is_changed() -> None:
    paths = {path for kinds in all_kinds() for path in fields_in(*kinds)}
    assert {
        'seed',
        'env.window',
        'policy.learn.aux_freq',
        'policy.model.shared_encoder',
        'buffer.value.max_use',
    } <= paths
    assert len(paths) > 100 and cases() is not None


@pytest.mark.long
def test_no_config_ends_in_anything_but_a_sentence_or_a_run() -> None:
    command = [sys.executable, '-m', 'tests.config.config_fuzz', '--n', '300', '--seed', '1']
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
    ends = json.loads(done.stdout.splitlines()[-1].partition(': ')[2].replace("'", '"'))
    assert ends['trained'] > 20 and ends['refused'] > 20
