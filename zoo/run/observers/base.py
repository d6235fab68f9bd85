"""The view that observers have of a run: its components, its progress, and the events that they are told of."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from zoo.core.seeding import stream
from zoo.core.timer import Clocks, Timer
from zoo.env.settings import RunEnvs

if TYPE_CHECKING:
    from torch import Tensor

    from zoo.buffer.base import Batch, Buffer
    from zoo.core.data import Metrics, Rollout
    from zoo.env import AnyVectorEnv
    from zoo.env.errors import Restarts
    from zoo.policy.base import Policy
    from zoo.policy.modes import LearnMode
    from zoo.run.base_config import JobConfig
    from zoo.run.result import TrainResult
    from zoo.worker.collector import Collector
    from zoo.worker.evaluator import Evaluation, Evaluator

logger = logging.getLogger(__name__)


class Parts(NamedTuple):
    """The components of a run."""

    envs: list[AnyVectorEnv]  # the training envs, in groups; or one proxy for those of each runner
    policy: Policy
    buffer: Buffer
    collector: Collector
    learn_mode: LearnMode
    evaluators: dict[str, Evaluator]  # the main one, whose name is '', then those of policy.eval.sets
    n_thread: dict[Literal['collect', 'learn', 'evaluate'], int]  # torch threads of each phase
    restarts: Restarts  # of all envs
    n_rank: int = 1  # processes that train together


@dataclass
class Progress:
    """The progress of a run, in addition to the counters of its components."""

    eval_step: int = 0  # env step of the last evaluation
    save_step: int = 0  # env step of the last checkpoint
    best_return: float | None = None
    last_return: float | None = None
    wall_before: float = 0.0  # seconds before the resume
    n_sample: int | Tensor = 0
    """Samples with a weight above 0 in all batches so far. More passes over a batch do not count again, more draws do.

    Once batches have had weights it is a tensor on their device: `int` waits for that device.
    """

    def is_evaluated(self, env_step: int) -> bool:
        """Whether the policy of this env step was evaluated."""
        return self.eval_step == env_step and self.last_return is not None

    def reached(self, stop_value: float | None) -> bool:
        """Whether the last evaluation reached policy.eval.stop_value."""
        return stop_value is not None and self.last_return is not None and self.last_return >= stop_value


class RunView(Protocol):
    """A run as its observers see it: components, counters and methods; `zoo.SerialJob` is one.

    Attributes: stop_requested: whether a signal asks the run to stop; stop_reason: the reason to end it after the current
      round, maybe ''; None: it continues.
    """

    cfg: JobConfig
    policy: Policy
    run_dir: Path
    timer: Timer
    stop_requested: Callable[[], bool]
    stop_reason: str | None
    collector: Collector
    learn_mode: LearnMode
    parts: Parts
    progress: Progress

    @property
    def envs(self) -> RunEnvs:
        """The envs of training and evaluation, whose attributes may be read and set between rollouts."""
        return RunEnvs(self.parts.envs, [each.env for each in self.parts.evaluators.values()])

    @property
    def env_step(self) -> int:
        """Transitions received from training envs."""
        return self.collector.env_step

    @property
    def train_iter(self) -> int:
        return self.learn_mode.train_iter()

    @property
    def n_iteration(self) -> int:
        """Completed rounds of collecting and learning, those before a resume included."""
        n_step = self.collector.collect_iter * self.cfg.policy.collect.n_step * self.cfg.env.collector_env_num
        return n_step // self.step_per_iteration

    @property
    def step_per_iteration(self) -> int:
        """Env steps of an iteration, here of one rollout, counting rows that only reset an env."""
        return self.cfg.policy.collect.n_step * self.cfg.env.collector_env_num

    @property
    def done(self) -> bool:
        """Whether the next iteration would exceed max_env_step, stop_value was reached, or `stop` was called."""
        return self.stop_reason is not None or self.env_step + self.step_per_iteration > self.cfg.max_env_step

    @property
    def wall_s(self) -> float:
        """Seconds of training, those before a resume included."""
        return self.progress.wall_before + self.timer.run_s

    def stop(self, reason: str = '') -> None:
        """Ends the run after the current iteration, as policy.eval.stop_value does, and logs why; a resume continues it."""
        if self.stop_reason is None:
            logger.info('the run ends after this round%s', f': {reason}' if reason else '')
            self.stop_reason = reason or 'stop() was called'

    def reset_env(self) -> None:
        """Begins new episodes in the training envs, from seeds that depend on the run's seed and env step."""
        self.collector.reset(stream(self.cfg.seed, 'collect', self.env_step))

    def start(self) -> None:
        """Tells the observers, once, that the run begins."""

    def evaluate(self) -> Evaluation | None:
        """Evaluates the policy. Returns: None if a signal came before all episodes had ended."""

    def save(self) -> Path:
        """Writes a checkpoint of everything and returns its path. Raises: SaveError."""

    def result(self) -> TrainResult:
        """The result of the run so far."""

    def clocks(self) -> Clocks:
        """Seconds and calls of each part since the run began; the calls of 'learn' are optimiser steps."""
        collector, timer = self.collector, self.timer
        n_step = collector.collect_iter * collector.mode.n_step * len(self.parts.envs)
        calls = {**dict.fromkeys(collector.time, n_step), **timer.calls, 'learn': self.train_iter}
        return Clocks(time.perf_counter(), self.env_step, {**collector.time, **timer.seconds}, calls)


