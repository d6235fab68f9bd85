"""Times the parts of a run, and writes its log and its line on the console."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from zoo.core.data import Timestep
from zoo.core.timer import Clocks, Timer
from zoo.run.data_parallel import Agreement
from zoo.run.log.logger import Logger
from zoo.run.observers.base import Observer, Parts, Progress, RunView
from zoo.worker.evaluator import Evaluation


class Report(Observer):
    """Observer that writes the log of a run which begins, or continues, now.

    Args: freq: env steps between lines of training metrics; look: called with the env step and numbers of each of them;
      agreement: of the ranks, whose numbers are those of all; env_values: gives more numbers of the envs.
    """

    def __init__(
        self,
        logger: Logger,
        parts: Parts,
        progress: Progress,
        timer: Timer,
        freq: int,
        look: Callable[[int, dict[str, float]], object],
        agreement: Agreement,
        env_values: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._agreement, self._look, self._progress = agreement, look, progress
        self._logger, self._parts, self._timer, self._freq = logger, parts, timer, freq
        self._start_step = self._write_step = parts.collector.env_step
        self._env_values = env_values
        self._last = self.clocks(), parts.collector.collect_iter  # as the last line was written
        self._metrics: dict[str, Any] = {}  # the newest values since the last line of the log

    @property
    def env_step_per_s(self) -> float:
        """Env steps per second since this report began."""
        return (self._parts.collector.env_step - self._start_step) / max(self._timer.run_s, 1e-9)

    def clocks(self) -> Clocks:
        """Seconds and calls of each part since the run began; the calls of 'learn' are optimiser steps."""
        collector, timer, envs = self._parts.collector, self._timer, self._parts.envs
        n_step = collector.collect_iter * self._parts.collect_mode.n_step * len(envs)
        calls = {**dict.fromkeys(collector.time, n_step), **timer.calls, 'learn': self._parts.learn_mode.train_iter()}
        return Clocks(time.perf_counter(), collector.env_step, {**collector.time, **timer.seconds}, calls)

    def on_metrics(self, job: RunView, metrics: Mapping[str, Any]) -> None:
        """Takes the metrics of one iteration; writes a line if it is due.

        Metrics of earlier iterations are kept until then: an auxiliary phase is not in every iteration.
        """
        self._metrics |= metrics
        env_step = self._parts.collector.env_step
        if env_step - self._write_step >= self._freq:
            self._look(env_step, self._logger.write(env_step, self._row()))
            self._write_step, self._metrics = env_step, {}

    def on_evaluate(self, job: RunView, evaluation: Evaluation) -> None:
        """Writes a line for an evaluation."""
        row = {f'eval/{name}': value for name, value in evaluation.metrics().items()}
        self._logger.write(self._parts.collector.env_step, row)

    def progress(self, last_return: float | None, best_return: float | None) -> None:
        """Updates the console: the mean return of training episodes, the last evaluation and the best one."""
        collector, returns = self._parts.collector, self._parts.collector.episodes.returns
        train_return = sum(returns) / len(returns) if returns else None
        self._logger.progress(collector.env_step, train_return, last_return, best_return, self.env_step_per_s)

    def _row(self) -> dict[str, Any]:
        collector, episodes = self._parts.collector, self._parts.collector.episodes
        returns, lengths, infos = self._agreement.episodes()
        row = {f'learn/{name}': value for name, value in self._agreement.metrics(self._metrics).items()}
        row |= {
            'learn/train_iter': self._parts.learn_mode.train_iter(),
            'learn/sample': self._progress.n_sample,
            'collect/iter': collector.collect_iter,
            'collect/episode': episodes.n_episode,
            'env/reset': episodes.n_reset,
        }
        row |= self._env_values()
        if self._parts.restarts.count:
            row['env/restart'] = self._parts.restarts.count
        if returns:
            row |= {f'collect/return_{name}': value for name, value in _statistics(returns).items()}
            row['collect/episode_len_mean'] = sum(lengths) / len(lengths)
        row |= {f'collect/{name}': value for name, value in infos.metrics().items()}
        rewards = self._agreement.metrics(reward_metrics(collector.block.steps))
        row |= {f'collect/{name}': value for name, value in rewards.items()}
        row |= collector.metrics()  # of runners, where there are any
        seconds = {**collector.time, **self._timer.seconds}
        total = max(sum(seconds.values()), 1e-9)
        row['time/env_step_per_s'] = self.env_step_per_s
        row |= {f'time/share_{name}': value / total for name, value in seconds.items()}
        (before, n_before), self._last = self._last, (self.clocks(), collector.collect_iter)
        n_round = max(collector.collect_iter - n_before, 1)  # since the last line
        return row | {f'time/{name}_s': x / n_round for name, x in self._last[0].since(before).seconds.items()}


class VideoWriter(Protocol):
    """Writes a video after some evaluations, see `zoo.tools.media.recording.Videos`."""

    def continue_at(self, job: RunView) -> None: ...

    def after_evaluation(self, job: RunView, log: Logger) -> Path | None: ...


class VideoFiles(Observer):
    """Has a video written where one is due."""

    def __init__(self, writer: VideoWriter, log: Logger) -> None:
        self._writer, self._log = writer, log

    def after_evaluation(self, job: RunView, evaluation: Evaluation) -> None:
        """Its time is one of evaluations."""
        with job.timer.part('evaluate'):
            self._writer.after_evaluation(job, self._log)


class ConsoleLine(Observer):
    """Keeps the line on the console up to date."""

    def __init__(self, report: Report, progress: Progress) -> None:
        self._report, self._progress = report, progress

    def on_metrics(self, job: RunView, metrics: Mapping[str, Any]) -> None:
        self._report.progress(self._progress.last_return, self._progress.best_return)

    def on_evaluate(self, job: RunView, evaluation: Evaluation) -> None:
        self._report.progress(self._progress.last_return, self._progress.best_return)


def reward_metrics(steps: Timestep) -> dict[str, Tensor | float]:
    """Mean, deviation, least and greatest reward of an env step in the last rollout, before any scaling."""
    reward = steps.reward if steps.raw_reward is None else steps.raw_reward
    if reward.device.type != 'cpu':  # where a shape may not depend on the data
        (least, greatest), wide = reward.aminmax(), reward.double()
        return {
            'reward_mean': wide.mean(),
            'reward_std': wide.std(correction=0),
            'reward_min': least,
            'reward_max': greatest,
        }
    x = reward.numpy().ravel() if steps.is_reset is None else reward.numpy()[~steps.is_reset.numpy()]
    if not x.size:
        return {}
    mean = float(x.sum(dtype=np.float64)) / x.size
    off = x.astype(np.float64) - mean
    deviation = math.sqrt(float(np.square(off, out=off).sum()) / x.size)  # a dot product would wake BLAS's threads
    return {'reward_mean': mean, 'reward_std': deviation, 'reward_min': float(x.min()), 'reward_max': float(x.max())}


def _statistics(values: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation (without correction), minimum and maximum."""
    mean = sum(values) / len(values)
    std = math.sqrt(sum([(x - mean) ** 2 for x in values]) / len(values))
    return {'mean': mean, 'std': std, 'min': min(values), 'max': max(values)}
