"""Sinks for the metrics of a run: their interface, those that the config names, and the files that zoo itself writes."""

from __future__ import annotations

import csv
import errno
import io
import json
import logging
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from zoo.config.components import component_object, section_of
from zoo.config.section import ConfigError
from zoo.core.errors import shown
from zoo.core.files import is_in_place, open_without_link, whole_file
from zoo.core.registry import SINK_REGISTRY, TOOL_REGISTRY
from zoo.core.streams import standard, visible
from zoo.run.base_config import JobConfig, LoggerConfig

logger = logging.getLogger(__name__)
_FLUSH_S = 10.0  # tensorboardX syncs the disk at every flush: some milliseconds


class Sink:
    """A destination for the metrics of a run. Derive a class, or write one with the methods open, write and close.

    A config names it, `logger.sinks: ['my_module:MySink']`. Its options are the keyword-only parameters of its constructor:
    `{type: 'my_module:MySink', host: here}`. A resume makes a new one. If a method raises an error, the run gives one
    warning and continues: without the sink, or, after an OSError of `write`, with another try at the next line.

    Attributes, set before `open`: env_step: env step that the run continues from, 0 for a new run; set before `close`:
      has_failed: an error ended the run.
    """

    env_step: int = 0
    has_failed: bool = False

    def open(self, cfg: JobConfig, run_dir: Path) -> None:
        """The run begins or continues. Args: cfg: its complete config, read-only, e.g. cfg.exp_name; run_dir: its folder."""

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        """Gets one line of the log.

        Args: metrics: by name, 'eval/return_mean'; 'wall_s' is seconds since the run began, those before a resume
          included. NaN and infinity occur. A line of training metrics and one of an evaluation may have one env step.
        """

    def video(self, env_step: int, path: Path) -> None:
        """A video of one episode was written (logger.video_freq). A sink that shows videos overrides this.

        Args: path: of the file .mp4 in the run folder.
        """

    def close(self) -> None:
        """The run has ended, or stops for now; called once."""


class FileSink(Sink):
    """A sink that appends to a file in the run folder.

    Attributes: path: of the file; label: its name in warnings; goes_on: after an OSError the next line is tried again.
    """

    path: Path
    label: str
    goes_on: bool = True
    _stat: os.stat_result

    def is_in_place(self) -> bool:
        """Whether the open file is still at its path."""
        return is_in_place(self.path, self._stat)

    def reopen(self) -> None:
        """Makes the file again if it was removed or moved. Raises: OSError."""
        raise NotImplementedError


class LineSink(FileSink):
    """A sink that appends complete lines or nothing, so that a disk that is full for a while leaves no truncated line."""

    def begin(self) -> None:
        """Opens the file at `path`."""
        self._file = open(self.path, 'ab', buffering=0, opener=open_without_link)
        self._stat = os.fstat(self._file.fileno())

    def append(self, line: str) -> None:
        """Writes a line. Raises: OSError, after which the file is as it was."""
        data = line.encode() + b'\n'
        end = os.fstat(self._file.fileno()).st_size
        if self._file.write(data) != len(data):
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, 'no room for a whole line')

    def close(self) -> None:
        self._file.close()


def make_sinks(cfg: LoggerConfig) -> list[Any]:
    """The sinks of a run, not open yet: first metrics.jsonl, which every run has and other code reads.

    Raises: ConfigError if a library is not installed, or a name is not that of a sink or occurs twice.
    """
    names = [section_of(SINK_REGISTRY, spec, 'logger.sinks').type for spec in cfg.sinks]
    for name, n in Counter(names).items():
        if n > 1 and name in SINK_REGISTRY:
            raise ConfigError(
                f'logger.sinks names {name!r} {n} times but a run has one of a kind; leave out the others.'
            )
    always = {'jsonl': True, 'tensorboard': cfg.tensorboard or 'tensorboard' in names, 'table': cfg.console == 'table'}
    first = [name for name, is_on in always.items() if is_on]
    rest = [spec for spec, name in zip(cfg.sinks, names, strict=True) if name not in first]
    sinks = [_make(spec) for spec in [*first, *rest]]
    return sorted(sinks, key=lambda sink: not isinstance(sink, FileSink))  # files first: a failed open ends the run


