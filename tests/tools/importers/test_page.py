"""docs/coming_from.md: its tables equal those of the translators, and the names in it exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from zoo.config.names import names
from zoo.run.config import explain_config
from zoo.tools.importers import cleanrl, di_engine, rllib, sb3
from zoo.tools.importers.page import END, START, with_tables

PAGE = Path(__file__).parents[3] / 'docs' / 'coming_from.md'
TEXT = PAGE.read_text()
TABLES = [di_engine.MAIN_ROWS, di_engine.CREATE_ROWS, sb3.ROWS, sb3.KWARGS_ROWS, cleanrl.ROWS, rllib.ROWS]


def test_tables_of_the_page_are_those_of_the_code():
    assert with_tables(TEXT) == TEXT, 'write them anew: python -m zoo.tools.importers.page docs/coming_from.md'


def test_every_name_of_the_code_is_on_the_page():
    quoted = set(re.findall('`([^`]*)`', TEXT))
    assert {name for rows in TABLES for name in rows} | set(names()) <= quoted


def _keys() -> set[str]:
    """All keys of zoo, and the sections that hold them."""
    kinds = [
        {'policy': {'type': kind}, 'env': {'id': 'CartPole-v1'}}
        for kind in ('ppo', 'ppo_offpolicy', 'ppg', 'ppg_offpolicy')
    ]
    paths = {row.key for config in kinds for row in explain_config(config)}
    paths |= {f'{path}.type' for path in paths} | {'policy.collect', 'policy.learn.sequence'}
    return paths | {path.rpartition('.')[0] for path in paths}


@pytest.mark.parametrize('rows', TABLES)
def test_every_key_that_a_row_names_exists(rows):
    named = {row.here for row in rows.values() if row.here}
    notes = ' '.join(f'{row.note} {row.page}' for row in rows.values())
    named |= set(re.findall(r'\b(?:policy|env|buffer|logger|checkpoint)(?:\.[a-z_]+)+', notes))
    known = _keys()
    gone = {path for path in named if path not in known and not path.startswith(('env.kwargs.', 'env.id'))}
    assert gone == set()


def _exists(dotted: str) -> bool:
    parts = dotted.split('.')
    for stop in range(len(parts), 0, -1):
        try:
            found = importlib.import_module('.'.join(parts[:stop]))
        except ModuleNotFoundError:
            continue
        for name in parts[stop:]:
            found = getattr(found, name, None)
        return found is not None
    return False


def test_every_name_of_zoo_in_the_right_column_exists():
    before = TEXT.partition(START)[0]
    rows = [line.split('|') for line in before.splitlines() if line.startswith('|')]
    names = {name for row in rows for name in re.findall(r'\bzoo(?:\.\w+)+', row[2])}
    assert len(names) > 15
    assert {name for name in names if not _exists(name)} == set()
    losses = 'ppo_data ppo_error ppo_policy_error ppo_value_error ppg_joint_error'.split()
    assert all(_exists(f'zoo.rl_utils.{name}') for name in losses)


def test_names_that_are_gone_are_gone():
    for name in ('zoo.entry', 'zoo.utils', 'zoo.torch_utils', 'zoo.envs', 'zoo.policy.base_policy'):
        assert not _exists(name) and name in TEXT
    assert END in TEXT
