"""`zoo bench`: its lists, its refusals, and short runs that write the tables of the benchmarks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import cluster
import pytest

from tests.tools.cli.commands import Zoo
from zoo.tools.cli.bench import KINDS, TAKEN
from zoo.tools.results.table import number_text


def test_without_a_name_the_benchmarks_are_listed(in_tmp: Path, zoo: Zoo) -> None:
    lines = zoo('bench').lines
    assert [line.split()[0] for line in lines[:4]] == list(KINDS) == list(TAKEN)
    assert os.listdir(in_tmp) == []


@pytest.mark.parametrize(
    'kind, name, about',
    [
        ('learning', 'cartpole_ppo', 'return 500 is the target'),
        ('speed', 'cartpole_8x128', 'CartPole-v1, 8 envs x 128'),
        ('cluster', 'slow', 'An env of 2 ms (it sleeps)'),
    ],
)
def test_list_names_the_parts(kind: str, name: str, about: str, zoo: Zoo) -> None:
    lines = zoo(f'bench {kind} --list').lines
    assert [line for line in lines if line.startswith(f'{name} ') and about in line]


def test_kernels_writes_its_table_with_the_command_that_was_typed(in_tmp: Path, zoo: Zoo) -> None:
    assert zoo('bench kernels --only gae --quick -o out').out == f'results: {in_tmp / "out"}\n'
    (page,) = (in_tmp / 'out').glob('kernels_*.md')
    text, raw = page.read_text(), json.loads(page.with_suffix('.json').read_text())
    assert 'command: `zoo bench kernels --quick --only gae -o out`' in text
    assert {record['op'] for record in raw['records']} == {'gae'} and raw['machine'] and raw['commit']


@pytest.mark.soak
def test_learning_trains_and_a_second_time_finds_the_results(
    in_tmp: Path, zoo: Zoo, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO')
    for _ in range(2):
        zoo('bench learning --only cartpole_ppo --repeats 1 --scale 0.05 -o out')
    assert '1 runs to do, 0 are there' in caplog.text and '0 runs to do, 1 are there' in caplog.text
    (raw,) = (json.loads(path.read_text()) for path in (in_tmp / 'out' / 'learning_raw').glob('*.json'))
    assert raw['resolved']['max_env_step'] == 5_000 >= raw['env_step']
    assert len(raw['returns']) == len(raw['drawn']) == 100
    assert raw['return_mean'] == pytest.approx(sum(raw['returns']) / 100)
    assert f'| {number_text(raw["return_mean"])} |' in (in_tmp / 'out' / 'learning.md').read_text()


@pytest.mark.soak
def test_speed_without_other_libraries_measures_zoo_and_says_once_what_is_left_out(
    in_tmp: Path, zoo: Zoo, caplog: pytest.LogCaptureFixture
) -> None:
    work = 'cartpole_lstm_8x128'
    zoo(f'bench speed --only {work} --quick --scale 0.01 --venvs none -o out')
    warnings = [record.message for record in caplog.records if record.levelname == 'WARNING']
    guide = 'benchmarks/peers/README.md tells how to'
    assert warnings == [f'sb3-contrib is left out: not installed in none; {guide}']
    found = json.loads((in_tmp / 'out' / 'speed.json').read_text())['works'][work]
    assert [run['label'] for run in found['runs']] == ['zoo eager', 'zoo best'] and found['failed'] == {}
    # after two rollouts of 8 x 128 the clock runs until 3 x 1,024 steps are done; steps that reset an env are no env steps
    assert all(1_024 <= run['env_step'] < 3 * 1_024 and run['env_step_all'] >= 3 * 1_024 for run in found['runs'])


@pytest.mark.soak
def test_cluster_measures_a_runner_next_to_one_process(in_tmp: Path, zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    work = next(work for work in cluster.WORKS if work.name == 'overhead')
    kept = [variant for variant in work.variants if variant.label in (cluster.SERIAL, 'zoo, 1 runner, process')]
    short = work._replace(variants=(*kept, cluster.RLLIB))  # 3 of the 7 variants: each starts processes
    monkeypatch.setattr(cluster, 'WORKS', (short,))
    zoo('bench cluster --only overhead --quick --scale 0.01 -o out --venvs none')
    records = json.loads((in_tmp / 'out' / 'cluster.json').read_text())['records']
    assert [record['label'] for record in records] == [variant.label for variant in kept]
    page = (in_tmp / 'out' / 'cluster.md').read_text()
    assert f'| {cluster.SERIAL} | {records[0]["env_step_per_s"]:,.0f} | 1.00 |' in page
    assert '| RLlib, 2 env runners | not installed or failed |' in page


def test_folder_of_the_benchmarks_stays_on_the_path_once(zoo: Zoo) -> None:
    zoo('bench kernels --list')
    after_one = list(sys.path)
    zoo('bench kernels --list')
    assert sys.path == after_one
