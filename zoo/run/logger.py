"""Writes metrics to sinks and shows progress; a full disk, lost connection or closed terminal does not stop a run."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from zoo.config.parts import parts_of
from zoo.config.section import Config, Section
from zoo.config.yaml_text import function_name
from zoo.core.errors import place_of, show_error
from zoo.core.registry import SINK_REGISTRY
from zoo.run.console import make_console
from zoo.run.sinks import FileSink, JsonlSink, Sink, make_sinks

logger = logging.getLogger(__name__)


class LoggerConfig(Section):
    """Where a run is logged and what the console shows."""

    root: str = Field('runs', min_length=1, description='folder for run folders')
    freq: int = Field(1_000, gt=0, description='env steps between log lines; at most one line per rollout')
    tensorboard: bool = Field(True, description='write TensorBoard files to the folder tb of the run')
    sinks: parts_of(SINK_REGISTRY, 'logger.sinks') = Field(  # type: ignore[valid-type]
        [],
        description='where metrics go besides metrics.jsonl: csv, {type: wandb, project: x}, {type: mlflow}, or '
        "your own, 'module:Class' or 'path/file.py:Class'",
    )
    info_keys: list[str] | Literal['auto'] = Field(
        'auto',
        description="the env's own numbers: entries of an episode's last info, logged as collect/info/<entry>_mean and "
        'eval/info/<entry>_mean; auto: all numbers and bools; []: none',
    )
    info_step_keys: list[str] = Field(
        [], description="entries of the info of every step, whose mean over each episode is logged like info_keys'"
    )
    video_freq: int = Field(
        0,
        ge=0,
        description='evaluations between videos of one episode, videos/step_<env step>.mp4 in the run folder (extra video); '
        '0: none',
    )
    console: Literal['auto', 'live', 'plain', 'off'] = Field(
        'auto',
        description='progress on stderr: a live line, plain lines or none; auto: live on a terminal and in a notebook, '
        'else plain',
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
      run_cfg: the complete config, which sinks are given; sinks: of `make_sinks`; None: those that cfg names.
    Attributes: listeners: called with the numbers of each line that `write` was given.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        cfg: LoggerConfig,
        exp_name: str,
        max_env_step: int,
        start_env_step: int = 0,
        restore: Callable[[], bool] = lambda: False,
        run_cfg: Config | None = None,
        sinks: Sequence[Any] | None = None,
    ) -> None:
        self._folder = folder = Path(run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self.listeners: list[Callable[[dict[str, float]], None]] = []
        self._failing: set[str] = set()
        self._run_cfg = run_cfg or Config({'exp_name': exp_name})
        self._start = time.monotonic()
        self._sinks: list[Any] = []
        for sink in make_sinks(cfg.sinks, cfg.tensorboard) if sinks is None else sinks:
            self._open(sink, start_env_step)
        self._console = make_console(cfg.console, cfg.console_freq, exp_name, max_env_step)
        self._restore = restore
        self._max_env_step = max_env_step

    def write(self, env_step: int, metrics: Mapping[str, Tensor | float | int]) -> dict[str, float]:
        """Writes metrics to all sinks; one host sync for all tensors together.

        Args: metrics: by name (group/name); tensors are 0-dim, on any device.
        Returns: the same as numbers. In metrics.jsonl NaN and infinity become null: JSON has neither.
        """
        values = _to_numbers(metrics)
        row = {'wall_s': round(time.monotonic() - self._start, 3), **values}
        has_folder = self._try(f'run folder {self._folder}', self.keep_files)
        for sink in list(self._sinks):
            if has_folder or not isinstance(sink, FileSink):
                self._feed(sink, 'write', env_step, row)
        for listener in self.listeners:
            listener(values)
        return values

    def video(self, env_step: int, path: Path) -> None:
        """Shows a video to the sinks that take one, see `Sink.video`."""
        for sink in list(self._sinks):
            if hasattr(sink, 'video'):
                self._feed(sink, 'video', env_step, path)

    def keep_files(self) -> None:
        """Begins the files anew that were removed or moved, in a folder made anew if it was too. Raises: OSError."""
        is_new = self._restore()
        for file in self._sinks:
            if isinstance(file, FileSink) and not file.is_in_place():
                file.reopen()
                if not is_new:
                    logger.warning('%s was removed or moved; it is begun anew', file.path)

    def progress(
        self,
        env_step: int,
        train_return: float | None,
        last_return: float | None,
        best_return: float | None,
        env_step_per_s: float,
    ) -> None:
        """Shows on the console how far the run is; may be called often.

        Args: train_return: mean of the last training episodes; last_return, best_return: of evaluations.
        """
        if self._console is None:
            return
        left = (self._max_env_step - env_step) / env_step_per_s if env_step_per_s > 0 else math.inf
        # a narrow terminal cuts off the end
        parts = [
            f'{min(env_step / self._max_env_step, 1.0):4.0%}',
            f'left {_duration(left)}',
            f'train {_number(train_return)}',
            f'last {_number(last_return)}',
            f'best {_number(best_return)}',
            f'{env_step_per_s:,.0f}/s',
            f'{env_step:,}/{self._max_env_step:,} env steps',
        ]
        console = self._console
        if not self._try('console', lambda: console.show(env_step, '  '.join(parts))):
            self._console = None

    def close(self, has_failed: bool = False) -> None:
        """Shows the last progress and closes all sinks; calling it again does nothing.

        Args: has_failed: an error ended the run, which trackers show.
        """
        if self._console is not None:
            self._try('console', self._console.close)
        sinks, self._sinks, self._console = self._sinks, [], None
        for sink in sinks:
            with suppress(AttributeError):
                sink.has_failed = has_failed
            self._feed(sink, 'close')

    def __enter__(self) -> Logger:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.close(has_failed=kind is not None)

    def _open(self, sink: Any, start_env_step: int) -> None:
        """Opens a sink. Raises: OSError if a file in the run folder cannot be opened."""
        with suppress(AttributeError):  # a class with __slots__ has its own
            sink.env_step = start_env_step
        if isinstance(sink, FileSink):
            sink.open(self._run_cfg, self._folder)
            self._sinks.append(sink)
        else:
            self._sinks.append(sink)
            if not self._feed(sink, 'open', self._run_cfg, self._folder):
                self._sinks = [other for other in self._sinks if other is not sink]
        if isinstance(sink, JsonlSink):
            self._start = time.monotonic() - sink.wall_s

    def _feed(self, sink: Any, method: str, *args: Any) -> bool:
        """Calls a method of a sink, and returns whether it succeeded: no failure of a sink ends the run.

        After an OSError, of a full disk or a lost connection, the sink gets the next line; after any other error none.
        """
        if isinstance(sink, FileSink):
            done = self._try(sink.label, lambda: getattr(sink, method)(*args))
            goes_on = done or sink.goes_on
        else:
            name, done, goes_on = _name_of(sink), False, True
            try:
                done = self._try(f'sink {name}', lambda: getattr(sink, method)(*args))
            except Exception as error:  # code of a tracker or of the user
                goes_on = False
                words = 'sink %s raised in %s %s (%s); training continues without it'
                logger.warning(words, name, method, show_error(error, 300), place_of(error))
        if not goes_on:
            self._sinks = [other for other in self._sinks if other is not sink]
        return done

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


def _to_numbers(metrics: Mapping[str, Tensor | float | int]) -> dict[str, float]:
    values: dict[str, Any] = dict(metrics)
    kinds: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, value in metrics.items():
        if not isinstance(value, Tensor):
            values[name] = int(value) if isinstance(value, int) else float(value)
        elif value.dim():
            raise ValueError(f'metric {name} has shape {list(value.shape)}; pass a 0-dim tensor, e.g. its mean')
        else:
            kinds.setdefault((value.device, value.dtype), []).append(name)
    with torch.no_grad():  # one stack for each kind, and one sync for each device; none for the CPU
        stacks: dict[torch.device, list[Tensor]] = {}
        for (device, _), names in kinds.items():
            stacks.setdefault(device, []).append(torch.stack([metrics[name] for name in names]).double())  # type: ignore[misc]
        for device, stacked in stacks.items():
            names = [name for kind, names in kinds.items() if kind[0] == device for name in names]
            values.update(zip(names, (stacked[0] if len(stacked) == 1 else torch.cat(stacked)).tolist(), strict=True))
    return values


def _name_of(sink: Any) -> str:
    """The name of a sink in messages."""
    return function_name(type(sink)) if not isinstance(sink, Sink) or not hasattr(sink, 'name') else str(sink.name)


def _number(value: float | None) -> str:
    return '-' if value is None else f'{value:.4g}' if abs(value) < 1000 else f'{value:,.0f}'


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(max(seconds, 0.0)))) if math.isfinite(seconds) else '-'
