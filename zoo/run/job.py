"""A run: collect, learn, log, evaluate, save, and again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zoo.config.section import Config
from zoo.core.errors import RunError
from zoo.core.seeding import stream
from zoo.policy.base import Policy
from zoo.rl_utils.optimizer import NonFiniteGradientError
from zoo.run.allocator import keep_freed_memory
from zoo.run.checkpoint import Checkpoint
from zoo.run.logger import Logger
from zoo.run.parts import make_parts
from zoo.run.report import Clocks, Report, Timer
from zoo.run.resume import Progress, changes, meta_of, restore, state_of
from zoo.run.run_dir import RunFolder, best_return_of, refuse_unwritable
from zoo.run.saving import CheckpointManager, SaveError
from zoo.run.threads import use_threads
from zoo.worker.evaluator import Evaluation

logger = logging.getLogger(__name__)


@dataclass
class TrainResult:
    """The outcome of a run: the policy as last trained, the folder of its files, its counters and returns."""

    policy: Policy
    run_dir: Path
    env_step: int
    train_iter: int
    best_return: float | None
    last_return: float | None
    wall_s: float
    env_step_per_s: float


class SerialJob:
    """A run, one `iteration` at a time; `serial_pipeline` is this and a loop.

    Args: cfg: a resolved config (frozen here); policy: to train instead of a new one; checkpoint: to continue from;
      model: a network for the new policy, in place of the one that policy.model names.
    Attributes: stop_requested: called during evaluations, which may be long; returns whether to stop.
    """

    def __init__(
        self,
        cfg: Config,
        policy: Policy | None = None,
        checkpoint: Checkpoint | None = None,
        model: nn.Module | None = None,
    ) -> None:
        self.cfg = cfg.freeze()
        self.timer = Timer(('sample', 'learn', 'evaluate', 'log'))
        self.stop_requested: Callable[[], bool] = lambda: False
        self._updating, self._stopped = False, False
        with ExitStack() as undo:  # closes what was made if the rest fails
            self._folder = undo.enter_context(closing(RunFolder(cfg, checkpoint)))
            n_thread = torch.get_num_threads()
            undo.callback(use_threads, n_thread)
            use_threads(cfg.policy.n_thread or 1)
            if cfg.keep_freed_memory:
                keep_freed_memory()
            self._parts = parts = make_parts(cfg, policy, undo, n_thread, model)
            if checkpoint is None:
                parts.policy.check_fields()
            self._envs, self.policy, self._n_thread = parts.envs, parts.policy, parts.n_thread
            self._get_train_sample = parts.policy.collect_mode.get_train_sample
            self._collector, self._learner, self._evaluator = parts.collector, parts.learner, parts.evaluator
            self._progress = Progress() if checkpoint is None else self._resume(checkpoint)
            self._folder.begin()
            self.run_dir = self._folder.path
            with refuse_unwritable(self.run_dir):
                log = undo.enter_context(self._logger())
            self._report = Report(log, parts, self.timer, cfg.logger.freq)
            last = None if checkpoint is None else (checkpoint.path, self.env_step)
            self._checkpoints = CheckpointManager(self.run_dir, cfg.checkpoint, last, log.keep_files)
            if checkpoint is not None:
                self._announce(checkpoint)
                if cfg.checkpoint.keep_best:
                    self._adopt_best()
            self.reset_env()
            self._undo = undo.pop_all()

    def iteration(self) -> None:
        """Collect; make samples; push; train; log; evaluate if due; checkpoint if due."""
        start_step = self.env_step
        use_threads(self._n_thread['collect'])
        with self.timer.label('zoo/collect'):
            rollout = self._collector.collect()
        use_threads(self._n_thread['learn'])
        self._updating = True  # from here on the state is that of no whole iteration
        with self.timer.part('sample'):
            self._parts.buffer.push(self._get_train_sample(rollout))
        with self.timer.part('learn'):
            metrics = self._learner.train(start_step)
        self._updating = False
        with self.timer.part('log'):
            self._report.training(metrics)
            self._report.progress(self._progress.last_return, self._progress.best_return)
        eval_freq = self.cfg.policy.eval.eval_freq
        if self.env_step // eval_freq > self._progress.eval_step // eval_freq:
            self.evaluate()
        if self.env_step - self._progress.save_step >= self.cfg.checkpoint.freq:
            with self.timer.part('log'):
                _or_warn(self.save)

    def evaluate(self) -> Evaluation | None:
        """Greedy episodes on the evaluation envs; keeps the best policy so far, marks the run stopped at stop_value.

        Returns: None if a signal came before all episodes had ended.
        """
        evaluation = self.play_evaluation()
        if evaluation is None:
            return None
        progress = self._progress
        progress.eval_step, progress.last_return = self.env_step, evaluation.return_mean
        with self.timer.part('log'):
            self._report.evaluation(evaluation)
            if progress.best_return is None or progress.last_return > progress.best_return:
                self._save_best()
            self._stopped = progress.reached(self.cfg.policy.eval.stop_value)
            self._report.progress(progress.last_return, progress.best_return)
        return evaluation

    def play_evaluation(self) -> Evaluation | None:
        """The episodes of `evaluate` alone: nothing is logged or kept."""
        use_threads(self._n_thread['evaluate'])
        with self.timer.part('evaluate'):
            seed = stream(self.cfg.seed, 'evaluate', self.env_step)
            return self._evaluator.evaluate(seed, self.stop_requested)

    def save(self) -> None:
        """Writes a checkpoint of everything. Raises: SaveError if it cannot be written."""
        self._progress.save_step = self.env_step
        self._checkpoints.save(self.env_step, self.state_dict(), meta_of(self.cfg, self._parts, self._progress))

    def finish(self, evaluate: bool = True) -> None:
        """Saves; evaluates the last policy before, unless that was just done.

        Raises: SaveError, whose `result` has the trained policy.
        """
        if evaluate and (self._progress.eval_step != self.env_step or self._progress.last_return is None):
            self.evaluate()
        self._save_end()

    def result(self) -> TrainResult:
        """The run so far."""
        returns, speed = (self._progress.best_return, self._progress.last_return), self._report.env_step_per_s
        return TrainResult(self.policy, self.run_dir, self.env_step, self.train_iter, *returns, self.wall_s, speed)

    def reset_env(self) -> None:
        """New episodes in the training envs, from seeds that depend on the run's seed and env step."""
        self._collector.reset(stream(self.cfg.seed, 'collect', self.env_step))

    @property
    def env_step(self) -> int:
        """Transitions received from training envs."""
        return self._collector.env_step

    @property
    def train_iter(self) -> int:
        """Optimiser steps."""
        return self._learner.train_iter

    @property
    def step_per_iteration(self) -> int:
        """Env steps of a rollout, counting rows that only reset an env."""
        return self.cfg.policy.collect.n_step * self.cfg.env.collector_env_num

    @property
    def done(self) -> bool:
        """Whether the next rollout would pass max_env_step, or stop_value was reached."""
        return self._stopped or self.env_step + self.step_per_iteration > self.cfg.max_env_step

    @property
    def wall_s(self) -> float:
        """Seconds of training, those before a resume included."""
        return self._progress.wall_before + self.timer.run_s

    @property
    def steps_async(self) -> bool:
        """Whether the training envs step asynchronously, in processes or threads."""
        return self._envs[0].steps_async

    def clocks(self) -> Clocks:
        """Seconds and calls of each part since the run began; the calls of 'learn' are optimiser steps."""
        return self._report.clocks()

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resume needs; the envs' own state is not part of it."""
        return state_of(self.cfg, self._parts, self._progress, self.wall_s)

    def close(self) -> None:
        """Closes envs and logs, and restores torch's number of threads."""
        self._undo.close()

    def __enter__(self) -> SerialJob:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # if an env or a disk failed, the policy is that of the last complete iteration and worth saving; during a run
        # signals are handled, so that a KeyboardInterrupt was raised by an env
        is_env_or_disk = isinstance(error, Exception | KeyboardInterrupt)
        is_env_or_disk &= not isinstance(error, NonFiniteGradientError | SaveError)
        try:
            if is_env_or_disk and not self._updating:
                self._save_end(error)
        finally:
            self.close()

    def _save_end(self, cause: BaseException | None = None) -> None:
        """Saves the end of the run. Raises: SaveError; unless the run ended by an error that is not zoo's own."""
        try:
            self.save()
        except SaveError as error:
            if cause is not None and not isinstance(cause, RunError):
                logger.error('the end of the run is lost: %s', error)  # the cause is raised on, with its traceback
                return
            ended = f'; it had failed: {cause}' if cause is not None else ''
            lost = SaveError(f'the end of the run, env step {self.env_step}, is lost: {error}{ended}')
            lost.result = self.result()
            raise lost from (cause or error)

    def _save_best(self) -> None:
        self._progress.best_return = self._progress.last_return
        if self.cfg.checkpoint.keep_best:
            meta = meta_of(self.cfg, self._parts, self._progress)
            _or_warn(lambda: self._checkpoints.save_best(self.env_step, self.state_dict(), meta))

    def _logger(self) -> Logger:
        cfg = self.cfg
        return Logger(
            self.run_dir, cfg.logger, cfg.exp_name, cfg.max_env_step, self.env_step, restore=self._folder.restore
        )

    def _resume(self, checkpoint: Checkpoint) -> Progress:
        progress = restore(self.cfg, self._parts, checkpoint)
        self._stopped = progress.eval_step == self.env_step and progress.reached(self.cfg.policy.eval.stop_value)
        if self._stopped:
            logger.warning('this run had reached policy.eval.stop_value; to continue it: policy.eval.stop_value=null')
        return progress

    def _announce(self, checkpoint: Checkpoint) -> None:
        logger.info('resuming at env step %d in %s', self.env_step, self.run_dir)
        if changed := changes(self.cfg, checkpoint):
            logger.info('changed since it was saved: %s', changed)
        if self.done and not self._stopped:
            logger.warning(
                'nothing is left to train: the run has %d env steps, a rollout %d, and max_env_step is %d; raise that',
                self.env_step,
                self.step_per_iteration,
                self.cfg.max_env_step,
            )

    def _adopt_best(self) -> None:
        """Takes the best return from the run folder; in a new folder, the resumed policy is the best if evaluated."""
        self._progress.best_return = best_return_of(self.run_dir)
        is_evaluated = self._progress.eval_step == self.env_step and self._progress.last_return is not None
        if self._progress.best_return is None and is_evaluated:
            self._save_best()


def _or_warn(save: Callable[[], object]) -> None:
    try:
        save()
    except SaveError as error:
        logger.warning('%s; training continues', error)
