"""benchmarks/groups.py: it measures real rollouts and writes a table of them."""

from __future__ import annotations

import json

import pytest
from groups import main, report

from zoo.backend.native import level


@pytest.mark.slow
@pytest.mark.usefixtures('native')
def test_a_run_leaves_a_table(tmp_path):
    main(['--rollouts', '1', '--only', 'CartPole-v1, 64', '--results', str(tmp_path)])
    text = (tmp_path / 'groups_cpu.md').read_text()
    assert text.count('CartPole-v1, 64 one after the other') == 1
    ((name, seconds),) = json.loads((tmp_path / 'groups_cpu.json').read_text())['seconds'].items()
    assert name.startswith('CartPole-v1, 64') and [len(seconds[n]) for n in ('1', '2')] == [1, 1]
    assert text.count(f'| native {level()} |') == 1 and 'eager' not in text  # the C code acted, and the page says so


def test_a_ratio_is_of_medians():
    data = dict.fromkeys(('machine', 'date', 'commit', 'command'), '') | {'versions': {}, 'device': 'a CPU'}
    data |= {'seconds': {'envs': {'1': [0.3, 0.1, 0.2], '2': [0.1, 0.1, 9.0]}}, 'rollouts': 3, 'threads': 1}
    assert '| envs | 200.0 | 100.0 | 2.00 |' in report(data)
