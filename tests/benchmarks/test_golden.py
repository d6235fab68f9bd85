"""benchmarks/golden.py: it reports all that changed, and nothing if nothing changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import golden
import pytest
from golden import compare, differences
from golden_configs import CASES, Case, merged
from golden_runs import fingerprint, of_metrics

from zoo.run.config import resolve_config

TIMES = {'wall_s': 1.5, 'time/env_s': 0.1, 'cluster/wait_s': 0.3}
METRICS = {'env_step': 64, 'learn/kl': 0.25, 'cluster/restart': 1, **TIMES}


@pytest.mark.long
def test_every_case_is_a_config_that_zoo_takes():
    refused = {}
    for name, case in CASES.items():
        for config in filter(None, (case.config, case.first)):
            try:
                resolve_config(config)
            except ValueError as error:
                refused[name] = str(error)
    assert refused == {}


def test_differences_names_what_changed_with_the_last_value_of_a_metric():
    before = {'parameters': {'a.weight': '#1', 'a.bias': '#2'}}
    before['metrics'] = {'learn/kl': '#3 0.25', 'collect/iter': '#4 4'}
    after = merged(before, {'parameters': {'a.bias': '#9'}, 'metrics': {'learn/kl': '#9 0.26'}})
    assert differences(before, before) == []
    assert differences(before, after) == ['parameters, 1 of 2: a.bias', 'metrics, 1 of 2: learn/kl 0.25 -> 0.26']
    assert differences(before, after, ['learn/kl']) == ['parameters, 1 of 2: a.bias']


def test_differences_names_what_is_new_or_gone():
    before, after = {'parameters': {'a': '#1', 'b': '#2'}}, {'parameters': {'a': '#1', 'c': '#2'}}
    assert differences(before, after) == ['parameters, 2 of 3: b (is gone), c (is new)']


def test_differences_of_a_run_that_failed_are_its_error():
    assert differences({'parameters': {'a': '#1'}}, 'ValueError: no') == ['after: ValueError: no']


def test_a_config_that_both_sides_refuse_in_one_sentence_is_counted_and_is_no_difference(capsys):
    before, after = 'UserError: no bfloat16 here (old/zoo/a.py:1)', 'UserError: no bfloat16 here (new/zoo/b.py:2)'
    same = {'parameters': {'a': '#1'}}
    assert compare({'x': same, 'y': before}, {'x': same, 'y': after}, 1.0) == 0
    assert '1 of 2 configs equal, 1 refused on this machine' in capsys.readouterr().out
    assert compare({'y': before}, {'y': after.replace('no ', 'not a ')}, 1.0) == 1
    assert compare({'y': before}, {'y': same}, 1.0) == 1
    crash = 'TypeError: oh (a.py:1)'
    assert compare({'y': crash}, {'y': crash}, 1.0) == 1


def test_before_runs_at_the_recorded_commit_what_is_unlike_the_record_and_all_of_a_commit_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    same, other = {'parameters': {'a': '#1'}}, {'parameters': {'a': '#2'}}
    monkeypatch.setattr(golden, 'GOLDEN', tmp_path / 'golden.json')
    cases = {'ppo': same, 'ppg': other}
    golden.GOLDEN.write_text(json.dumps({'commit': 'abc', 'machine': {}, 'cases': cases}))
    monkeypatch.setattr(golden, 'checkout_of', lambda place: tmp_path)
    ran: list[tuple[Path, list[str]]] = []

    def run_all(checkout: Path, names: list[str], n_job: int) -> dict[str, object]:
        ran.append((checkout, list(names)))
        return dict.fromkeys(names, same)

    monkeypatch.setattr(golden, 'run_all', run_all)
    names = ['ppo', 'ppg', 'dqn']  # as recorded, unlike the record, not recorded
    assert golden.check(names, 1, golden.RECORDED) == 0
    assert ran == [(golden.REPO, names), (tmp_path, ['ppg', 'dqn'])]
    ran.clear()
    assert golden.check(names, 1, 'def') == 0
    assert ran == [(golden.REPO, names), (tmp_path, names)]
    assert capsys.readouterr().out.count('3 of 3 configs equal') == 2
    monkeypatch.setattr(
        golden, 'run_all', lambda checkout, names, n_job: dict.fromkeys(names, {'parameters': {'a': checkout.name}})
    )
    assert golden.check(names, 1, golden.RECORDED) == 1  # the code of then gives other numbers than that of now
    assert '0 of 3 configs equal' in capsys.readouterr().out


def test_native_executor_is_compiled_where_it_is_missing_or_older_than_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    builds: list[Path] = []
    monkeypatch.setattr(golden.subprocess, 'run', lambda *_, cwd, **__: builds.append(cwd))
    folder = tmp_path / 'zoo' / 'native'
    folder.mkdir(parents=True)
    library, source = folder / '_native.abi3.so', folder / 'native.c'
    source.touch()
    golden.build_native(tmp_path)  # the library is missing: it is built
    library.touch()
    os.utime(source, (1, 1))
    golden.build_native(tmp_path)  # the library is newer than its source
    assert len(builds) == 1
    os.utime(library, (0, 0))
    golden.build_native(tmp_path)
    assert builds == [tmp_path] * 2


def test_metrics_are_compared_but_for_times():
    lines = [json.dumps(METRICS), json.dumps(merged(METRICS, {'env_step': 128, 'learn/kl': 0.5}))]
    found = of_metrics(lines)
    assert list(found) == ['env_step', 'learn/kl', 'cluster/restart'] and found['learn/kl'].endswith(' 0.5')
    first_differs = of_metrics([lines[0].replace('0.25', '0.26'), lines[1]])
    assert [name for name in found if found[name] != first_differs[name]] == ['learn/kl']


@pytest.mark.slow
def test_two_runs_of_a_case_are_equal_and_another_seed_changes_every_weight(tmp_path: Path):
    case = CASES['ppo']
    other = Case(merged(case.config, {'seed': 4}))
    places = [tmp_path / name for name in 'abc']
    a, b, c = (fingerprint(each, place) for each, place in zip((case, case, other), places, strict=True))
    assert differences(a, b) == [] and {group: len(names) > 0 for group, names in a.items()} == dict.fromkeys(a, True)
    weights = [name for name in a['parameters'] if name.endswith('weight')]
    assert weights and all(a['parameters'][name] != c['parameters'][name] for name in weights)
