"""Sinks by name and by code: their order, refused sinks, sinks that fail."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.run.log.test_logger import read_rows
from zoo import Sink
from zoo.config.section import ConfigError
from zoo.run.base_config import LoggerConfig
from zoo.run.log.logger import Logger
from zoo.run.log.sinks import make_sinks

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
