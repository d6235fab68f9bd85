"""benchmarks/faults.py: what its commands count as a fault, and short runs of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import fault_runs
import faults
import pytest
from fault_night import growth
from fault_runs import FaultyRun, broken_lines
from fault_system import FullDisk, environment, marked

from tests.processes import left

linux = pytest.mark.skipif(not Path('/proc/self/environ').exists(), reason='processes are found in /proc')


def test_broken_lines_counts_lines_that_are_cut_off_or_do_not_rise_within_their_kind(tmp_path: Path) -> None:
    log = tmp_path / 'metrics.jsonl'
    assert broken_lines(log) == 0  # no log
    rows = [{'env_step': 8}, {'env_step': 8, 'eval/return_mean': 1.0}, {'env_step': 16}]
    log.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    assert broken_lines(log) == 0
    log.write_text(log.read_text() + '{"env_step": 16}\n{"env_step": 24}\n{"env_st\n{"env_step": 32}')
    assert broken_lines(log) == 3  # 16 twice, a cut line, a line without its end


def test_growth_is_of_the_most_memory_after_the_process_has_settled() -> None:
    assert growth([(1, 50.0), (10, 100.0), (20, 130.0), (30, 110.0)], 10) == pytest.approx(0.3)
    assert growth([(1, 50.0)], 10) is None


@pytest.mark.slow
@linux
def test_children_that_outlive_a_killed_run_are_found_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_runs, 'ORPHAN_S', 0.5)
    run = FaultyRun(tmp_path, 'cartpole_ppo', [])
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).wait()"
    run.process = subprocess.Popen([sys.executable, '-c', child], env=environment(run.mark))
    run.said.touch()
    while not run.workers():
        time.sleep(0.01)
    (orphan,) = run.workers()
    run.kill()
    assert run.check_end()['children left'] == 1
    while marked(run.mark):
        time.sleep(0.01)
    assert not left([orphan])  # a killed process may be seen running for a moment


def test_file_of_a_save_that_an_earlier_process_did_not_finish_is_no_save_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_runs.subprocess, 'Popen', lambda *_, **__: None)
    run, folder = FaultyRun(tmp_path, 'cartpole_ppo', []), tmp_path / 'runs' / 'cartpole' / 'first' / 'checkpoints'
    folder.mkdir(parents=True)
    (folder / 'step_000001024.safetensors').touch()
    run.start()
    assert not run.is_saving()
    (folder / 'step_000002048.safetensors.11.tmp').touch()
    assert run.is_saving()
    run.start()  # after a kill in that save
    assert not run.is_saving()
    (folder / 'step_000002048.safetensors.12.tmp').touch()
    assert run.is_saving()


@pytest.mark.long
def test_full_disk_lets_a_process_write_nothing_and_gives_the_room_back(tmp_path: Path) -> None:
    disk = FullDisk(tmp_path / 'disk', n_mb=1)
    try:
        writer = "import sys; input(); open(sys.argv[1], 'wb').write(bytes(200_000))"
        process = subprocess.Popen(
            [sys.executable, '-c', writer, str(disk.folder / 'file')], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with disk.full(process.pid):
            assert b'OSError' in process.communicate(b'\n')[1]
        (disk.folder / 'file').write_bytes(bytes(200_000))
    finally:
        disk.close()


def command(tmp_path: Path, *words: str) -> dict:
    """Runs a command; returns the record that it wrote."""
    script = Path(faults.__file__)
    done = subprocess.run(
        [sys.executable, str(script), *words, '--out', str(tmp_path)], capture_output=True, text=True, timeout=600
    )
    record = json.loads((tmp_path / 'faults.json').read_text())[words[0]]
    assert done.returncode == 0 and not record['faults'], done.stderr[-3_000:]
    assert faults.TITLES[words[0]] in (tmp_path / 'faults.md').read_text()
    return record


@pytest.mark.soak
@linux
def test_kills_lose_nothing(tmp_path: Path) -> None:
    record = command(tmp_path, 'kills', '--n', '2')
    assert [run['kills'] for run in record['runs']] == [1, 1]
    assert all(run['env_step'] >= 8 * faults.ROLLOUT for run in record['runs'])


@pytest.mark.soak
@linux
def test_night_ends_where_it_should(tmp_path: Path) -> None:
    record = command(tmp_path, 'night', '--minutes', '0.15', '--every', '3')
    assert record['records'] and record['straight']['env_step'] == record['max_env_step']


@pytest.mark.soak
@linux
def test_changed_checkpoints_do_no_harm_and_sections_stand_side_by_side(tmp_path: Path) -> None:
    (tmp_path / 'faults.json').write_text('{}')
    record = command(tmp_path, 'checkpoints', '--n', '30')
    assert sum(record['ends'].values()) == 90 == 3 * sum(record['kinds'].values())
