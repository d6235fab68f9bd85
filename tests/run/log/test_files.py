"""progress.csv: one table of all lines; a resume cuts it at the same step as metrics.jsonl; a full disk leaves it valid."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.run.processes import small_files
from zoo.run.base_config import LoggerConfig
from zoo.run.log.logger import Logger

CFG = LoggerConfig(console='off', tensorboard=False, sinks=['csv'])


def table(run_dir: Path) -> list[dict[str, str]]:
    with open(run_dir / 'progress.csv', newline='') as file:
        rows = list(csv.DictReader(file, strict=True))
    assert all(None not in row and None not in row.values() for row in rows)  # each row has a cell per column
    return rows


def test_columns_are_the_union_of_all_lines(tmp_path: Path) -> None:
    with Logger(tmp_path, CFG, 'exp', 100) as log:
        log.write(8, {'learn/loss': 0.5})
        log.write(8, {'eval/return_mean': 3})
        log.write(16, {'learn/loss': 0.25, 'collect/iter': 2})
    rows = table(tmp_path)
    assert list(rows[0]) == ['env_step', 'wall_s', 'learn/loss', 'eval/return_mean', 'collect/iter']
    assert [[row[name] for name in row if name != 'wall_s'] for row in rows] == [
        ['8', '0.5', '', ''],
        ['8', '', '3', ''],
        ['16', '0.25', '', '2'],
    ]


def test_not_finite_is_nan_in_all_rows(tmp_path: Path) -> None:
    with Logger(tmp_path, CFG, 'exp', 100) as log:
        for step in (8, 16):  # the first is read back from metrics.jsonl, the second is written directly
            log.write(step, {'a': float('nan'), 'b': float('inf')})
    assert [(row['a'], row['b']) for row in table(tmp_path)] == [('nan', 'nan')] * 2


def test_resume_cuts_what_was_logged_beyond(tmp_path: Path) -> None:
    with Logger(tmp_path, CFG, 'exp', 100) as log:
        for step in (8, 16, 24):
            log.write(step, {'run': 1})
        assert len(table(tmp_path)) == 3  # on disk before the end
    with Logger(tmp_path, CFG, 'exp', 100, start_env_step=16) as log:
        log.write(20, {'run': 2})
    assert [(row['env_step'], row['run']) for row in table(tmp_path)] == [('8', '1'), ('16', '1'), ('20', '2')]


def test_asked_for_at_a_resume_it_has_the_earlier_lines(tmp_path: Path) -> None:
    with Logger(tmp_path, LoggerConfig(console='off', tensorboard=False), 'exp', 100) as log:
        log.write(8, {'a': 1})
    with Logger(tmp_path, CFG, 'exp', 100, start_env_step=8) as log:
        log.write(16, {'a': 2})
    assert [row['a'] for row in table(tmp_path)] == ['1', '2']


def test_a_removed_file_is_recreated_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Logger(tmp_path, CFG, 'exp', 100) as log:
        log.write(8, {'a': 1})
        (tmp_path / 'progress.csv').unlink()
        log.write(16, {'a': 2})
    assert [row['a'] for row in table(tmp_path)] == ['1', '2']
    assert 'progress.csv was removed or moved' in caplog.text


def test_full_disk_warns_once_and_leaves_a_whole_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # rows of one length: a shorter one might find room after a longer one did not
    monkeypatch.setattr('time.monotonic', lambda: 0.0)
    log = Logger(tmp_path, CFG, 'exp', 10**6)
    with small_files(5_000):
        for step in range(400):
            log.write(step, {'a': float(step), **({'late': 1} if step > 390 else {})})
    log.write(400, {'a': 400.0, 'late': 1})
    log.close()
    assert sorted(line.split(' (')[0] for line in caplog.messages) == [
        'metrics.jsonl cannot be written',
        'progress.csv cannot be written',
    ]
    rows = table(tmp_path)
    assert rows[-1]['a'] == '400.0' and rows[-1]['late'] == '1' and len(rows) > 50
