"""Sinks by name and by code: their order, refused sinks, sinks that fail; progress.csv; what all trackers share."""

from __future__ import annotations

import csv
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.run.log.json_rows import read_rows
from tests.run.processes import small_files
from zoo import Sink
from zoo.config.section import Config, ConfigError
from zoo.run.base_config import LoggerConfig
from zoo.run.log.logger import Logger
from zoo.run.log.sinks import make_sinks
from zoo.run.log.trackers import Tracker

HERE = __name__


class Notes(Sink):
    """Sink that notes the calls of its methods."""

    made: list[Notes] = []

    def __init__(self, *, word: str = 'none') -> None:
        self.word, self.calls = word, []
        self.made.append(self)

    def open(self, cfg: Any, run_dir: Path) -> None:
        self.calls.append(('open', cfg.exp_name, run_dir, self.env_step))

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        self.calls.append((env_step, {key: x for key, x in metrics.items() if key != 'wall_s'}, 'wall_s' in metrics))

    def close(self) -> None:
        self.calls.append(('close', self.has_failed))


class Failing:
    """Sink that raises in the method named by `at`; it is not derived from `Sink`."""

    calls: list[str] = []

    def __init__(self, *, at: str = 'write', lost: bool = False) -> None:
        self.at, self.lost = at, lost

    def _do(self, name: str) -> None:
        self.calls.append(name)
        if name == self.at:
            raise ConnectionError('no route') if self.lost else KeyError('token')

    def open(self, cfg: Any, run_dir: Path) -> None:
        self._do('open')

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        self._do('write')

    def close(self) -> None:
        self._do('close')


class NoSink:
    """A class with none of a sink's methods."""


@pytest.fixture(autouse=True)
def fresh() -> None:
    Notes.made.clear()
    Failing.calls.clear()


def config(*sinks: Any) -> LoggerConfig:
    return LoggerConfig(console='off', tensorboard=False, sinks=list(sinks))


@pytest.mark.parametrize('spec', [f'{HERE}:Notes', {'type': f'{HERE}:Notes', 'word': 'x'}, Notes, {'type': Notes}])
def test_own_sink_is_opened_written_and_closed(spec: Any, tmp_path: Path) -> None:
    with Logger(tmp_path, config(spec), 'exp', 100, start_env_step=4) as log:
        log.write(8, {'a': 1})
        log.write(16, {'b': float('inf')})
    (sink,) = Notes.made
    assert sink.word == ('x' if isinstance(spec, dict) and 'word' in spec else 'none')
    assert sink.calls == [
        ('open', 'exp', tmp_path, 4),
        (8, {'a': 1}, True),
        (16, {'b': float('inf')}, True),
        ('close', False),
    ]


def test_config_holds_a_class_given_itself_by_its_name() -> None:
    assert config(Notes).sinks == [f'{HERE}:Notes']