def _make(spec: object) -> Any:
    section = section_of(SINK_REGISTRY, spec, 'logger.sinks')
    sink = component_object(SINK_REGISTRY, section, 'logger.sinks')
    missing = [method for method in ('open', 'write', 'close') if not callable(getattr(sink, method, None))]
    if missing:
        raise ConfigError(
            f'logger.sinks names {section.type!r}, whose objects are {shown(sink)} without {", ".join(missing)}; name a '
            'class with open(cfg, run_dir), write(env_step, metrics) and close(), see zoo.Sink.'
        )
    return sink


@SINK_REGISTRY.register('csv')
class CsvSink(LineSink):
    """progress.csv in the run folder: one row for each line of the log, a column for each metric that any line has.

    A cell is empty where a line lacks the metric, and 'nan' where it was NaN or infinite. The file is made from
    metrics.jsonl when the run begins or continues, and again when a metric first appears. So it also has the lines from
    before this sink was configured, and a resume removes the same lines from both files.
    """

    label = 'progress.csv'

    def open(self, cfg: JobConfig, run_dir: Path) -> None:
        self.path = run_dir / 'progress.csv'
        self._source = run_dir / 'metrics.jsonl'
        for file in run_dir.glob('progress.csv.*.tmp'):  # of a process that was killed while it wrote
            file.unlink()
        self._make()

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        row = {'env_step': env_step, **metrics}
        if row.keys() <= self._columns.keys():
            self.append(_line(row.get(name, '') for name in self._columns))
        else:
            self.reopen()

    def reopen(self) -> None:
        self.close()
        self._make()

    def _make(self) -> None:
        """Writes the whole file again from metrics.jsonl, which already has the newest line."""
        self._columns = {'env_step': None, 'wall_s': None}  # an ordered set
        for row in self._rows():
            self._columns |= dict.fromkeys(row)
        try:
            with whole_file(self.path) as file:
                file.write(_line(self._columns).encode() + b'\n')
                for row in self._rows():
                    file.write(_line(row.get(name, '') for name in self._columns).encode() + b'\n')
        except OSError:
            self._columns = {}  # the next line tries it again
            raise
        finally:
            self.begin()

    def _rows(self) -> Iterator[dict[str, Any]]:
        if self._source.exists():
            with open(self._source, 'rb', opener=open_without_link) as file:
                for line in iter(partial(file.readline, MAX_LINE), b''):
                    with suppress(ValueError, TypeError, RecursionError):  # a line that somebody else wrote
                        yield dict(json.loads(line))


MAX_LINE = 1 << 20  # most bytes of a line of metrics.jsonl that are read at once: a metric takes about 40


def _line(cells: Iterable[Any]) -> str:
    """A CSV row, with 'nan' for values that were NaN or infinite, which are null in metrics.jsonl."""
    row = ['nan' if cell is None or isinstance(cell, float) and not math.isfinite(cell) else cell for cell in cells]
    text = io.StringIO()
    csv.writer(text, lineterminator='').writerow(row)
    return text.getvalue()


@SINK_REGISTRY.register('jsonl')
class JsonlSink(LineSink):
    """metrics.jsonl in the run folder, one JSON object a line: always written, named or not.

    NaN and infinity become null: JSON has neither. A resume removes lines after the env step that it continues from.
    Attributes: wall_s: of the last line that `open` found and kept, else 0.
    """

    label = 'metrics.jsonl'

    def open(self, cfg: JobConfig, run_dir: Path) -> None:
        self.path = run_dir / 'metrics.jsonl'
        self.wall_s = _cut_log(self.path, self.env_step)
        self.begin()

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self.append(json.dumps({'env_step': env_step, **finite}))

    def reopen(self) -> None:
        old = self._file
        self.begin()
        old.close()


