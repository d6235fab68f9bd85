"""A sample of the cases of `tests.config.config_fuzz`: any config ends with an error message or a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.config_fuzz import all_kinds, fields_in
from tests.fuzz import run_fuzz


@pytest.mark.slow
def test_every_key_of_the_schema_is_changed() -> None:
    paths = {path for kinds in all_kinds() for path in fields_in(*kinds)}
    some = {'seed', 'env.window', 'policy.learn.aux_freq', 'policy.model.shared_encoder', 'buffer.value.max_use'}
    assert some <= paths and len(paths) > 100


@pytest.mark.soak
def test_no_config_ends_in_anything_but_a_sentence_or_a_run(tmp_path: Path) -> None:
    ends = run_fuzz('tests.config.config_fuzz', tmp_path, n=200, timeout=600)['ends']
    assert ends['trained'] > 20 and ends['refused'] > 20
