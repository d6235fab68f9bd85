"""A run: collect, learn, log, evaluate, save, and again; the registry of pipelines has it as 'serial'."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from zoo.config.components import section_of
from zoo.config.section import Config
from zoo.core.ranks import ALONE, Ranks
from zoo.core.registry import PIPELINE_REGISTRY, tool
from zoo.core.seeding import stream
from zoo.env.settings import RunEnvs
from zoo.policy.base import Policy
from zoo.policy.hooks import listening
from zoo.run.base_config import JobConfig
from zoo.run.build import RunSettings, begin_new, make_parts, open_log
from zoo.run.checkpoint.file import Checkpoint
from zoo.run.checkpoint.manager import CheckpointManager
from zoo.run.config import frozen_config, resolve_config
from zoo.run.data_parallel import Agreement, play_evaluations
from zoo.run.folder import FollowedFolder, RunFolder, best_return_of
from zoo.run.log.report import Report
from zoo.run.log.sinks import make_sinks
from zoo.run.observers.base import Clocks, Timer, TrainResult
from zoo.run.observers.callbacks import CallbackError, Callbacks, asks_to_stop, no_gradient_seen
from zoo.run.observers.diagnostics import Advice, facts_of
from zoo.run.resources import keep_freed_memory, use_threads
from zoo.run.result import Ending, ResultFile, or_warn
from zoo.run.resume import Progress, announce, meta_of, restore, state_of, with_saved_start
from zoo.worker.evaluator import Evaluation, OnEvaluation, joined_evaluations

if TYPE_CHECKING:
    from zoo.run.observers.stop_rules import StopRules

logger = logging.getLogger(__name__)


@PIPELINE_REGISTRY.register('serial')
class SerialJob:
    """Collect a rollout, learn from it, and again.

    `iteration` is one round of it: `collect_round`, then `learn_round`. Another plan is a class derived from this one that
    overrides these two, and `step_per_iteration` if it collects another number of rollouts, registered in
    PIPELINE_REGISTRY; the config names it (`pipeline`). Its options are its class attribute `config`, a Section.

    Args: cfg: a resolved config (frozen here), or what `serial_pipeline` takes as one; policy: to train instead of a new
      one; checkpoint: to continue from; model: a network for the new policy, in place of the one that policy.model names;
      callbacks: besides those of cfg; on_evaluation: called with env step and `Evaluation` after each evaluation, may
      return 'stop'; run_dir: the folder of the run, instead of a new one below logger.root; ranks: those that train together,
      of which rank 0 alone writes.
    Attributes: stop_requested: called during evaluations, which may be long; returns whether to stop; options: the section
      `pipeline`, complete.
    """

    def __init__(
        self,
        cfg: JobConfig | Mapping[str, Any] | str | Path,
        policy: Policy | None = None,
        checkpoint: Checkpoint | None = None,
        model: nn.Module | None = None,
        callbacks: Sequence[Any] = (),
        on_evaluation: OnEvaluation | None = None,
        run_dir: Path | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        cfg = frozen_config(cfg if isinstance(cfg, Config | JobConfig) else resolve_config(cfg))
        self.cfg = cfg = cfg if checkpoint is None else with_saved_start(cfg, checkpoint)
        self.options = section_of(PIPELINE_REGISTRY, cfg.pipeline, 'pipeline')
        self.timer = Timer(('sample', 'learn', 'evaluate', 'log'))
        self.stop_requested: Callable[[], bool] = lambda: False
        self._updating, self._stopped = False, False
        self._has_started, self._has_ended, self._saw_gradient = False, False, False
        self._reset_iter: int | None = None  # rollouts at the last reset of all training envs
        self._learn_step: int | None = None  # env step before the first rollout that is not learned from yet
        self._callbacks = Callbacks([*cfg.callbacks, *callbacks])
        self._has_callbacks, self._shows_gradient = bool(self._callbacks), 'on_gradient' in self._callbacks
        self._stop_rules, self._stop_reason = _stop_rules(cfg), ''
        self._ranks, self._on_evaluation = ranks, on_evaluation
        leads = ranks.rank == 0
        sinks = make_sinks(cfg.logger.sinks, cfg.logger.tensorboard) if leads else []
        self._videos = tool('Videos')(cfg) if leads and cfg.logger.video_freq else None
        with ExitStack() as undo:  # closes what was made if the rest fails
            folder = RunFolder(cfg, checkpoint, run_dir) if leads else FollowedFolder(ranks)
            self._folder = undo.enter_context(closing(folder))
            n_thread = torch.get_num_threads()
            undo.callback(use_threads, n_thread)
            use_threads(cfg.policy.n_thread or 1)
            if cfg.keep_freed_memory:
                keep_freed_memory()
            readers = self._callbacks.names('on_gradient')
            self._parts = parts = make_parts(cfg, policy, undo, n_thread, model, readers, ranks)
            if checkpoint is None:
                begin_new(parts.policy, cfg, policy is not None, ranks)
            self.policy, self._n_thread = parts.policy, parts.n_thread
            self._collector, self._learner = parts.collector, parts.learner
            self._settings = RunSettings(cfg, parts)
            self._progress = Progress()
            if checkpoint is not None:
                self._progress = restore(cfg, parts, checkpoint, self._stop_rules, ranks)
                self._stopped = self._is_evaluated and self._progress.reached(cfg.policy.eval.stop_value)
            self._agreement = Agreement(ranks, parts)
            self._folder.begin(is_over=checkpoint is not None and self.done)
            self.run_dir = self._folder.path
            if leads:
                ranks.share(self.run_dir)
            file = ResultFile(self.run_dir, self._n_thread) if leads else None
            self._ending = Ending(self, file)
            if file is not None:
                undo.push(file.see_exit)
            self._log = log = undo.enter_context(open_log(cfg, self._folder, self.env_step, sinks, leads))
            if self._stop_rules:
                log.listeners.append(partial(self._stop_rules.see, self))
            look = Advice(facts_of(cfg, parts.policy)).look if leads else lambda env_step, values: None
            self._report = Report(log, parts, self.timer, cfg.logger.freq, look, self._agreement)
            last = None if checkpoint is None else (checkpoint.path, self.env_step)
            self._checkpoints = CheckpointManager(self.run_dir, cfg.checkpoint, last, log.keep_files, ranks)
            if checkpoint is not None:
                rule = self._stop_rules.reason(self) if self._stop_rules else None
                announce(self, checkpoint, self._stopped, rule)
                if rule:
                    self._stopped, self._stop_reason = True, rule
                if self._videos is not None:
                    self._videos.continue_at(self)
                if cfg.checkpoint.keep_best:  # of a new folder the resumed policy is the best, if it was evaluated
                    self._progress.best_return = best_return_of(self.run_dir)
                    if self._progress.best_return is None and self._is_evaluated:
                        self._save_best()
            self._settings.before_rollout(self.env_step)
            self.reset_env()
            self._agreement.count()
            self._undo = undo.pop_all()

    def start(self) -> None:
        """Tells the callbacks, once, that the run begins; the first iteration does it where nobody has."""
        if not self._has_started:
            self._has_started = True
            self._tell('on_start')

    def iteration(self) -> None:
        """A round of the plan: collect, learn; then evaluate and save where due."""
        self.start()
        self._ending.go_on()
        self.collect_round()
        self.learn_round()
        eval_freq = self.cfg.policy.eval.eval_freq
        if self.env_step // eval_freq > self._progress.eval_step // eval_freq:
            self.evaluate()
        if self._stop_rules and (why := self._ranks.share(self._stop_rules.reason(self))):
            self.stop(why)
        if self.env_step - self._progress.save_step >= self.cfg.checkpoint.freq:
            with self.timer.part('log'):
                or_warn(self.save)

    def collect_round(self) -> None:
        """Collects one rollout, makes samples of it and pushes them into the buffer."""
        if self._learn_step is None:
            self._learn_step = self.env_step
        elif hasattr(self._parts.buffer, 'keep'):  # the rollout before was not learned from, and is overwritten now
            self._parts.buffer.keep()
        use_threads(self._n_thread['collect'])
        self._settings.before_rollout(self.env_step)
        if self._settings.resets(n := self._collector.collect_iter) and self._reset_iter != n:
            self.reset_env()
        with self.timer.label('zoo/collect'):
            rollout = self._collector.collect()
        self._agreement.count()
        use_threads(self._n_thread['learn'])
        with self.timer.part('sample'):
            self._tell('on_rollout', rollout)
            with self._unfinished():
                samples = self.policy.collect_mode.get_train_sample(rollout)
            self._tell('on_samples', samples)
            with self._unfinished():
                self._parts.buffer.push(samples)

    def learn_round(self) -> None:
        """One round of updates, on what the buffer yields."""
        env_step, n_before = self.env_step if self._learn_step is None else self._learn_step, self.train_iter
        use_threads(self._n_thread['learn'])
        listener = self._show_gradient if self._shows_gradient else None
        with self.timer.part('learn'), self._unfinished(), listening(listener):
            metrics = self._learner.train(env_step)
        self._agreement.count()
        self._learn_step = None
        if listener is not None and not self._saw_gradient and self.train_iter > n_before:
            raise no_gradient_seen(self._callbacks, self.train_iter - n_before)
        with self.timer.part('log'):
            self._report.env_values = self._settings.metrics()
            self._report.training(self._callbacks.update(self, metrics))
            self._report.progress(self._progress.last_return, self._progress.best_return)

    def agrees_to_stop(self, received: list[int]) -> bool:
        """Whether a rank got a signal to stop, or is done otherwise; asked by all ranks between two iterations.

        Args: received: signals of this rank; the one of another rank is added.
        """
        number = self._agreement.stops(self._stopped, received)
        if number is None:
            return self.done
        if not number:
            self._stopped, self._stop_reason = True, self._agreement.first(self._stop_reason)
        return True

    def is_signalled(self, received: list[int]) -> bool:
        """Whether a rank got a signal to stop; asked by all ranks, which may get theirs at different moments.

        Args: received: as above.
        """
        return self._agreement.stops(False, received) is not None

    def stop(self, reason: str = '') -> None:
        """Ends the run after the present iteration, as policy.eval.stop_value does, and logs why; a resume continues it."""
        if not self._stopped:
            logger.info('the run ends after this round%s', f': {reason}' if reason else '')
            self._stop_reason = reason or 'stop() was called'
        self._stopped = True

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
            self._stopped |= progress.reached(self.cfg.policy.eval.stop_value)
            self._report.progress(progress.last_return, progress.best_return)
            self._tell('on_evaluate', evaluation)
        if self._on_evaluation is not None and self.leads:
            if asks_to_stop(self._on_evaluation(self.env_step, evaluation)):
                self.stop('on_evaluation asked for it')
        if self._videos is not None:
            with self.timer.part('evaluate'):
                self._videos.after_evaluation(self, self._log)
        return evaluation

    def play_evaluation(self) -> Evaluation | None:
        """The episodes of `evaluate` alone: nothing is logged or kept."""
        use_threads(self._n_thread['evaluate'])
        with self.timer.part('evaluate'):
            self._settings.before_evaluation(self.env_step)
            found = play_evaluations(self._parts, self.cfg.seed, self.env_step, self.stop_requested, self._ranks)
            return None if found is None else joined_evaluations(self._ranks.gather(found))

    def save(self) -> Path:
        """Writes a checkpoint of everything and returns its path. Raises: SaveError if it cannot be written."""
        self._progress.save_step = self.env_step
        meta = meta_of(self.cfg, self._parts, self._progress, self._ranks.size)
        path = self._checkpoints.save(self.env_step, self.state_dict(), meta)
        if self.leads:
            self._tell('on_checkpoint', path)
        return path

    def finish(self, evaluate: bool = True) -> None:
        """Saves and tells the callbacks; evaluates the last policy before, unless that was just done.

        It may be called again after more iterations: the callbacks are told once, result.json has the last end.
        Raises: SaveError, whose `result` has the trained policy.
        """
        self.start()
        is_whole = evaluate
        if evaluate and not self._is_evaluated:
            is_whole = self.evaluate() is not None  # else a signal came meanwhile
        self._ending.save()
        if not self._has_ended:
            self._has_ended = True
            self._tell('on_end', self.result())
        self._ending.finish(is_whole)

    def result(self) -> TrainResult:
        """The run so far; its policy knows for how many env steps it was trained, and says so when it is saved."""
        self.policy.run = self.policy.run._replace(env_step=self.env_step)
        has_reached = self._progress.reached(self.cfg.policy.eval.stop_value)
        return TrainResult(
            self.policy,
            self.run_dir,
            self.env_step,
            self.train_iter,
            self._progress.best_return,
            self._progress.last_return,
            self.wall_s,
            self._report.env_step_per_s,
            self._stop_reason or ('policy.eval.stop_value is reached' if has_reached else ''),
        )

    def reset_env(self) -> None:
        """New episodes in the training envs, from seeds that depend on the run's seed and env step."""
        self._collector.reset(stream(self.cfg.seed, 'collect', self.env_step))
        self._reset_iter = self._collector.collect_iter

    @property
    def envs(self) -> RunEnvs:
        """The envs of training and evaluation, whose attributes may be read and set between rollouts."""
        return self._settings.envs

    @property
    def env_step(self) -> int:
        """Transitions received from training envs."""
        return self._collector.env_step

    @property
    def train_iter(self) -> int:
        """Optimiser steps."""
        return self._learner.train_iter

    @property
    def n_iteration(self) -> int:
        """Rounds of collecting and learning that were done, those before a resume included."""
        n_step = self._collector.collect_iter * self.cfg.policy.collect.n_step * self.cfg.env.collector_env_num
        return n_step // self.step_per_iteration

    @property
    def step_per_iteration(self) -> int:
        """Env steps of an iteration, here of one rollout, counting rows that only reset an env."""
        return self.cfg.policy.collect.n_step * self.cfg.env.collector_env_num

    @property
    def done(self) -> bool:
        """Whether the next iteration would pass max_env_step, stop_value was reached, or `stop` called."""
        return self._stopped or self.env_step + self.step_per_iteration > self.cfg.max_env_step

    @property
    def wall_s(self) -> float:
        """Seconds of training, those before a resume included."""
        return self._progress.wall_before + self.timer.run_s

    @property
    def leads(self) -> bool:
        """Whether this process writes: of several ranks the first one does."""
        return self._ranks.rank == 0

    @property
    def steps_async(self) -> bool:
        """Whether the training envs step asynchronously, in processes or threads."""
        return self._parts.envs[0].steps_async

    def clocks(self) -> Clocks:
        """Seconds and calls of each part since the run began; the calls of 'learn' are optimiser steps."""
        return self._report.clocks()

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resume needs; the envs' own state is not part of it."""
        stop = {} if self._stop_rules is None else self._stop_rules.state_dict()
        return state_of(self.cfg, self._parts, self._progress, self.wall_s, not self._updating, stop)

    def close(self) -> None:
        """Closes envs and logs, and restores torch's number of threads; nothing is saved."""
        self._ending.leave()
        self._undo.close()

    def __enter__(self) -> SerialJob:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # in on_gradient the policy is that of the last complete step, else of the last complete update, or of none
        is_savable = not self._updating or isinstance(error, CallbackError)
        try:
            self._ending.leave(error, is_savable and self._ranks.size == 1)  # other ranks wait elsewhere, not to save
        finally:
            self._log.close(has_failed=error is not None)
            self.close()

    def _tell(self, event: str, *args: object) -> None:
        """Calls the callbacks that have the event, where the run has any."""
        if self._has_callbacks:
            self._callbacks.call(event, self, *args)

    @contextmanager
    def _unfinished(self) -> Iterator[None]:
        """While this context lasts, and after an error in it, the state is that of no whole iteration."""
        self._updating = True
        yield
        self._updating = False

    def _show_gradient(self, optimizers: Sequence[Any], loss: Tensor) -> None:
        self._saw_gradient = True
        self._tell('on_gradient', optimizers, loss)

    def _save_best(self) -> None:
        self._progress.best_return = self._progress.last_return
        if self.cfg.checkpoint.keep_best and self.leads:
            meta = meta_of(self.cfg, self._parts, self._progress, self._ranks.size)
            path = or_warn(lambda: self._checkpoints.save_best(self.env_step, self.state_dict(), meta))
            if path is not None:
                self._tell('on_checkpoint', path)

    @property
    def _is_evaluated(self) -> bool:
        """Whether the policy as it is now was evaluated."""
        return self._progress.eval_step == self.env_step and self._progress.last_return is not None


def _stop_rules(cfg: JobConfig) -> StopRules | None:
    if not cfg.stop:
        return None
    from zoo.run.observers.stop_rules import StopRules

    return StopRules(cfg.stop)