@SINK_REGISTRY.register('table')
class TableSink(Sink):
    """A table on stderr of the metrics of each line, by groups; `logger.console: table` shows it instead of the live line."""

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        rows = [('env_step', f'{env_step:,}')]
        group = ''
        for path in sorted(metrics, key=lambda path: path.rpartition('/')[::2]):
            head, _, name = path.rpartition('/')
            if head != group:
                rows += [(visible(f'{head}/'), '')]
            group = head
            value = metrics[path]
            if abs(value) < 9999.5:
                number = f'{value:.4g}'
            else:
                number = f'{value:,.0f}'
            rows.append((visible(f'  {name}' if head else name), number))
        left, right = (max(map(len, column)) for column in zip(*rows, strict=True))
        rule = '-' * (left + right + 7)
        lines = [rule, *(f'| {name:<{left}} | {value:>{right}} |' for name, value in rows), rule]
        stderr = standard('stderr')
        stderr.write('\n'.join(lines) + '\n')
        stderr.flush()


def _cut_log(path: Path, env_step: int) -> float:
    """Removes all lines after env_step, and a truncated one; returns wall_s of the last line that is kept."""
    if not path.exists():
        return 0.0
    wall_s = 0.0
    end = 0
    with open(path, 'r+b', opener=open_without_link) as file:
        for line in iter(partial(file.readline, MAX_LINE), b''):  # a longer line is cut, and so ends the log
            try:
                row = json.loads(line)
                if row['env_step'] > env_step or not line.endswith(b'\n'):
                    break
                wall_s = float(row['wall_s'])
            except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
                break
            end += len(line)
        file.truncate(end)
    return wall_s


@SINK_REGISTRY.register('tensorboard')
class TensorBoardSink(FileSink):
    """Scalars for TensorBoard, in event files in the folder tb of the run; the same as `logger.tensorboard: true`.

    It avoids SummaryWriter, whose thread ends when the disk is full; later calls would wait for it for ever.
    """

    label = 'TensorBoard files'
    goes_on = False  # after a truncated record all later ones are unreadable
    _flushed: float

    def open(self, cfg: JobConfig, run_dir: Path) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        self._event = Event
        self._summary = Summary
        self._folder = run_dir / 'tb'
        self._suffix = f'.{self.env_step}.{os.getpid()}'
        self._open()
        if self.env_step:  # TensorBoard then hides later steps of earlier files
            self._add(self.env_step + 1, session_log=SessionLog(status=SessionLog.START))

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        # TensorBoard has the time of each event itself
        scalars = [self._summary.Value(tag=x, simple_value=metrics[x]) for x in metrics if x != 'wall_s']
        self._add(env_step, summary=self._summary(value=scalars))
        if time.monotonic() - self._flushed > _FLUSH_S:
            self._writer.flush()
            self._flushed = time.monotonic()

    def video(self, env_step: int, path: Path) -> None:
        """Writes the first seconds as a small animated image, because TensorBoard shows no videos."""
        gif = TOOL_REGISTRY.get('video_preview')(path)
        width, height = (int.from_bytes(gif[at : at + 2], 'little') for at in (6, 8))
        image = self._summary.Image(width=width, height=height, colorspace=3, encoded_image_string=gif)
        self._add(env_step, summary=self._summary(value=[self._summary.Value(tag='eval/video', image=image)]))

    def reopen(self) -> None:
        old = self._writer
        self._open()
        with suppress(OSError):
            old.close()

    def close(self) -> None:
        self._writer.close()

    def _add(self, env_step: int, **content: Any) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), step=env_step, **content))

    def _open(self) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        self._folder.mkdir(exist_ok=True)
        _tell_wandb(self._folder)
        self._writer = EventsWriter(str(self._folder / 'events'), self._suffix)
        self.path = max(self._folder.glob(f'events*{self._suffix}'))  # its name begins with the time
        self._stat = os.stat(self.path)
        self._flushed = time.monotonic()


def _tell_wandb(folder: Path) -> None:
    """Makes a W&B run that the user began with wandb.init(sync_tensorboard=True) read the event files of this folder.

    W&B finds such folders by replacing the class of SummaryWriter's files, which zoo does not use.
    """
    run = getattr(sys.modules.get('wandb'), 'run', None)
    if run is None or not getattr(run.settings, 'sync_tensorboard', False):
        return
    try:
        run._tensorboard_callback(str(folder), save=True, root_logdir='')
    except Exception as error:  # of another version of W&B
        logger.warning(
            'the W&B run does not get the TensorBoard files (%s); use logger.sinks: [wandb]',
            ' '.join(str(error).split()),
        )
