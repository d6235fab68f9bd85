"""The view that observers have of a run: its components, its progress, and its events; the base classes of callbacks and observers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from zoo.buffer.base import Batch, Buffer
from zoo.core.data import Metrics, Rollout
from zoo.core.seeding import stream
from zoo.core.timer import Clocks, Timer
from zoo.env import AnyVectorEnv
from zoo.env.restarts import Restarts
from zoo.env.settings import RunEnvs
from zoo.policy.base import Policy
from zoo.policy.modes import LearnMode
from zoo.run.base_config import JobConfig
from zoo.run.learner import Learner
from zoo.run.result import TrainResult
from zoo.worker.collector import Collector
from zoo.worker.evaluator import Evaluation, Evaluator
from zoo.worker.own_numbers import OwnNumbers, Reduce, Reduction
from zoo.worker.runner_view import RunnerView

logger = logging.getLogger(__name__)


class Parts(NamedTuple):
    """The components of a run."""

    envs: list[AnyVectorEnv]  # the training envs, in groups; or one proxy for those of each runner
    learners: dict[str, Learner]  # by name, the first one first; of a run with one policy: {'': learner}
    collector: Collector
    evaluators: dict[str, Evaluator]  # the main one, whose name is '', then those of policy.eval.sets
    n_thread: dict[Literal['collect', 'learn', 'evaluate'], int]  # torch threads of each phase
    restarts: Restarts  # of all envs
    n_rank: int = 1  # processes that train together

    @property
    def first(self) -> Learner:
        """The first learner, which of most runs is the only one; it counts as that of the run wherever only one can."""
        return next(iter(self.learners.values()))


@dataclass
class Progress:
    """The progress of a run, in addition to the counters of its components."""

    eval_step: int = 0  # env step of the last evaluation
    save_step: int = 0  # env step of the last checkpoint
    best_return: float | None = None
    last_return: float | None = None
    wall_before: float = 0.0  # seconds before the resume

    def is_evaluated(self, env_step: int) -> bool:
        """Whether the policy of this env step was evaluated."""
        return self.eval_step == env_step and self.last_return is not None

    def reached(self, stop_value: float | None) -> bool:
        """Whether the last evaluation reached policy.eval.stop_value."""
        return stop_value is not None and self.last_return is not None and self.last_return >= stop_value


class RunView(Protocol):
    """A run as its observers see it: components, counters and methods; `zoo.SerialJob` is one.

    Attributes: stop_requested: whether a signal asks the run to stop; stop_reason: the reason to end it after the current
      round, maybe ''; None: it continues; learner: the learner that the current event is about, else the first one.
    """

    cfg: JobConfig
    learner: Learner
    run_dir: Path
    timer: Timer
    stop_requested: Callable[[], bool]
    stop_reason: str | None
    collector: Collector
    parts: Parts
    progress: Progress
    own_numbers: OwnNumbers

    @property
    def policy(self) -> Policy:
        """The policy of `learner`."""
        return self.learner.policy

    @property
    def buffer(self) -> Buffer:
        """The buffer of `learner`."""
        return self.learner.buffer

    @property
    def learn_mode(self) -> LearnMode:
        """The functions with which `learner` learns; they may be replaced."""
        return self.learner.mode

    @learn_mode.setter
    def learn_mode(self, mode: LearnMode) -> None:
        self.learner.mode = mode

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
        """Gradient steps of all learners so far, one for each minibatch; see `policy.learn.accumulate`."""
        return sum(learner.train_iter for learner in self.parts.learners.values())

    @property
    def n_iteration(self) -> int:
        """Completed rounds of collecting and learning, those before a resume included."""
        return self.collector.collect_iter * self.step_per_rollout // self.step_per_iteration

    @property
    def step_per_rollout(self) -> int:
        """The most env steps of a rollout of all ranks: its rows, those that only reset an env included.

        With agents.count_by=agent every row counts once for each agent.
        """
        return self.cfg.policy.collect.n_step * self.cfg.env.collector_env_num * self.collector.step_per_row

    @property
    def step_per_iteration(self) -> int:
        """The most env steps of an iteration, here of one rollout."""
        return self.step_per_rollout

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

    def log(
        self, name: str, value: Any, reduce: Reduce = 'mean', window: int | None = None, lifetime: bool = False
    ) -> None:
        """Gives the log a number of one's own; the next line has one number of all that came since the last line.

        Args: name: 'group/name'; without a group it is 'own/name'; value: a number, or a list or array of numbers, each of
          which counts; reduce: 'mean', 'sum', 'min', 'max' or 'last' of them, or their 'histogram';
          window: of the last so many numbers instead;
          lifetime: of all numbers of the run, those before a resume included. Of several ranks, their numbers together.
        Raises: UserError for a group of zoo's own, no number, or another reduction than before.
        """
        self.own_numbers.add(name, value, Reduction(reduce, window, lifetime))

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
        """Seconds and calls of each part since the run began; the calls of 'learn' are gradient steps."""
        collector = self.collector
        timer = self.timer
        n_step = collector.collect_iter * collector.mode.n_step * len(self.parts.envs)
        calls = {**dict.fromkeys(collector.time, n_step), **timer.calls, 'learn': self.train_iter}
        return Clocks(time.perf_counter(), self.env_step, {**collector.time, **timer.seconds}, calls)


class Callback:
    """User code that a run calls at its events. Derive a class and override methods, or write a class with the same methods.

    A config names it, `callbacks: ['my_module:MyCallback']` or `['./my_file.py:MyCallback']`. Or pass a class, an object, or
    a function with the name of an event: `serial_pipeline(..., callbacks=[...])`. Those of the config are called first. No
    checkpoint contains their state, so a resume makes new ones.

    `job` is the run: read `job.policy`, `job.cfg`, `job.env_step`, `job.train_iter`, `job.run_dir`. `job.stop(reason)` ends
    the run after the current round, as `policy.eval.stop_value` does, and logs the reason. Methods return nothing, except
    `on_update`.
    A callback that raises ends the run with a CallbackError; the run is saved before, see docs/callbacks.md.
    """

    def on_start(self, job: RunView) -> None:
        """The run begins, or continues from a checkpoint: envs and policy exist."""

    def on_runner_rollout(self, runner: RunnerView, columns: dict[str, Any]) -> None:
        """A process collected a rollout of its envs: columns [T, B, ...] of obs, outputs of acting and results of steps.

        Called in each runner, with a copy of the callback that stays there; in a run without runners, in the run itself.
        `runner.log` gives numbers to the log, as `job.log` does.
        """

    def on_rollout(self, job: RunView, rollout: Rollout) -> None:
        """A rollout was collected: `rollout.data` has its columns [T, B, ...], which may be changed in place."""

    def on_samples(self, job: RunView, samples: dict[str, Any]) -> None:
        """A rollout became samples [N, ...] by column, which the buffer gets next; may be changed in place."""

    def on_gradient(self, job: RunView, optimizers: Sequence[Any], loss: Tensor) -> None:
        """The gradient of `loss` (0-dim) was computed, the optimisers step next; may change gradients in place.

        `optimizer.grad` is the whole gradient as one flat tensor, `optimizer.cut(optimizer.grad)` has views of it by name of
        the parameter. Called before the limit of `policy.learn.grad_clip`. A run with it takes its steps eagerly. With
        `policy.learn.accumulate` it is called before each step, with the mean gradient and the last minibatch's loss.
        """

    def on_update(self, job: RunView, metrics: Metrics) -> Metrics | None:
        """A round of updates is over; returns metrics to add, numbers or 0-dim tensors, which are logged as 'learn/name'."""

    def on_evaluate(self, job: RunView, evaluation: Evaluation) -> None:
        """The policy was evaluated: `evaluation.return_mean` and more."""

    def on_checkpoint(self, job: RunView, path: Path) -> None:
        """A checkpoint was written."""

    def on_end(self, job: RunView, result: TrainResult) -> None:
        """The run is over, evaluated and saved; not called after an error."""


class Observer(Callback):
    """Receives the events of a run: those of a callback, and more. A run calls only methods that are overridden.

    Of the callback's methods, `on_gradient` and `on_runner_rollout` are not called, and `on_update` may add to the metrics that it gets.
    """

    def before_round(self, job: RunView) -> None:
        """A round begins."""

    def before_rollout(self, job: RunView) -> None:
        """A rollout is collected next."""

    def after_rollout(self, job: RunView) -> None:
        """The rollout was collected."""

    def before_update(self, job: RunView, env_step: int) -> None:
        """A round of updates begins, on rollouts from this env step on."""

    def on_batch(self, job: RunView, batch: Batch, metrics: Metrics) -> None:
        """A batch was learned from."""

    def after_update(self, job: RunView) -> None:
        """The round of updates is over."""

    def on_metrics(self, job: RunView, metrics: Metrics) -> None:
        """The metrics of the round of updates, as the log gets them."""

    def before_evaluation(self, job: RunView) -> None:
        """The policy is evaluated next."""

    def after_evaluation(self, job: RunView, evaluation: Evaluation) -> None:
        """The evaluation is logged, and the best policy kept."""

    def after_round(self, job: RunView) -> None:
        """A round is over."""

    def handler(self, event: str) -> Callable[..., None] | None:
        """The method to call at an event; None if this observer does not handle it."""
        if getattr(type(self), event) is getattr(Observer, event):
            return None
        return getattr(self, event)


class EventCall(Observer):
    """Calls a function at some events, with the run and the other arguments of the event."""

    def __init__(self, function: Callable[..., None], *events: str) -> None:
        self._function = function
        self._events = events

    def handler(self, event: str) -> Callable[..., None] | None:
        if event in self._events:
            return self._function
        return None


EVENTS = [name for name in dir(Observer) if name.startswith(('on_', 'before_', 'after_'))]


def handlers_of(observers: Sequence[Observer]) -> dict[str, list[Callable[..., None]]]:
    """Returns {event: the methods to call, in the order of the observers}."""
    found = {event: [observer.handler(event) for observer in observers] for event in EVENTS}
    return {event: [handler for handler in handlers if handler is not None] for event, handlers in found.items()}