class Observer:
    """Receives the events of a run. Override methods as needed: a run calls only methods that are overridden."""

    def on_start(self, job: RunView) -> None:
        """The run begins, or continues; told once."""

    def before_round(self, job: RunView) -> None:
        """A round begins."""

    def before_rollout(self, job: RunView) -> None:
        """A rollout is collected next."""

    def after_rollout(self, job: RunView) -> None:
        """The rollout was collected."""

    def on_rollout(self, job: RunView, rollout: Rollout) -> None:
        """The rollout may be read, and changed in place."""

    def on_samples(self, job: RunView, samples: dict[str, Any]) -> None:
        """The rollout became samples, which the buffer gets next."""

    def before_update(self, job: RunView, env_step: int) -> None:
        """A round of updates begins, on rollouts from this env step on."""

    def on_batch(self, job: RunView, batch: Batch, metrics: Metrics) -> None:
        """A batch was learned from."""

    def after_update(self, job: RunView) -> None:
        """The round of updates is over."""

    def on_update(self, job: RunView, metrics: dict[str, Any]) -> None:
        """The metrics of the round of updates, to which an observer may add."""

    def on_metrics(self, job: RunView, metrics: Metrics) -> None:
        """The metrics of the round of updates, as the log gets them."""

    def before_evaluation(self, job: RunView) -> None:
        """The policy is evaluated next."""

    def on_evaluate(self, job: RunView, evaluation: Evaluation) -> None:
        """The policy was evaluated."""

    def after_evaluation(self, job: RunView, evaluation: Evaluation) -> None:
        """The evaluation is logged, and the best policy kept."""

    def after_round(self, job: RunView) -> None:
        """A round is over."""

    def on_checkpoint(self, job: RunView, path: Path) -> None:
        """A checkpoint was written."""

    def on_end(self, job: RunView, result: TrainResult) -> None:
        """The run is over, evaluated and saved; told once."""

    def handler(self, event: str) -> Callable[..., None] | None:
        """The method to call at an event; None if this observer does not handle it."""
        own = getattr(self, event)
        return None if own.__func__ is vars(Observer)[event] else own


EVENTS = [name for name in vars(Observer) if name.startswith(('on_', 'before_', 'after_'))]


def handlers_of(observers: Iterable[Observer]) -> dict[str, list[Callable[..., None]]]:
    """Returns {event: the methods to call, in the order of the observers}."""
    observers = list(observers)
    found = {event: [observer.handler(event) for observer in observers] for event in EVENTS}
    return {event: [handler for handler in handlers if handler is not None] for event, handlers in found.items()}
