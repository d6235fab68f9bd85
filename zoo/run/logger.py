"""Writes metrics to metrics.jsonl, TensorBoard and the console; a full disk or closed terminal does not stop a run."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from zoo.config.section import Section
from zoo.core.files import is_in_place, open_without_link
from zoo.run.console import make_console

logger = logging.getLogger(__name__)

_FLUSH_S = 10.0  # tensorboardX syncs the disk at every flush: some milliseconds


class LoggerConfig(Section):
    """Where a run is logged and what the console shows."""

    root: str = Field('runs', min_length=1, description='folder for run folders')
    freq: int = Field(1_000, gt=0, description='env steps between log lines; at most one line per rollout')
    tensorboard: bool = Field(True, description='write TensorBoard files to the folder tb of the run')
    console: Literal['auto', 'live', 'plain', 'off'] = Field(
        'auto', description='progress on stderr: a live line, plain lines or none; auto: live on a terminal, else plain'
    )
    console_freq: float | None = Field(
        None, gt=0, description='seconds between updates of the console; null: 0.5 for live, 5 for plain'
    )


class Logger:
    """The log of one run, or its continuation from `start_env_step`, which removes later lines of the earlier log.

    Args:
      run_dir: made if missing; metrics.jsonl and tb/ are written to it.
      max_env_step: for the share done and the time left.
      restore: makes the run folder anew if it was removed, and returns whether it was; may raise OSError.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        cfg: LoggerConfig,
        exp_name: str,
        max_env_step: int,
        start_env_step: int = 0,
        restore: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folder = folder = Path(run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self._start = time.monotonic() - _cut_log(folder / 'metrics.jsonl', start_env_step)
        self._lines: _LineFile | None = _LineFile(folder / 'metrics.jsonl')
        self._events = _EventFile(folder / 'tb', start_env_step) if cfg.tensorboard else None
        self._console = make_console(cfg.console, cfg.console_freq, exp_name, max_env_step)
        self._restore = restore
        self._failing: set[str] = set()
        self._max_env_step = max_env_step

    def write(self, env_step: int, metrics: Mapping[str, Tensor | float | int]) -> dict[str, float]:
        """Writes metrics to metrics.jsonl and TensorBoard; one host sync for all tensors together.

        Args: metrics: by name (group/name); tensors are 0-dim, on any device.
        Returns: the same as numbers. In metrics.jsonl NaN and infinity become null: JSON has neither.
        """
        values = _to_numbers(metrics)
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        row = {'env_step': env_step, 'wall_s': round(time.monotonic() - self._start, 3), **finite}
        if not self._try(f'run folder {self._folder}', self.keep_files):
            return values
        if self._lines is not None:
            lines = self._lines
            self._try('metrics.jsonl', lambda: lines.append(json.dumps(row)))
        if self._events is not None:
            events = self._events
            if not self._try('TensorBoard files', lambda: events.append(env_step, values)):
                self._events = None  # after a truncated record all later ones are unreadable
        return values

    def keep_files(self) -> None:
        """Begins the files anew that were removed or moved, in a folder made anew if it was too. Raises: OSError."""
        is_new = self._restore()
        for file in (self._lines, self._events):
            if file is not None and not file.is_in_place():
                file.reopen()
                if not is_new:
                    logger.warning('%s was removed or moved; it is begun anew', file.path)

    def progress(
        self, env_step: int, last_return: float | None, best_return: float | None, env_step_per_s: float
    ) -> None:
        """Shows on the console how far the run is; may be called often."""
        if self._console is None:
            return
        left = (self._max_env_step - env_step) / env_step_per_s if env_step_per_s > 0 else math.inf
        # a narrow terminal cuts off the end
        parts = [
            f'{min(env_step / self._max_env_step, 1.0):4.0%}',
            f'left {_duration(left)}',
            f'last {_number(last_return)}',
            f'best {_number(best_return)}',
            f'{env_step_per_s:,.0f}/s',
            f'{env_step:,}/{self._max_env_step:,} env steps',
        ]
        console = self._console
        if not self._try('console', lambda: console.show(env_step, '  '.join(parts))):
            self._console = None

    def close(self) -> None:
        """Shows the last progress and flushes all files; calling it again does nothing."""
        if self._console is not None:
            self._try('console', self._console.close)
        if self._events is not None:
            self._try('TensorBoard files', self._events.close)
        if self._lines is not None:
            self._lines.close()
        self._console, self._events, self._lines = None, None, None

    def __enter__(self) -> Logger:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _try(self, what: str, write: Callable[[], None]) -> bool:
        """Whether the write succeeded; only the first failure in a row gives a warning."""
        try:
            write()
        except OSError as error:
            if what not in self._failing:
                logger.warning('%s cannot be written (%s); training continues', what, error.strerror or error)
            self._failing.add(what)
            return False
        self._failing.discard(what)
        return True


class _LineFile:
    """Appends complete lines or nothing, so that a disk that is full for a while leaves no truncated line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()

    def is_in_place(self) -> bool:
        return is_in_place(self.path, self._stat)

    def reopen(self) -> None:
        old = self._file
        self._open()
        old.close()

    def _open(self) -> None:
        self._file = open(self.path, 'ab', buffering=0, opener=open_without_link)
        self._stat = os.fstat(self._file.fileno())

    def append(self, line: str) -> None:
        data = line.encode() + b'\n'
        end = os.fstat(self._file.fileno()).st_size
        if self._file.write(data) != len(data):
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, 'no room for a whole line')

    def close(self) -> None:
        self._file.close()


class _EventFile:
    """Scalars for TensorBoard, one event a write.

    It avoids SummaryWriter, whose thread ends when the disk is full; later calls would wait for it without end.
    """

    def __init__(self, folder: Path, start_env_step: int) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        self._event, self._summary = Event, Summary
        self._folder, self._suffix = folder, f'.{start_env_step}.{os.getpid()}'
        self._open()
        if start_env_step:  # TensorBoard then hides later steps of earlier files
            self._writer.write_event(
                Event(wall_time=time.time(), step=start_env_step + 1, session_log=SessionLog(status=SessionLog.START))
            )

    def is_in_place(self) -> bool:
        return is_in_place(self.path, self._stat)

    def reopen(self) -> None:
        old = self._writer
        self._open()
        with suppress(OSError):
            old.close()

    def _open(self) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        self._folder.mkdir(exist_ok=True)
        self._writer = EventsWriter(str(self._folder / 'events'), self._suffix)
        self.path = max(self._folder.glob(f'events*{self._suffix}'))  # its name begins with the time
        self._stat = os.stat(self.path)
        self._flushed = time.monotonic()

    def append(self, env_step: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        summary = self._summary(value=scalars)
        self._writer.write_event(self._event(wall_time=time.time(), step=env_step, summary=summary))
        if time.monotonic() - self._flushed > _FLUSH_S:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        self._writer.close()


def _to_numbers(metrics: Mapping[str, Tensor | float | int]) -> dict[str, float]:
    values: dict[str, Any] = dict(metrics)
    devices: dict[torch.device, list[str]] = {}
    for name, value in metrics.items():
        if not isinstance(value, Tensor):
            values[name] = int(value) if isinstance(value, int) else float(value)
        elif value.dim():
            raise ValueError(f'metric {name} has shape {list(value.shape)}; pass a 0-dim tensor, e.g. its mean')
        else:
            devices.setdefault(value.device, []).append(name)
    for names in devices.values():  # one sync for each device; none for the CPU
        stacked = torch.stack([metrics[name].detach().double() for name in names])  # type: ignore[union-attr]
        values.update(zip(names, stacked.tolist(), strict=True))
    return values


def _cut_log(path: Path, env_step: int) -> float:
    """Removes all lines after env_step, and a truncated one; returns wall_s of the last line that is kept."""
    if not path.exists():
        return 0.0
    wall_s, end = 0.0, 0
    with open(path, 'r+b', opener=open_without_link) as file:
        for line in file:
            try:
                row = json.loads(line)
                if row['env_step'] > env_step or not line.endswith(b'\n'):
                    break
                wall_s = float(row['wall_s'])
            except (ValueError, LookupError, TypeError):
                break
            end += len(line)
        file.truncate(end)
    return wall_s


def _number(value: float | None) -> str:
    return '-' if value is None else f'{value:.4g}' if abs(value) < 1000 else f'{value:,.0f}'


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(max(seconds, 0.0)))) if math.isfinite(seconds) else '-'