def test_sink_is_told_that_an_error_ended_the_run(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Logger(tmp_path, config(Notes), 'exp', 100):
        raise ZeroDivisionError
    assert Notes.made[0].calls[-1] == ('close', True)


@pytest.mark.parametrize('at', ['open', 'write', 'close'])
def test_sink_that_raises_is_left_out_after_one_warning(
    at: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Logger(tmp_path, config({'type': f'{HERE}:Failing', 'at': at}), 'exp', 100) as log:
        for step in (8, 16):
            log.write(step, {'a': step})
    (record,) = caplog.records
    text = record.getMessage()
    assert f'sink {HERE}:Failing raised in {at} KeyError' in text and 'test_sinks.py:' in text and 'continues' in text
    assert (
        Failing.calls
        == {
            'open': ['open'],
            'write': ['open', 'write'],
            'close': ['open', 'write', 'write', 'close'],
        }[at]
    )
    assert [row['a'] for row in read_rows(tmp_path)] == [8, 16]


def test_sink_that_loses_its_connection_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Logger(tmp_path, config({'type': f'{HERE}:Failing', 'lost': True}), 'exp', 100) as log:
        for step in (8, 16):
            log.write(step, {'a': step})
    assert Failing.calls == ['open', 'write', 'write', 'close']
    assert [record.getMessage() for record in caplog.records] == [
        f'sink {HERE}:Failing cannot be written (no route); training continues'
    ]


def test_files_come_first_and_each_kind_once() -> None:
    sinks = make_sinks(LoggerConfig(sinks=[{'type': f'{HERE}:Notes'}, 'csv', 'jsonl', 'tensorboard']))
    assert [type(sink).__name__ for sink in sinks] == ['JsonlSink', 'TensorBoardSink', 'CsvSink', 'Notes']
    assert [type(sink).__name__ for sink in make_sinks(LoggerConfig(tensorboard=False))] == ['JsonlSink']


def test_table_on_the_console_has_all_metrics_of_a_line_by_their_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = LoggerConfig(console='table', tensorboard=False)
    with Logger(tmp_path, cfg, 'run', 100) as log:
        log.write(20_000, {'eval/return_mean': -1.25, 'a': 12345.6, 'eval/x\x1b': math.nan, 'learn/kl': 0.000123456})
    lines = [line for line in capsys.readouterr().err.splitlines() if 'wall_s' not in line]
    assert lines == [
        '-----------------------------',
        '| env_step      |    20,000 |',
        '| a             |    12,346 |',
        '| eval/         |           |',
        '|   return_mean |     -1.25 |',
        '|   x\\x1b       |       nan |',
        '| learn/        |           |',
        '|   kl          | 0.0001235 |',
        '-----------------------------',
    ]


@pytest.mark.parametrize(
    ('specs', 'words'),
    [
        (['csv', 'csv'], "names 'csv' 2 times"),
        ([f'{HERE}:NoSink'], 'without open, write, close'),
        ([f'{HERE}:HERE'], 'name a class or a function'),
    ],
)
def test_what_cannot_be_a_sink_is_refused(specs: list[Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_sinks(LoggerConfig.model_construct(sinks=specs, tensorboard=False))


@pytest.mark.parametrize(
    ('spec', 'words'),
    [
        ('cvs', "unknown sink 'cvs': did you mean 'csv'?.* name your own, as 'module:Class'"),
        ('no_such_module_here:Sink', "names the module 'no_such_module_here', which is not found"),
        (f'{HERE}:Note', "has no 'Note': did you mean 'Notes'"),
        ({'type': 'wandb', 'projekt': 'x'}, 'did you mean logger.sinks.project'),
        ({'type': f'{HERE}:Notes', 'wort': 'x'}, 'did you mean logger.sinks.word'),
    ],
)
def test_config_with_a_wrong_sink_is_refused_with_the_right_word(spec: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(spec)


# --- progress.csv ---


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


# --- what all trackers share ---


@pytest.mark.parametrize(('name', 'module'), [('wandb', 'wandb'), ('mlflow', 'mlflow.tracking')])
def test_missing_library_is_refused_with_its_extra(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # makes its import fail, as if it were not installed
    with pytest.raises(ConfigError, match=rf"pip install '\.\[{name}\]'"):
        make_sinks(LoggerConfig(sinks=[name], tensorboard=False))


class Own(Tracker):
    name = 'own'


def test_id_is_kept_in_the_run_folder_and_a_broken_one_is_not_used(tmp_path: Path) -> None:
    for _ in range(2):
        tracker = Own()
        tracker.open(Config(), tmp_path)
        assert tracker.remembered_id() in (None, 'abc-1')
        tracker.remember_id('abc-1')
    assert tracker.remembered_id() == 'abc-1'
    for text in ('{"id": "../../x"}', '{"id": 3}', 'nothing', '{}'):
        (tmp_path / 'own_run.json').write_text(text)
        assert tracker.remembered_id() is None


@pytest.mark.long
def test_log_that_is_one_line_of_gigabytes_is_cut_within_little_memory(tmp_path: Path) -> None:
    path = tmp_path / 'metrics.jsonl'
    path.write_text('{"env_step": 1, "wall_s": 2.5}\n')
    os.truncate(path, 40_000_000_000)  # sparse: it takes no disk
    code = f'from zoo.run.log.sinks import _cut_log; from pathlib import Path; print(_cut_log(Path({str(path)!r}), 9))'
    command = ['bash', '-c', f'ulimit -v 8000000; exec {sys.executable} -c "$0"', code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == '2.5\n' and path.read_text() == '{"env_step": 1, "wall_s": 2.5}\n', done.stderr
