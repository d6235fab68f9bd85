"""The log of a run: an observer gathers its numbers, metrics go to sinks, progress to the console; a full disk, lost
connection or closed terminal does not stop a run."""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from zoo.config.section import Config
from zoo.config.yaml_io import function_name
from zoo.core.data import Timestep
from zoo.core.errors import place_of, show_error
from zoo.core.streams import standard
from zoo.run.base_config import JobConfig, LoggerConfig
from zoo.run.data_parallel import Agreement
from zoo.run.log.sinks import FileSink, JsonlSink, Sink, make_sinks
from zoo.run.observers.base import Observer, RunView
from zoo.run.observers.diagnostics import LEARNED_REWARD, Diagnostics
from zoo.worker.evaluator import Evaluation


class Console:
    """Shows the progress of a run, at most every `freq` seconds and at the end. Args: draw: shows a text; may raise OSError."""

    def __init__(self, freq: float, draw: Callable[[str], object]) -> None:
        self._freq = freq
        self._draw = draw
        self._next = -math.inf
        self._pending = ''

    def show(self, env_step: int, text: str) -> None:
        """Takes the newest text, and draws it if the last one was drawn `freq` seconds ago."""
        self._pending = text
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._freq
            self._draw_pending()

    def close(self) -> None:
        """Draws the last text."""
        self._draw_pending()

    def _draw_pending(self) -> None:
        pending = self._pending
        self._pending = ''
        if pending:
            self._draw(pending)


def plain_console(exp_name: str, freq: float) -> Console:
    """A console that prints lines on stderr."""

    def draw(text: str) -> None:
        stderr = standard('stderr')
        stderr.write(f'{exp_name}  {text}\n')
        stderr.flush()

    return Console(freq, draw)


class LiveConsole(Console):
    """Redraws one line on stderr; leaves stdout unchanged."""

    def __init__(self, exp_name: str, max_env_step: int, freq: float) -> None:
        super().__init__(freq, lambda text: self._progress.refresh())
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        console = RichConsole(stderr=True)
        name, text = (
            TextColumn(f'{{task.{field}}}', markup=False, table_column=Column(no_wrap=True))
            for field in ('description', 'fields[text]')
        )
        columns = [name, *([BarColumn(16)] if console.width >= 120 else []), text]
        self._progress = Progress(*columns, console=console, auto_refresh=False, redirect_stdout=False)
        self._task = self._progress.add_task(exp_name, total=max_env_step, text='')
        self._progress.start()
        console.show_cursor(True)  # rich hides the cursor, and a killed run could not restore it

    def show(self, env_step: int, text: str) -> None:
        width = self._progress.console.width
        room = width - len(f'{self._progress.tasks[0].description} ') - (18 if width >= 120 else 0)  # 18: the bar
        for part in (r'  best \S+', r'  \S+/s', ' env steps', r'  \S+ left'):  # left out on a narrow terminal
            if len(text) > room:
                text = re.sub(part, '', text)
        self._progress.update(self._task, completed=env_step, text=text)
        super().show(env_step, text)

    def close(self) -> None:
        self._progress.stop()


def notebook_console(exp_name: str, freq: float) -> Console:
    """A console that redraws one line in the output of a notebook's cell, by IPython alone: no widgets."""
    from IPython.display import display

    def data(text: str) -> dict[str, str]:
        return {'text/plain': f'{exp_name}  {text}'}

    # each later text replaces this one, wherever the cell has been scrolled to
    line = display(data(''), raw=True, display_id=True)
    return Console(freq, lambda text: line.update(data(text), raw=True))


def in_notebook() -> bool:
    """Whether this process is a kernel of Jupyter, VS Code, Colab, ...: a cell's output can be replaced there."""
    ipython = sys.modules.get('IPython')  # a kernel has imported it
    shell = None
    if ipython is not None:
        shell = ipython.get_ipython()
    return getattr(shell, 'kernel', None) is not None


def make_console(
    kind: Literal['auto', 'live', 'plain', 'table', 'off'], freq: float | None, exp_name: str, max_env_step: int
) -> Console | None:
    """The console of `logger.console`, with `freq` seconds between updates, None: 0.5 for live, 5 for plain."""
    if kind in ('auto', 'live') and in_notebook():
        return notebook_console(exp_name, freq or 0.5)
    if kind == 'auto':
        if standard('stderr').isatty():
            kind = 'live'
        else:
            kind = 'plain'
    if kind == 'live':
        return LiveConsole(exp_name, max_env_step, freq or 0.5)
    if kind == 'plain':
        return plain_console(exp_name, freq or 5.0)
    return None


logger = logging.getLogger(__name__)


