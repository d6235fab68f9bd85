"""Builds a run from its config: envs, policy, buffer, collector, learner, evaluators, log."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch
from torch import nn

from zoo.buffer.base import Buffer, in_sequences, n_draw_of, n_rows_drawn, reuse_of
from zoo.config.section import Config, ConfigError, validate
from zoo.config.yaml_io import storable
from zoo.core.errors import UserError, shown
from zoo.core.processes import machine_memory, may_be_given_up, memory_words
from zoo.core.ranks import ALONE, Ranks, RunInfo
from zoo.core.registry import BUFFER_REGISTRY, POLICY_REGISTRY, TOOL_REGISTRY
from zoo.core.spaces import Box, Space, leaf_spaces
from zoo.env import AnyVectorEnv, EnvConfig, make_env_groups, make_vector_env
from zoo.env.levels import LevelsConfig
from zoo.env.make import env_name
from zoo.env.restarts import Restarts
from zoo.model.check import AllocationError, AllocationLimit
from zoo.model.inputs import unscaled_bytes
from zoo.policy.base import Policy
from zoo.policy.config import PolicyConfig, device_of
from zoo.run.base_config import JobConfig, LoggerConfig
from zoo.run.checkpoint import (
    Checkpoint,
    CheckpointManager,
    State,
    check_finite,
    learner_file,
    load_checkpoint,
    refuse_unsavable,
    saved_run,
)
from zoo.run.config import frozen_config, resolve_config
from zoo.run.data_parallel import Agreement
from zoo.run.folder import RunFolder, best_return_of, refuse_unwritable
from zoo.run.learner import SINGLE, Learner
from zoo.run.log import make_sinks
from zoo.run.log.logger import Logger, Report
from zoo.run.observers.base import EventCall, Observer, Parts, Progress, RunView
from zoo.run.observers.callbacks import Callbacks, GradientEvents, RunnerEvents, tell_listener
from zoo.run.observers.diagnostics import Diagnostics, facts_of
from zoo.run.observers.rounds import (
    EnvSchedules,
    MetricNames,
    SampleCount,
    evaluate_if_due,
    reset_every,
    reset_if_due,
    stop_at_value,
)
from zoo.run.resources import Phase, Threads, keep_freed_memory, memory_problem, phase_threads, use_threads
from zoo.run.result import ResultFile
from zoo.run.resume import Checkpoints, Ending, announce, restore, with_saved_start
from zoo.run.roster import ONE_LEARNER, Roster
from zoo.worker.collector import Collector
from zoo.worker.evaluation_env import MAIN, evaluation_envs, naming_section
from zoo.worker.evaluator import Evaluator, OnEvaluation
from zoo.worker.infos import InfoKeys
from zoo.worker.runner_view import TellRunner

if TYPE_CHECKING:
    from zoo.cluster.engine import Engine
    from zoo.cluster.remote_collector import TakeNumbers
    from zoo.run.observers.levels import Levels
    from zoo.run.observers.stop_rules import StopRules

logger = logging.getLogger(__name__)


def make_parts(
    cfg: JobConfig,
    policy: Policy | None,
    undo: ExitStack,
    n_thread: int,
    model: nn.Module | None = None,
    gradient_readers: str = '',
    ranks: Ranks = ALONE,
    roster: Roster = ONE_LEARNER,
    runner_events: RunnerEvents | None = None,
) -> Parts:
    """Builds all components of a run.

    Args: cfg: of the whole run; policy: for the first learner, instead of a new one; undo: gets the functions that close the
      envs; n_thread: limit for torch threads; model: a network for the new policy of the first learner, in place of the one
      that policy.model names; gradient_readers: names of the callbacks with on_gradient, for which steps are executed
      eagerly; ranks: those that learn together, each with its share of the envs and samples; roster: of its learners;
      runner_events: if callbacks have on_runner_rollout.
    """
    whole = roster.configs(cfg)
    if ranks.size > 1:
        from zoo.cluster.config import split_config

        cfg = split_config(cfg, ranks.size, ranks.rank)
    configs = roster.configs(cfg)
    eager_only = _reason_for_eager_steps(configs, policy, gradient_readers)
    run_id = uuid4().hex[:12]  # the name of this run in the engine that carries the runners
    engine = _make_engine(cfg, run_id, roster.why_not_runners(len(configs)), undo)
    section = roster.env(cfg.env)
    if section.check:
        roster.check_env(cfg.env, before_run=True)
    device = str(device_of(cfg.policy.device))
    if policy is not None:
        device = str(policy.device)
    restarts = Restarts(cfg.env.max_restarts)
    first_env = ranks.rank * cfg.env.collector_env_num
    envs: list[Any] = []
    if engine is None:
        groups = make_env_groups(section, device, restarts, first_env if ranks.size > 1 else None, cfg.seed)
        envs = [undo.enter_context(closing(env)) for env in groups]
    eval_envs = _make_evaluation_envs(cfg, undo, device, restarts, roster)
    example = envs[0] if envs else _env_as_of_runners(cfg, section, eval_envs[MAIN])
    problem = memory_problem(cfg, example.obs_space)
    if problem:
        raise ConfigError(problem)
    use_threads(cfg.policy.n_thread or 1)  # code of an env may have set another number, and networks are made with it
    learners = _make_learners(roster, configs, whole, example, policy, model, eager_only, ranks)
    infos = _info_keys(cfg)
    evaluators = _make_evaluators(cfg, learners, eval_envs, infos, roster)
    for evaluator in evaluators.values():
        evaluator.first_copy = ranks.rank * evaluator.env.n_env
    if engine is None:
        collector = _make_collector(roster, envs, learners, infos, first_env, device)
        if runner_events is not None:
            runner_events.watch(collector, envs)
    else:
        from zoo.cluster.remote_collector import payload_of, start_runners

        policies = {name: learner.policy for name, learner in learners.items()}
        spaces = example.obs_space, example.action_space
        tell: TellRunner | None = None
        take_numbers: TakeNumbers | None = None
        if runner_events is not None:
            tell = runner_events.tell
            take_numbers = runner_events.entries.extend
        payload = payload_of(cfg, policies, section, spaces, infos, roster.collector, tell)
        facts = example.name, *spaces
        with may_be_given_up() if ranks.size == 1 else nullcontext():  # other ranks would wait for this one
            source, envs = start_runners(
                engine, run_id, cfg, policies, facts, payload, restarts, ranks.rank, take_numbers
            )
        modes = {name: learner.policy.collect_mode for name, learner in learners.items()}
        collector = roster.joining_collector(source, envs, modes, first_env)
    return Parts(
        envs=envs,
        learners=learners,
        collector=collector,
        evaluators=evaluators,
        n_thread=_choose_threads(configs, learners, envs[0].n_env, n_thread),
        restarts=restarts,
        n_rank=ranks.size,
    )


def _make_learners(
    roster: Roster,
    configs: Mapping[str, JobConfig],
    whole: Mapping[str, JobConfig],
    example: AnyVectorEnv,
    policy: Policy | None,
    model: nn.Module | None,
    eager_only: str,
    ranks: Ranks,
) -> dict[str, Learner]:
    """Makes the learners of a roster by their names.

    Args: configs: of this rank; whole: of all ranks; example: an env, which has the spaces; eager_only: the reason to execute
      steps eagerly, '' if there is none; the others: see `make_parts`.
    """
    learners: dict[str, Learner] = {}
    for name, cfg in configs.items():
        new = _make_policy(cfg, policy, roster.spaces(name, example), model, eager_only, ranks)
        buffer = _make_buffer(cfg, new, ranks)
        if roster.has_idle_rows and hasattr(buffer, 'leave_out_idle'):
            buffer.leave_out_idle()
        learners[name] = Learner(name, whole[name], new, buffer, roster.learns(name))
        policy = None  # the others have new ones
        model = None
    roster.meet(learners)
    return learners


def _make_collector(
    roster: Roster,
    envs: Sequence[AnyVectorEnv],
    learners: Mapping[str, Learner],
    infos: InfoKeys,
    first_env: int,
    device: str,
) -> Collector:
    """Makes the collector of envs of this process. Args: device: of the policies; the others: see `Roster.collector`."""
    first = next(iter(learners.values())).policy
    if first.compile_env is not None:
        for env in envs:
            env.compile(first.compile_env)
    modes = {name: learner.policy.collect_mode for name, learner in learners.items()}
    collector = roster.collector(envs, modes, infos, first_env)
    if envs[0].is_tensor_program and device != 'cpu':
        from zoo.worker.gpu import CapturedRollout

        collector.take_steps = CapturedRollout(collector)
    return collector


def _reason_for_eager_steps(configs: Mapping[str, JobConfig], policy: Policy | None, callbacks: str) -> str:
    """The reason to execute gradient steps eagerly, '' if there is none.

    Args: policy: that was given for the first learner; callbacks: as in `must_be_eager`, '' if there are none.
    """
    why = ''
    if callbacks:
        for cfg in configs.values():
            why = must_be_eager(cfg.policy, policy, callbacks)
            policy = None  # the others have new ones
    return why


def _make_engine(cfg: JobConfig, run_id: str, why_not: str, undo: ExitStack) -> Engine | None:
    """The engine that carries the runners; None if the run has none.

    Args: why_not: of `Roster.why_not_runners`. Raises: UserError if a run has runners that it cannot have.
    """
    if not cfg.cluster.runner_num:
        return None
    if why_not:
        raise UserError(f'cluster.runner_num is {cfg.cluster.runner_num} but {why_not}; use runner_num=0')
    from zoo.cluster.remote_collector import make_engine

    return undo.enter_context(closing(make_engine(cfg.cluster, run_id)))


def _make_buffer(cfg: JobConfig, policy: Policy, ranks: Ranks) -> Buffer:
    section = in_sequences(cfg.buffer, policy.sequence_len, policy.sequence_stride)
    buffer: Buffer = BUFFER_REGISTRY.get(cfg.buffer.type)(section, seed=cfg.seed)
    if ranks.size > 1 and hasattr(buffer, 'set_ranks'):  # else draws may differ, and ranks wait for ever
        buffer.set_ranks(ranks)
    return buffer


def _info_keys(cfg: JobConfig) -> InfoKeys:
    """The numbers of the envs that the log has."""
    keys = cfg.logger.info_keys
    step_keys = tuple(cfg.logger.info_step_keys)
    if keys == 'auto':
        return InfoKeys('auto', step_keys)
    return InfoKeys(tuple(keys), step_keys)


def complete_config(cfg: JobConfig | Mapping[str, Any] | str | Path, checkpoint: Checkpoint | None) -> JobConfig:
    """The config of a run, resolved and frozen. Args: cfg: resolved or not; checkpoint: to continue from."""
    if not isinstance(cfg, Config | JobConfig):
        cfg = resolve_config(cfg)
    complete = frozen_config(cfg)
    if checkpoint is None:
        return complete
    return with_saved_start(complete, checkpoint)


class RunBuilder:
    """Builds a run: first its components, then its observers.

    Args: callbacks: in addition to those of cfg; undo: gets the functions that close the run; roster: of its learners.
    Attributes: parts, progress, agreement, ending, log, report, manager, stop_rules; observers: in the order in which they
      are told of an event.
    Raises: ConfigError for an invalid callback, stop rule or sink, before anything is made.
    """

    def __init__(
        self,
        cfg: JobConfig,
        checkpoint: Checkpoint | None,
        callbacks: Sequence[Any],
        on_evaluation: OnEvaluation | None,
        ranks: Ranks,
        undo: ExitStack,
        roster: Roster,
    ) -> None:
        self._cfg = cfg
        self._checkpoint = checkpoint
        self._ranks = ranks
        self._undo = undo
        self.roster = roster
        self._leads = leads = ranks.rank == 0
        self._callbacks = Callbacks([*cfg.callbacks, *callbacks])
        self.stop_rules: StopRules | None = None
        if cfg.stop:
            from zoo.run.observers.stop_rules import StopRules

            self.stop_rules = StopRules(cfg.stop, ranks)
        self._videos: Any = None
        self._sinks: list[Any] = []
        self._on_evaluation: OnEvaluation | None = None
        if leads:
            self._sinks = make_sinks(cfg.logger)
            self._on_evaluation = on_evaluation
            if cfg.logger.video_freq:
                self._videos = TOOL_REGISTRY.get('videos')(cfg, roster)

    def make(self, policy: Policy | None, model: nn.Module | None, run_dir: Path | None) -> Parts:
        """Makes the components, with the state of the checkpoint; see `SerialJob`."""
        cfg = self._cfg
        undo = self._undo
        self._folder: RunFolder | None = None
        if self._leads:  # rank 0 alone makes the folder and writes to it
            self._folder = undo.enter_context(closing(RunFolder(cfg, self._checkpoint, run_dir)))
        n_thread = torch.get_num_threads()
        undo.callback(use_threads, n_thread)
        use_threads(cfg.policy.n_thread or 1)
        if cfg.keep_freed_memory:
            keep_freed_memory()
        readers = self._callbacks.names('on_gradient')
        starts = self._starts()
        self._runner_events: RunnerEvents | None = None
        if self._callbacks.names('on_runner_rollout'):
            self._runner_events = RunnerEvents(self._callbacks)
        self.parts = parts = make_parts(
            cfg, policy, undo, n_thread, model, readers, self._ranks, self.roster, self._runner_events
        )
        self._gradients: GradientEvents | None = None
        if readers:
            self._gradients = GradientEvents(self._callbacks)
            for learner in parts.learners.values():
                learner.mode = learner.mode._replace(forward=self._gradients.showing(learner.mode.forward))
        self._schedules = EnvSchedules(cfg, parts)
        self._levels: Levels | None = None
        if cfg.env.levels is not None:
            from zoo.run.observers.levels import Levels

            self._levels = Levels(validate(LevelsConfig, cfg.env.levels, 'env.levels'), self._ranks)
        if self._checkpoint is not None:
            self.progress = restore(cfg, parts, self._checkpoint, self._ranks, self.stop_rules)
            state = saved_run(self._checkpoint).state.league
            self._load_levels(saved_run(self._checkpoint).state.levels)
            self.roster.load_state_dict(state, self._checkpoint.path.parents[1])
        else:
            self.progress = Progress()
            if policy is not None:  # it was given, with parameters
                starts.pop(parts.first.name, None)
            for learner in parts.learners.values():
                self._begin_learner(learner, starts.get(learner.name))
        self.agreement = Agreement(self._ranks, parts)
        return parts

    def _starts(self) -> dict[str, str]:
        """The absolute paths of the runs with whose parameters learners begin; envs may change the current folder."""
        configs = self.roster.configs(self._cfg)
        return {name: os.path.abspath(cfg.init_from) for name, cfg in configs.items() if cfg.init_from}

    def _begin_learner(self, learner: Learner, start: str | None) -> None:
        """Checks the policy of a new run. Args: start: path of a checkpoint whose parameters it gets, or None."""
        policy = learner.policy
        policy.check_fields()
        if self._leads:
            _advise(learner.cfg, policy)
        refuse_unsavable(policy)
        if start is not None:
            start_from(policy, start, learner.cfg.init_from_keys, self._ranks, learner.name)

    def open(self, job: RunView, save_best: Callable[[], Path]) -> None:
        """Makes the folder and the observers of a run, after its components. Args: save_best: writes its best checkpoint."""
        cfg = self._cfg
        leads = self._leads
        progress = self.progress
        checkpoint = self._checkpoint
        stop_value = cfg.policy.eval.stop_value
        if checkpoint is not None:
            numbers = saved_run(checkpoint).state.own_numbers
            job.own_numbers.load_state_dict({name: dict(values) for name, values in numbers.items()})
        if checkpoint is not None and progress.is_evaluated(job.env_step) and progress.reached(stop_value):
            job.stop_reason = ''
        path: Path | None = None
        if self._folder is not None:
            self._folder.begin(is_over=checkpoint is not None and job.done)
            path = self._folder.path
        job.run_dir = self._ranks.share(path)
        file: ResultFile | None = None
        if leads:
            file = ResultFile(job.run_dir, self.parts.n_thread)
            self._undo.push(file.see_exit)
        self.ending = Ending(job, file)
        self.log = log = self._open_log(job)
        if self._videos is not None:
            self._videos.show = log.video
        if self.stop_rules is not None:
            log.listeners.append(partial(self.stop_rules.see, job))
        diagnostics = []
        if leads:
            learners = self.parts.learners.values()
            diagnostics = [Diagnostics(facts_of(x.cfg, x.policy, job.env_step), x.name) for x in learners]
        self.report = Report(log, job, diagnostics, self.agreement, self._env_values)
        last: tuple[Path, int] | None = None
        if checkpoint is not None:
            last = checkpoint.path, job.env_step
        self.manager = CheckpointManager(job.run_dir, cfg.checkpoint, last, log.keep_files, self._ranks)
        self._checkpoints = Checkpoints(save_best, keeps_best=cfg.checkpoint.keep_best and leads)
        self.observers = self._in_order()

    def _open_log(self, job: RunView) -> Logger:
        """Opens the log of the run; ranks above 0 write nothing."""
        cfg = self._cfg
        section = cfg.logger
        if not self._leads:
            section = LoggerConfig(console='off')
        restore: Callable[[], bool] = _restores_nothing
        if self._folder is not None:
            restore = self._folder.restore
        with refuse_unwritable(job.run_dir):
            log = Logger(
                job.run_dir,
                section,
                cfg.exp_name,
                cfg.max_env_step,
                job.env_step,
                restore=restore,
                run_cfg=cfg,
                sinks=self._sinks,
            )
        return self._undo.enter_context(log)

    def begin(self, job: RunView) -> None:
        """Announces a resume, and begins the first episodes."""
        if self._checkpoint is not None:
            rule = None
            if self.stop_rules is not None:
                rule = self.stop_rules.reason(job)
            announce(job, self._checkpoint, job.stop_reason is not None, rule)
            job.stop_reason = rule or job.stop_reason
            if self._videos is not None:
                self._videos.continue_at(job)
            if self._cfg.checkpoint.keep_best:
                self.progress.best_return = best_return_of(job.run_dir)
        self._schedules.before_rollout(job)
        if self._levels is not None:
            self._levels.before_rollout(job)
        job.reset_env()
        self.agreement.count()
        is_best = self._checkpoint is not None and self._cfg.checkpoint.keep_best and self.progress.best_return is None
        if is_best and self.progress.is_evaluated(job.env_step):  # the resumed policy, in a new folder
            job.start()  # before callbacks are told of its checkpoint
            self._checkpoints.keep_best(self.progress)

    def _env_values(self) -> dict[str, float]:
        """The current values of what changes in the envs, by their names in the log."""
        if self._levels is None:
            return self._schedules.metrics()
        return self._schedules.metrics() | self._levels.metrics()

    def levels_state(self) -> dict[str, Any]:
        """The scores of env.levels, for checkpoints; {} if nothing is scored."""
        if self._levels is None:
            return {}
        return self._levels.scores.state_dict()

    def _load_levels(self, state: dict[str, Any]) -> None:
        if self._levels is not None and state:
            self._levels.scores.load_state_dict(state)

    def _in_order(self) -> tuple[Observer, ...]:
        """All observers, in the order in which they are told of an event. Options that are off have no observer."""
        eval_cfg = self._cfg.policy.eval
        n_reset = reset_every(self._cfg)
        observers: list[Observer] = []

        def add(observer: Observer | None, when: bool = True) -> None:
            if when and observer is not None:
                observers.append(observer)

        add(self.ending)
        # before anybody reads a counter
        add(EventCall(self.agreement.count, 'after_rollout', 'after_update'), when=not self.agreement.is_alone)
        add(Threads(self.parts.n_thread))
        add(self._schedules, when=self._schedules.changes)
        add(self._levels)
        # after the schedules have set their values
        if n_reset is not None:
            add(EventCall(partial(reset_if_due, n_reset), 'before_rollout'))
        add(MetricNames())
        add(SampleCount())
        add(self._gradients)
        add(self._runner_events)
        for observer in self.roster.observers():  # before any checkpoint, which has the state of the roster
            add(observer)
        add(EventCall(evaluate_if_due, 'after_round'))
        add(self.stop_rules)  # after the evaluation, which a rule may depend on
        add(self.report)
        add(self._checkpoints)  # after the stop rules: this may be the last round
        add(EventCall(stop_at_value, 'on_evaluate'), when=eval_cfg.stop_value is not None)
        add(EventCall(self.report.show_progress, 'on_metrics', 'on_evaluate'))  # after the best return is known
        add(self._callbacks)
        if self._on_evaluation is not None:
            add(EventCall(partial(tell_listener, self._on_evaluation), 'after_evaluation'))
        add(self._videos)
        return tuple(observers)


def _restores_nothing() -> bool:
    """`Logger.restore` of a process that makes no folder."""
    return False


def _env_as_of_runners(cfg: JobConfig, section: EnvConfig, env: AnyVectorEnv) -> AnyVectorEnv:
    """An env like the training envs, which only runners have: the evaluation env, or if that differs a new, closed one.

    Args: section: from which training envs are made; env: the evaluation env.
    """
    if cfg.policy.eval.get('env'):
        env = make_vector_env(section, 1, training=True)
        env.close()
    if env.is_tensor_program:
        raise UserError(
            f'cluster.runner_num is {cfg.cluster.runner_num} but env {env.name!r} is a tensor program, which steps on the '
            'device of the policy; use runner_num=0, or an env of another library'
        )
    return env


def _advise(cfg: JobConfig, policy: Policy) -> None:
    """Logs what does not suit the spaces of a new policy. Args: cfg: of its learner."""
    has_box = any(isinstance(leaf, Box) for _, leaf in leaf_spaces(policy.action_space))
    if cfg.env.action_mode == 'rescale' and not has_box:
        logger.warning('env.action_mode=rescale has no effect: the env has no Box actions; leave it out')
    if cfg.env.check:
        warn_of_far_actions(cfg, policy)
    warn_of_unscaled_bytes(cfg, policy)
    say_what_suits_small_images(cfg, policy)


def warn_of_unscaled_bytes(cfg: JobConfig, policy: Policy) -> None:
    """Warns of large bytes that the networks of zoo see as they are."""
    obs_norm = getattr(cfg.policy.model, 'obs_norm', None)  # None: the policy has no model of zoo's kind
    if obs_norm is False and policy.given_model is None:
        for sentence in unscaled_bytes(policy.obs_space):
            logger.warning('%s', sentence)


def say_what_suits_small_images(cfg: JobConfig, policy: Policy) -> None:
    """Logs a faster encoder than the default one, if the networks of zoo see small images."""
    encoder = getattr(cfg.policy.model, 'encoder', None)  # None: the policy has no model of zoo's kind
    if encoder is not None and policy.given_model is None:
        from zoo.model.encoder import slow_for_small_images

        sentence = slow_for_small_images(encoder, policy.obs_space)
        if sentence:
            logger.info('%s', sentence)


def warn_of_far_actions(cfg: JobConfig, policy: Policy) -> None:
    """Warns of action bounds that the first actions of the policy miss, so that the env gets nothing but its bounds."""
    dist = getattr(policy, 'dist', None)
    if dist is None or dist.is_bounded:  # a policy of the user that draws actions itself, or one that knows the bounds
        return
    from zoo.env.inspection.bounds import far_bounds  # only with env.check

    for bounds in far_bounds(policy.action_space, cfg.env.action_mode):
        logger.warning('env %r: %s.', env_name(cfg.env), bounds.sentence())


def _make_evaluation_envs(
    cfg: JobConfig, undo: ExitStack, device: str, restarts: Restarts, roster: Roster
) -> dict[str, AnyVectorEnv]:
    """Makes the envs of all evaluations, by name, the main one (MAIN) first. Sections unlike cfg.env are checked before."""
    n_episode = cfg.policy.eval.n_episode
    sections = evaluation_envs(cfg)
    checked = [validate(EnvConfig, cfg.env)]
    for section in sections.values():
        if section.check and section not in checked:
            checked.append(section)
            roster.check_env(section)
    envs: dict[str, AnyVectorEnv] = {}
    for name, section in sections.items():
        n_env = min(section.evaluator_env_num, n_episode)
        with naming_section(cfg, name):
            env = make_vector_env(roster.env(section), n_env, device=device, restarts=restarts, seed=cfg.seed)
        envs[name] = undo.enter_context(closing(env))
    return envs


def _make_evaluators(
    cfg: JobConfig,
    learners: Mapping[str, Learner],
    envs: Mapping[str, AnyVectorEnv],
    infos: InfoKeys,
    roster: Roster,
) -> dict[str, Evaluator]:
    """Makes the evaluator of each set of envs, by name. Raises: UserError if the policies do not fit them."""
    options = cfg.policy.eval
    policies = {name: learner.policy for name, learner in learners.items()}
    evaluators = {}
    for name, env in envs.items():
        where = f'policy.eval.sets.{name}'
        if name == MAIN:
            where = 'policy.eval.env'
        roster.check_evaluation_env(policies, env, where)
        evaluators[name] = roster.evaluator(
            env,
            {key: policy.eval_mode for key, policy in policies.items()},
            options.n_episode,
            options.max_episode_steps,
            options.get('deterministic', True),
            infos,
        )
    return evaluators


def must_be_eager(cfg: PolicyConfig, policy: Policy | None, callbacks: str) -> str:
    """The reason to execute the gradient steps of a run eagerly, for `RunInfo`: callbacks see its gradients.

    Args: cfg: the section `policy`; policy: the one that was given, if any; callbacks: their names.
    Raises: UserError if the policy or its executor does not show its gradients.
    """
    learn = cfg.learn
    if policy is None:
        kind = POLICY_REGISTRY.get(cfg.type)
    else:
        kind = type(policy)
    why = ''
    if not kind.announces_gradients:
        why = (
            f'the steps of policy {cfg.type!r} show nobody their gradients; call zoo.policy.hooks.gradient_ready(optimizers, '
            'loss) after each backward pass and set the class attribute announces_gradients = True'
        )
    elif policy is not None and not policy.executor_name.startswith('eager') and not policy.run.eager_only:
        why = f'the policy given has the executor {policy.executor_name!r}; make it with policy.learn.executor eager'
    elif learn.get('executor', 'auto') not in ('auto', 'eager'):
        why = f'policy.learn.executor is {learn["executor"]!r}, which shows nobody its gradients; use auto or eager'
    elif learn.get('executor') == 'auto' and learn.get('compile') == 'on':
        why = "policy.learn.compile is 'on', and compiled steps show nobody their gradients; use auto or off"
    if why:
        raise UserError(f'callback {callbacks} has on_gradient but {why}, or leave on_gradient out')
    return f'callback {callbacks} has on_gradient'


def _make_policy(
    cfg: JobConfig,
    policy: Policy | None,
    spaces: tuple[Space, Space],
    model: nn.Module | None,
    eager_only: str,
    ranks: Ranks,
) -> Policy:
    """A new policy, or the given one. Raises: UserError if one is given for other spaces, or together with several ranks."""
    if policy is not None and ranks.size > 1:
        raise UserError(
            f'a policy was given but {ranks.size} ranks train together, which makes each of them one with its share of the '
            'samples; give a config, and model=... for a network of your own'
        )
    if model is not None and ranks.size > 1:  # each rank has made it with its own random numbers
        model.load_state_dict(ranks.share(model.state_dict()))
    if policy is None:
        policy = new_policy(cfg, spaces, model, eager_only, ranks)
    if (policy.obs_space, policy.action_space) != spaces:
        raise UserError(
            f'the policy given is for {policy.obs_space} and {policy.action_space} but the '
            f'env has {spaces[0]} and {spaces[1]}; make it for this env'
        )
    return policy


def new_policy(
    cfg: JobConfig, spaces: tuple[Space, Space], model: nn.Module | None, eager_only: str = '', ranks: Ranks = ALONE
) -> Policy:
    reuse = reuse_of(cfg.buffer, cfg.policy.collect.n_sample)
    run = RunInfo(cfg.max_env_step, reuse, n_draw_of(cfg.buffer), eager_only, storable(cfg), ranks)
    options = {'seed': cfg.seed, 'action_mode': cfg.env.action_mode, 'run': run, 'model': model}
    make = POLICY_REGISTRY.get(cfg.policy.type)
    try:
        with AllocationLimit(machine_memory()):
            return make(cfg.policy, *spaces, **options)
    except AllocationError as error:
        raise ConfigError(
            f'policy.model describes a network that takes {error.n_byte / 1e9:,.0f} GB or more with its optimiser but '
            f'{memory_words()}; use a smaller one, e.g. smaller hidden_sizes'
        ) from error


def _choose_threads(
    configs: Mapping[str, JobConfig], learners: Mapping[str, Learner], n_env: int, limit: int
) -> dict[Phase, int]:
    """The number of torch threads of each phase: the most that a learner can use. Args: configs: of this rank, by learner."""
    n_thread: dict[Phase, int] = {}
    for name, learner in learners.items():
        for phase, n in _threads_of_learner(configs[name], learner.policy, n_env, limit).items():
            n_thread[phase] = max(n, n_thread.get(phase, 1))
    return n_thread


def _threads_of_learner(cfg: JobConfig, policy: Policy, n_env: int, limit: int) -> dict[Phase, int]:
    if cfg.policy.n_thread is not None:
        return dict.fromkeys(('collect', 'learn', 'evaluate'), cfg.policy.n_thread)
    batch_size = policy.learn_mode.get_batch_size()
    sizes = [*batch_size.values()] if isinstance(batch_size, dict) else [batch_size]
    n_drawn = max(n_rows_drawn(cfg.buffer) or [cfg.policy.collect.n_sample])
    n_row = max(size or n_drawn for size in sizes)  # None: all samples at once
    n_eval_env = min(cfg.env.evaluator_env_num, cfg.policy.eval.n_episode)
    return phase_threads(policy, {'collect': n_env, 'learn': n_row, 'evaluate': n_eval_env}, limit)


def make_policy(
    config: object, overrides: Sequence[str] = (), *, seed: int | None = None, model: nn.Module | None = None
) -> Policy:
    """Makes the policy that a run of this config begins with, with all modes; `serial_pipeline(policy=...)` trains it.

    One env is made to get its spaces, and closed. `policy.model` is the network.
    Args: config, overrides, seed, model: as for `serial_pipeline`.
    Raises: ConfigError, EnvError, UserError, as `serial_pipeline`.
    """
    cfg = frozen_config(resolve_config(config, overrides, seed=seed))
    init_from = cfg.init_from and os.path.abspath(cfg.init_from)
    with closing(make_vector_env(cfg.env, 1)) as env:
        spaces = env.obs_space, env.action_space
    policy = new_policy(cfg, spaces, model)
    if init_from is not None:
        start_from(policy, init_from, cfg.init_from_keys)
    return policy


def start_from(
    policy: Policy, path: str | Path, only: Sequence[str] = ('*',), ranks: Ranks = ALONE, name: str = SINGLE
) -> None:
    """Copies parameters and running statistics of a checkpoint into a new policy, by name, where their shapes agree.

    The file is read by rank 0 alone. Nothing that it names is imported. The log says what was taken and what did not fit.
    Args: path: a run folder (its newest checkpoint) or a file; only: patterns of names; name: of the learner: of a run with
      several policies, the one of that name is read, the first one if there is none.
    Raises: CheckpointError, also if copied numbers are not finite; UserError if nothing fits.
    """
    state: State = {}
    if ranks.rank == 0:
        if not os.path.exists(path):
            raise UserError(f'init_from is {shown(str(path))}, which does not exist; name a run folder or a checkpoint')
        run = saved_run(load_checkpoint(path))
        if name in run.learners[1:]:
            run = saved_run(load_checkpoint(learner_file(run.path, name)))
        saved = run.state.policy
        state = {part: saved[part] for part in ('model', 'normalizer') if part in saved}
    state = ranks.share(state)
    now = policy.state_dict()
    before = copy.deepcopy({part: now[part] for part in state})
    try:
        report = policy.load_state_dict(state, strict=False, only=only)
    except UserError as error:
        raise UserError(f'init_from {path}: {error}') from error
    assert report is not None, 'it is not strict'
    check_finite(before, policy.state_dict(), path)
    if ranks.rank == 0:
        logger.info('begins with parameters of %s\n%s', path, report.text())
        left_out = [name for name in report.unused if any(fnmatchcase(name, pattern) for pattern in only)]
        if report.misfits:
            logger.warning('%d parameters of %s do not fit and begin anew', len(report.misfits), path)
        if left_out:
            names = ', '.join(left_out[:4])
            if len(left_out) > 4:
                names += f' and {len(left_out) - 4} more'
            logger.warning('%s of %s have no place in this policy; is its config another?', names, path)
