"""A run: evaluate, collect, make samples, push, train, log, checkpoint, and again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zoo.buffer import reuse_of
from zoo.config.section import Config
from zoo.config.source import save_yaml, storable
from zoo.core.errors import UserError
from zoo.core.registry import BUFFER_REGISTRY, POLICY_REGISTRY
from zoo.core.seeding import stream
from zoo.core.version import VERSION
from zoo.env import check_env, make_env_groups, make_vector_env
from zoo.policy.base import Policy, device_of
from zoo.rl_utils.optimizer import NonFiniteGradientError
from zoo.run.allocator import keep_freed_memory
from zoo.run.checkpoint import Checkpoint, CheckpointError, CheckpointManager, fit_state
from zoo.run.logger import Logger
from zoo.run.profile import Clocks
from zoo.run.run_dir import best_return_of, continues_in_place, new_run_dir
from zoo.run.threads import Phase, Rows, phase_threads, use_threads
from zoo.worker.collector import Collector
from zoo.worker.evaluator import Evaluation, Evaluator
from zoo.worker.learner import Learner

logger = logging.getLogger(__name__)


@dataclass
class TrainResult:
    """What a run leaves: the policy as last trained, where its files are, and how it went."""

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

    Args: cfg: a resolved config (frozen here); policy, checkpoint: to continue from instead of starting anew.
    """

    def __init__(self, cfg: Config, policy: Policy | None = None, checkpoint: Checkpoint | None = None) -> None:
        self.cfg = cfg.freeze()
        self._time = {'sample': 0.0, 'learn': 0.0, 'evaluate': 0.0, 'log': 0.0}
        self._calls = dict.fromkeys(self._time, 0)
        self._start, self._start_step = time.perf_counter(), 0
        self._eval_step, self._save_step, self._write_step = 0, 0, 0
        self._stopped, self._updating, self._wall_before = False, False, 0.0
        self._metrics: dict[str, Any] = {}  # of the rounds since the last line of the log
        self.stop_requested: Callable[[], bool] = lambda: False  # looked at during evaluations, which may be long
        self.label: Callable[[str], AbstractContextManager[Any]] = nullcontext  # names the parts of a trace
        self.best_return: float | None = None
        self.last_return: float | None = None
        with ExitStack() as undo:  # whatever fails below, what was begun is ended
            n_thread = torch.get_num_threads()
            undo.callback(use_threads, n_thread)
            use_threads(cfg.policy.n_thread or 1)
            keep_freed_memory()
            self._make_parts(undo, policy)
            self._n_thread = self._choose_threads(n_thread)
            if checkpoint is not None:
                self._load(checkpoint)
                in_place = continues_in_place(cfg, checkpoint)
                self.run_dir = checkpoint.path.parents[1] if in_place else new_run_dir(cfg)
                logger.info('resuming at env step %d in %s', self.env_step, self.run_dir)
            else:
                self.run_dir = new_run_dir(cfg)
            save_yaml(cfg, self.run_dir / 'config.yaml')
            self._checkpoints = CheckpointManager(self.run_dir, cfg.checkpoint)
            self._logger = undo.enter_context(
                Logger(self.run_dir, cfg.logger, cfg.exp_name, cfg.max_env_step, start_env_step=self.env_step)
            )
            if checkpoint is not None and cfg.checkpoint.keep_best:
                self._adopt_best()
            self._start_step = self.env_step
            self.reset_env()
            self._undo = undo.pop_all()

    def _make_parts(self, undo: ExitStack, policy: Policy | None) -> None:
        cfg = self.cfg
        if cfg.env.check:
            check_env(cfg.env)
        device = str(policy.device if policy is not None else device_of(cfg.policy.device))
        self._envs = [undo.enter_context(closing(env)) for env in make_env_groups(cfg.env, device)]
        self._n_eval_env = min(cfg.env.evaluator_env_num, cfg.policy.eval.n_episode)
        eval_env = undo.enter_context(closing(make_vector_env(cfg.env, self._n_eval_env, device=device)))
        spaces = self._envs[0].obs_space, self._envs[0].action_space
        self.policy = (
            policy
            if policy is not None
            else POLICY_REGISTRY.get(cfg.policy.type)(
                cfg.policy, *spaces, seed=cfg.seed, action_mode=cfg.env.action_mode
            )
        )
        if (self.policy.obs_space, self.policy.action_space) != spaces:
            raise UserError(
                f'the policy given is for {self.policy.obs_space} and {self.policy.action_space} but the '
                f'env has {spaces[0]} and {spaces[1]}; make it for this env'
            )
        self.policy.max_env_step = cfg.max_env_step
        self.policy.reuse = reuse_of(cfg.buffer, cfg.policy.collect.n_sample)
        if self.policy.compiled:
            for env in self._envs:
                env.compile()
        self._buffer = BUFFER_REGISTRY.get(cfg.buffer.type)(cfg.buffer, seed=cfg.seed)
        self._collector = Collector(self._envs, self.policy.collect_mode)
        self._learner = Learner(self.policy.learn_mode, self._buffer)
        self._evaluator = Evaluator(eval_env, self.policy.eval_mode, cfg.policy.eval.n_episode)

    def _choose_threads(self, limit: int) -> dict[Phase, int]:
        n_thread, batch_size = self.cfg.policy.n_thread, self.policy.learn_mode.get_batch_size()
        if n_thread is not None:
            return dict.fromkeys(('collect', 'learn', 'evaluate'), n_thread)
        n_row = max(batch_size.values()) if isinstance(batch_size, dict) else batch_size
        return phase_threads(self.policy, Rows(self._envs[0].n_env, n_row, self._n_eval_env), limit)

    @property
    def env_step(self) -> int:
        """Transitions received from training envs."""
        return self._collector.env_step

    @property
    def steps_beside(self) -> bool:
        """Whether the training envs step by themselves, in processes or threads, while the run does something else."""
        return self._envs[0].steps_beside

    @property
    def train_iter(self) -> int:
        """Optimiser steps."""
        return self._learner.train_iter

    @property
    def wall_s(self) -> float:
        """Seconds of training, those before a resume included."""
        return self._wall_before + time.perf_counter() - self._start

    @property
    def done(self) -> bool:
        """The next rollout would pass max_env_step, or stop_value was reached."""
        return self._stopped or self.env_step + self.step_per_iteration > self.cfg.max_env_step

    @property
    def step_per_iteration(self) -> int:
        """Env steps of a rollout, those included that are mere resets."""
        return self.cfg.policy.collect.n_step * self.cfg.env.collector_env_num

    def reset_env(self) -> None:
        """New episodes in the training envs, from seeds that depend on the run's seed and env step."""
        self._collector.reset(stream(self.cfg.seed, 'collect', self.env_step))

    def iteration(self) -> None:
        """Collect; make samples; push; train; log; evaluate if due; checkpoint if due."""
        start_step = self.env_step
        use_threads(self._n_thread['collect'])
        with self.label('zoo/collect'):
            rollout = self._collector.collect()
        use_threads(self._n_thread['learn'])
        with self._timed('sample'):
            self._buffer.push(self.policy.collect_mode.get_train_sample(rollout))
        self._updating = True
        with self._timed('learn'):
            self._metrics |= self._learner.train(start_step)  # an auxiliary phase is not in every round
        self._updating = False
        with self._timed('log'):
            if self.env_step - self._write_step >= self.cfg.logger.freq:
                self._write(self._metrics)
                self._metrics = {}
            self._progress()
        if self.env_step // self.cfg.policy.eval.eval_freq > self._eval_step // self.cfg.policy.eval.eval_freq:
            self.evaluate()
        if self.env_step - self._save_step >= self.cfg.checkpoint.freq:
            with self._timed('log'):
                self.save()

    def evaluate(self) -> Evaluation | None:
        """Greedy episodes on the evaluation envs; keeps the best policy so far, marks the run stopped at stop_value.

        None if a signal came before all episodes had ended.
        """
        evaluation = self.play_evaluation()
        if evaluation is None:
            return None
        self._eval_step = self.env_step
        self.last_return = evaluation.return_mean
        with self._timed('log'):
            self._logger.write(
                self.env_step,
                {
                    'eval/return_mean': evaluation.return_mean,
                    'eval/return_std': evaluation.return_std,
                    'eval/episode_len_mean': sum(evaluation.lengths) / len(evaluation.lengths),
                },
            )
            if self.best_return is None or self.last_return > self.best_return:
                self.best_return = self.last_return
                if self.cfg.checkpoint.keep_best:
                    self._checkpoints.save_best(self.env_step, self.state_dict(), self._meta())
            self._stopped = self._reached_stop_value()
            self._progress()
        return evaluation

    def play_evaluation(self) -> Evaluation | None:
        """The episodes of `evaluate` alone: nothing is logged or kept."""
        use_threads(self._n_thread['evaluate'])
        with self._timed('evaluate'):
            seed = stream(self.cfg.seed, 'evaluate', self.env_step)
            return self._evaluator.evaluate(seed, self.stop_requested)

    def clocks(self) -> Clocks:
        """Seconds and calls of each part since the run began; of 'learn', the optimiser steps."""
        n_step = self._collector.collect_iter * self.cfg.policy.collect.n_step * len(self._envs)
        return Clocks(
            time.perf_counter(),
            self.env_step,
            {**self._collector.time, **self._time},
            {**dict.fromkeys(self._collector.time, n_step), **self._calls, 'learn': self.train_iter},
        )

    def save(self) -> None:
        """Writes a checkpoint of everything."""
        self._save_step = self.env_step
        self._checkpoints.save(self.env_step, self.state_dict(), self._meta())

    def finish(self, evaluate: bool = True) -> None:
        """Evaluates the last policy, unless that was just done, and saves."""
        if evaluate and (self._eval_step != self.env_step or self.last_return is None):
            self.evaluate()
        self.save()

    def result(self) -> TrainResult:
        """The run so far."""
        speed = (self.env_step - self._start_step) / max(time.perf_counter() - self._start, 1e-9)
        return TrainResult(
            self.policy,
            self.run_dir,
            self.env_step,
            self.train_iter,
            self.best_return,
            self.last_return,
            self.wall_s,
            speed,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that a resume needs; the envs' own state is not part of it."""
        memory = self.policy.memory_state_dict() if self.cfg.checkpoint.aux_memory else {}
        return {
            'policy': self.policy.state_dict(),
            'memory': memory,
            'buffer': self._buffer.state_dict(),
            'counter': self._counters(),
        }

    def _counters(self) -> dict[str, Any]:
        return {
            'env_step': self.env_step,
            'collect_iter': self._collector.collect_iter,
            'episode': self._collector.episodes.n_episode,
            'eval_step': self._eval_step,
            'best_return': self.best_return,
            'last_return': self.last_return,
            'wall_s': self.wall_s,
        }

    def close(self) -> None:
        """Ends envs and logs, and gives torch its threads back."""
        self._undo.close()

    def __enter__(self) -> SerialJob:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # whatever an env or a disk did, the learner is that of the last whole rollout, unless it broke in its update
        if isinstance(error, Exception) and not isinstance(error, NonFiniteGradientError) and not self._updating:
            try:
                self.save()
            finally:
                self.close()
        self.close()

    def _reached_stop_value(self) -> bool:
        stop_value = self.cfg.policy.eval.stop_value
        return stop_value is not None and self.last_return is not None and self.last_return >= stop_value

    def _load(self, checkpoint: Checkpoint) -> None:
        self._check_same_env(checkpoint)
        fit_state(self.policy.state_dict(), checkpoint.state['policy'], checkpoint.path)
        fit_state(self._counters(), checkpoint.state['counter'], checkpoint.path)
        self.policy.load_state_dict(checkpoint.state['policy'])
        self.policy.load_memory_state_dict(checkpoint.state.get('memory', {}))
        self._buffer.load_state_dict(checkpoint.state.get('buffer', {}))
        counter = checkpoint.state['counter']
        self._collector.env_step, self._collector.collect_iter = counter['env_step'], counter['collect_iter']
        self._collector.episodes.n_episode = counter['episode']
        self._eval_step, self._wall_before = counter['eval_step'], counter['wall_s']
        self._save_step, self._write_step = counter['env_step'], counter['env_step']
        self.best_return, self.last_return = counter['best_return'], counter['last_return']
        self._stopped = self._eval_step == self.env_step and self._reached_stop_value()
        if self._stopped:
            logger.warning('this run had reached policy.eval.stop_value; to train on: policy.eval.stop_value=null')

    def _adopt_best(self) -> None:
        """The best is what the folder holds, whatever the checkpoint knew; in a new one, this policy if judged."""
        self.best_return = best_return_of(self.run_dir)
        if self.best_return is None and self._eval_step == self.env_step and self.last_return is not None:
            self.best_return = self.last_return
            self._checkpoints.save_best(self.env_step, self.state_dict(), self._meta())

    def _check_same_env(self, checkpoint: Checkpoint) -> None:
        for name in ('obs_space', 'action_space'):
            was, here = checkpoint.meta[name], getattr(self._envs[0], name).to_json()
            if was != here:
                raise CheckpointError(
                    checkpoint.path,
                    f'is of a run with {name} {was} but the env has {here}; resume with the env that it was trained on',
                )
        was, here = ([env['id'], env['game']] for env in (checkpoint.meta['config']['env'], storable(self.cfg)['env']))
        if was != here:
            logger.warning(
                'the run was trained on env %s and goes on with %s',
                *(' '.join(name for name in pair if name) for pair in (was, here)),
            )

    def _meta(self) -> dict[str, Any]:
        return {
            'config': storable(self.cfg),
            'env_step': self.env_step,
            'train_iter': self.train_iter,
            'best_return': self.best_return,
            'obs_space': self.policy.obs_space.to_json(),
            'action_space': self.policy.action_space.to_json(),
            'version': {'zoo': VERSION, 'torch': torch.__version__},
        }

    def _write(self, metrics: dict[str, Any]) -> None:
        self._write_step = self.env_step
        episodes = self._collector.episodes
        row: dict[str, Any] = {f'learn/{name}': value for name, value in metrics.items()}
        row |= {
            'learn/train_iter': self.train_iter,
            'collect/iter': self._collector.collect_iter,
            'collect/episode': episodes.n_episode,
        }
        if episodes.returns:
            row['collect/return_mean'] = sum(episodes.returns) / len(episodes.returns)
            row['collect/episode_len_mean'] = sum(episodes.lengths) / len(episodes.lengths)
        spent = {**self._collector.time, **self._time}
        total = max(sum(spent.values()), 1e-9)
        row |= {
            'time/env_step_per_s': self.result().env_step_per_s,
            **{f'time/share_{name}': value / total for name, value in spent.items()},
        }
        self._logger.write(self.env_step, row)

    def _progress(self) -> None:
        episodes = self._collector.episodes.returns
        last = self.last_return if self.last_return is not None or not episodes else sum(episodes) / len(episodes)
        self._logger.progress(self.env_step, last, self.best_return, self.result().env_step_per_s)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        with self.label(f'zoo/{name}'):
            yield
        self._time[name] += time.perf_counter() - start
        self._calls[name] += 1
