"""benchmarks/variants.py: it finds its records, and its page describes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import variants
from learning import raw_path

ROWS = {name for comparison in variants.COMPARISONS.values() for name in comparison.rows.values()}


def test_every_record_is_where_its_run_is_looked_for_and_is_of_a_row():
    records = {path: json.loads(path.read_text()) for path in variants.RAW.glob('*.json')}
    assert records
    assert [path.name for path, x in records.items() if path != raw_path(x['config'], x['seed'], variants.RAW)] == []
    assert {x['config'] for x in records.values()} <= ROWS


def test_page_has_every_record_in_the_raw_folder_and_says_how_many_episodes_were_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(variants, 'RESULTS', tmp_path)
    monkeypatch.setattr(variants, 'RAW', tmp_path / 'variants_raw')
    monkeypatch.setattr(variants, 'is_done', lambda name, seed, folder: seed == 0)
    variants.RAW.mkdir()
    name = next(iter(variants.COMPARISONS['Hopper'].rows.values()))
    for seed, n_episode in ((0, 20), (1, 100)):
        record = {'config': name, 'seed': seed, 'return_mean': 7.0, 'returns': [7.0] * n_episode, 'curve': [[8, 5.0]]}
        record |= {'env_step': 8, 'wall_s': 1.0, 'machine': 'm', 'date': 'd', 'commit': 'c', 'versions': {'torch': '2'}}
        (variants.RAW / f'a name of before_seed{seed}.json').write_text(json.dumps(record))
    variants.write_table()
    text = (tmp_path / 'variants.md').read_text()
    assert '| Hopper | ppo | 2 | 7.00 [7.00, 7.00] | 5.00 | - |' in text
    assert 'greedily for 20 or 100 episodes' in text
    assert 'measured with older configs: Hopper' in text