class Logger:
    """The log of one run, or its continuation from `start_env_step`, which removes later lines of the earlier log.

    Args:
      run_dir: made if missing; metrics.jsonl and tb/ are written to it.
      max_env_step: for the share done and the time left.
      restore: makes the run folder again if it was removed, and returns whether it was; may raise OSError.
      run_cfg: the complete config, for the sinks; sinks: from `make_sinks`; None: those that cfg names.
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
        run_cfg: JobConfig | None = None,
        sinks: Sequence[Any] | None = None,
    ) -> None:
        self._folder = folder = Path(run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self.listeners: list[Callable[[dict[str, float]], None]] = []
        self._failing: set[str] = set()
        run_cfg = run_cfg or Config({'exp_name': exp_name})
        self._start = time.monotonic()
        self._sinks: list[Any] = []
        for sink in make_sinks(cfg) if sinks is None else sinks:
            with suppress(AttributeError):  # a class with __slots__ has its own
                sink.env_step = start_env_step
            self._sinks.append(sink)
            if isinstance(sink, FileSink):
                sink.open(run_cfg, folder)  # if a file cannot be opened, no run begins
            elif not self._feed(sink, 'open', run_cfg, folder):
                self._sinks = [other for other in self._sinks if other is not sink]
            if isinstance(sink, JsonlSink):
                self._start = time.monotonic() - sink.wall_s
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
        """Makes files again that were removed or moved, and the folder if it was removed too. Raises: OSError."""
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
        """Shows the progress of the run on the console; may be called often.

        Args: train_return: mean of the last training episodes; last_return, best_return: of evaluations.
        """
        if self._console is None:
            return
        seconds = None
        if env_step_per_s > 0:
            seconds = (self._max_env_step - env_step) / env_step_per_s
        if seconds is None:
            left = '-'
        else:
            left = str(timedelta(seconds=round(max(seconds, 0.0))))
        parts = [
            f'{min(env_step / self._max_env_step, 1.0):4.0%}',
            f'{left} left',
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
        sinks = self._sinks
        self._sinks = []
        self._console = None
        for sink in sinks:
            with suppress(AttributeError):
                sink.has_failed = has_failed
            self._feed(sink, 'close')

    def __enter__(self) -> Logger:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.close(has_failed=kind is not None)

    def _feed(self, sink: Any, method: str, *args: object) -> bool:
        """Calls a method of a sink, and returns whether it succeeded: no failure of a sink ends the run.

        After an OSError, of a full disk or a lost connection, the sink gets the next line; after any other error none.
        """
        if isinstance(sink, FileSink):
            done = self._try(sink.label, lambda: getattr(sink, method)(*args))
            goes_on = done or sink.goes_on
        else:
            if isinstance(sink, Sink) and hasattr(sink, 'name'):
                name = str(sink.name)
            else:
                name = function_name(type(sink))
            done = False
            goes_on = True
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
        """Calls `write` and returns whether it succeeded; only the first failure in a row gives a warning."""
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
            if isinstance(value, int):
                values[name] = int(value)
            else:
                values[name] = float(value)
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


def _number(value: float | None) -> str:
    if value is None:
        return '-'
    if abs(value) < 1000:
        return f'{value:.4g}'
    return f'{value:,.0f}'


class Report(Observer):
    """Observer that writes the log of a run; made when the run begins or continues.

    Args: diagnostics: look at each line of training metrics; agreement: merges the numbers of all ranks; env_values: returns
      more numbers of the envs.
    """

    def __init__(
        self,
        logger: Logger,
        job: RunView,
        diagnostics: Sequence[Diagnostics],
        agreement: Agreement,
        env_values: Callable[[], Mapping[str, float]],
    ) -> None:
        self._logger = logger
        self._job = job
        self._diagnostics = diagnostics
        self._agreement = agreement
        self._env_values = env_values
        self._start_step = self._write_step = job.env_step
        self._last = job.clocks(), job.collector.collect_iter  # when the last line was written
        self._metrics: dict[str, Any] = {}  # the newest values since the last line of the log

    @property
    def env_step_per_s(self) -> float:
        """Env steps per second since this report began."""
        return (self._job.env_step - self._start_step) / max(self._job.timer.run_s, 1e-9)

    def on_metrics(self, job: RunView, metrics: Mapping[str, Any]) -> None:
        """Takes the metrics of one iteration; writes a line if it is due.

        Metrics of earlier iterations are kept until then: an auxiliary phase is not in every iteration.
        """
        self._metrics |= metrics
        env_step = job.env_step
        if env_step - self._write_step >= job.cfg.logger.freq:
            self._write_line(env_step)
            self._write_step = env_step
            self._metrics = {}

    def _write_line(self, env_step: int) -> None:
        """Writes a line of training metrics, and shows it to the diagnostics with the mean reward that is learned from."""
        line = self._logger.write(env_step, self._row())
        steps = self._job.collector.block.steps
        if steps.raw_reward is not None:  # the env gives the policy another reward than that of the log
            learned = reward_metrics(steps._replace(raw_reward=None)).get('reward_mean', math.nan)
            line = {**line, LEARNED_REWARD: float(learned)}
        for diagnostics in self._diagnostics:
            diagnostics.look(env_step, line)

    def on_evaluate(self, job: RunView, evaluation: Evaluation) -> None:
        self._logger.write(job.env_step, {f'eval/{name}': value for name, value in evaluation.metrics().items()})

    def show_progress(self, *_: object) -> None:
        """Updates the line on the console: the mean return of training episodes, the last evaluation and the best one."""
        known = self._job.progress
        returns = self._job.collector.episodes.returns
        train = None
        if returns:
            train = sum(returns) / len(returns)
        self._logger.progress(self._job.env_step, train, known.last_return, known.best_return, self.env_step_per_s)

    def _row(self) -> dict[str, Any]:
        episodes = self._job.collector.episodes
        collector = self._job.collector
        job = self._job
        returns, lengths, infos = self._agreement.episodes()
        row = {
            **{f'learn/{name}': value for name, value in self._agreement.metrics(self._metrics).items()},
            **self._counts(),
            'collect/iter': collector.collect_iter,
            'collect/episode': episodes.n_episode,
            'env/reset': episodes.n_reset,
            **self._env_values(),
        }
        if job.parts.restarts.count:
            row['env/restart'] = job.parts.restarts.count
        if returns:
            row |= {f'collect/return_{name}': value for name, value in _statistics(returns).items()}
            row['collect/episode_len_mean'] = sum(lengths) / len(lengths)
        own = infos.metrics() | self._agreement.metrics(reward_metrics(collector.block.steps))
        row |= {f'collect/{name}': value for name, value in own.items()}
        row |= self._agreement.own_numbers(job.own_numbers)
        row |= self._agreement.collector_metrics()  # of runners or agents, where there are any
        now = job.clocks()
        before, n_before = self._last
        total = max(sum(now.seconds.values()), 1e-9)
        row['time/env_step_per_s'] = self.env_step_per_s
        row |= {f'time/share_{name}': value / total for name, value in now.seconds.items()}
        n_round = max(collector.collect_iter - n_before, 1)  # since the last line
        self._last = now, collector.collect_iter
        return row | {f'time/{name}_s': x / n_round for name, x in now.since(before).seconds.items()}

    def _counts(self) -> dict[str, int]:
        """The gradient steps and samples of each learner, by their names in the log."""
        counts = {}
        for learner in self._job.parts.learners.values():
            counts[f'learn/{learner.metric("train_iter")}'] = learner.train_iter
            counts[f'learn/{learner.metric("sample")}'] = int(learner.n_sample)
        return counts


def reward_metrics(steps: Timestep) -> dict[str, Tensor | float]:
    """Mean, deviation, least and greatest reward of an env step in the last rollout, before any scaling."""
    if steps.raw_reward is None:
        reward = steps.reward
    else:
        reward = steps.raw_reward
    if reward.device.type != 'cpu':  # on a device, where no shape may depend on the data
        least, greatest = reward.aminmax()
        wide = reward.double()
        return {
            'reward_mean': wide.mean(),
            'reward_std': wide.std(correction=0),
            'reward_min': least,
            'reward_max': greatest,
        }
    if steps.is_reset is None:
        x = reward.numpy().ravel()
    else:
        x = reward.numpy()[~steps.is_reset.numpy()]
    if not x.size:
        return {}
    mean = float(x.sum(dtype=np.float64)) / x.size
    off = x.astype(np.float64) - mean
    deviation = math.sqrt(float(np.square(off, out=off).sum()) / x.size)  # a dot product would wake BLAS's threads
    return {'reward_mean': mean, 'reward_std': deviation, 'reward_min': float(x.min()), 'reward_max': float(x.max())}


def _statistics(values: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation (without correction), minimum and maximum."""
    if len(values) > 1_000:  # of thousands of envs, where Python would take milliseconds
        x = np.fromiter(values, np.float64, len(values))
        return {'mean': float(x.mean()), 'std': float(x.std()), 'min': float(x.min()), 'max': float(x.max())}
    mean = sum(values) / len(values)
    std = math.sqrt(sum([(x - mean) ** 2 for x in values]) / len(values))
    return {'mean': mean, 'std': std, 'min': min(values), 'max': max(values)}
