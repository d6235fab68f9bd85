"""Builds the parts of a run from its config: envs, policy, buffer, collector, learner, evaluator."""

from __future__ import annotations

from contextlib import ExitStack, closing, nullcontext
from typing import Any, NamedTuple
from uuid import uuid4

from torch import nn

from zoo.buffer import Buffer, in_sequences, n_draw_of, n_rows_drawn, reuse_of
from zoo.config.section import Config, ConfigError, validate
from zoo.config.yaml_text import storable
from zoo.core.data import RunInfo
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.core.registry import BUFFER_REGISTRY, POLICY_REGISTRY
from zoo.core.spaces import Space
from zoo.core.stop import may_be_given_up
from zoo.env import AnyVectorEnv, EnvConfig, TensorVectorEnv, check_env, make_env_groups, make_vector_env
from zoo.env.restarts import Restarts
from zoo.policy.base import Policy, device_of
from zoo.run.memory import AllocationError, AllocationLimit, machine_memory, memory_problem
from zoo.run.threads import Phase, Rows, phase_threads
from zoo.worker.collector import Collector
from zoo.worker.episode_infos import InfoKeys
from zoo.worker.evaluation_env import evaluation_env, evaluation_sets, naming_section, refuse_other_spaces
from zoo.worker.evaluator import Evaluator
from zoo.worker.learner import Learner
from zoo.worker.rows import LocalRows

MAIN = ''  # name of the main evaluation among those of policy.eval.sets


class Parts(NamedTuple):
    """What a run works with."""

    envs: list[AnyVectorEnv]  # the training envs, in groups; or what stands for those of each runner
    policy: Policy
    buffer: Buffer
    collector: Collector
    learner: Learner
    evaluator: Evaluator
    evaluation_sets: dict[str, Evaluator]  # of policy.eval.sets, by name
    n_thread: dict[Phase, int]  # torch threads of each phase
    restarts: Restarts  # of all envs


def make_parts(
    cfg: Config,
    policy: Policy | None,
    undo: ExitStack,
    n_thread: int,
    model: nn.Module | None = None,
    gradient_readers: str = '',
    ranks: Ranks = ALONE,
) -> Parts:
    """All parts.

    Args: cfg: of the whole run; policy: to use instead of a new one; undo: gets what closes the envs; n_thread: most torch
      threads to use; model: a network for the new policy, in place of the one that policy.model names; gradient_readers:
      the callbacks with on_gradient, by name, for whose sake steps are executed eagerly; ranks: those that learn together,
      each with its share of the envs and samples.
    """
    cfg = cfg if ranks.size == 1 else _share_of(cfg, ranks)
    eager_only = must_be_eager(cfg.policy, policy, gradient_readers) if gradient_readers else ''
    engine, run_id = _make_engine(cfg, undo) if cfg.cluster.runner_num else (None, '')
    if cfg.env.check:
        check_env(cfg.env)
    device = str(policy.device if policy is not None else device_of(cfg.policy.device))
    restarts = Restarts(cfg.env.max_restarts)
    first = None if ranks.size == 1 else ranks.rank * cfg.env.collector_env_num
    groups = make_env_groups(cfg.env, device, restarts, first) if engine is None else []
    envs: list[Any] = [undo.enter_context(closing(env)) for env in groups]
    n_eval_env = min(cfg.env.evaluator_env_num, cfg.policy.eval.n_episode)
    eval_envs = _make_evaluation_envs(cfg, undo, device, restarts)
    kind = (
        Kind(envs[0].name, envs[0].obs_space, envs[0].action_space) if envs else _kind_of_runners(cfg, eval_envs[MAIN])
    )
    if problem := memory_problem(cfg, kind.obs_space):
        raise ConfigError(problem)
    policy = _make_policy(cfg, policy, kind, model, eager_only, ranks)
    if policy.compile_env is not None:
        for env in envs:
            env.compile(policy.compile_env)
    keys = cfg.logger.info_keys
    infos = InfoKeys(keys if keys == 'auto' else tuple(keys), tuple(cfg.logger.info_step_keys))
    evaluators = {name: _make_evaluator(cfg, policy, env, name, infos) for name, env in eval_envs.items()}
    buffer = BUFFER_REGISTRY.get(cfg.buffer.type)(
        in_sequences(cfg.buffer, policy.sequence_len, policy.sequence_stride), seed=cfg.seed
    )
    if ranks.size > 1 and hasattr(buffer, 'set_ranks'):  # else they may draw unequally often, and wait for ever
        buffer.set_ranks(ranks)
    rows: Any
    if engine is None:
        rows = LocalRows(envs, policy.collect_mode, infos, first or 0)
    else:
        from zoo.cluster.runners import start_runners

        with may_be_given_up() if ranks.size == 1 else nullcontext():  # other ranks would wait for this one
            rows, envs = start_runners(engine, run_id, cfg, policy, kind, infos, restarts, ranks.rank)
    return Parts(
        envs,
        policy,
        buffer,
        Collector(rows, policy.collect_mode),
        Learner(policy.learn_mode, buffer),
        evaluators.pop(MAIN),
        evaluators,
        _choose_threads(cfg, policy, envs[0].n_env, n_eval_env, n_thread),
        restarts,
    )


class Kind(NamedTuple):
    """What the training envs are."""

    name: str
    obs_space: Space
    action_space: Space


def _share_of(cfg: Config, ranks: Ranks) -> Config:
    from zoo.cluster.split import split_config

    return split_config(cfg, ranks.size, ranks.rank)


def _make_engine(cfg: Config, undo: ExitStack) -> tuple[Any, str]:
    """What carries the runners, and the name of this run there."""
    from zoo.cluster.engine import make_engine

    run_id = uuid4().hex[:12]
    return undo.enter_context(closing(make_engine(cfg.cluster, run_id))), run_id


def _kind_of_runners(cfg: Config, eval_env: AnyVectorEnv) -> Kind:
    """What the training envs are that only runners have: as those of evaluation, or where these differ as one more."""
    with ExitStack() as undo:
        env = eval_env
        if cfg.policy.eval.get('env'):
            env = undo.enter_context(closing(make_vector_env(cfg.env, 1, training=True)))
        if isinstance(env, TensorVectorEnv):
            raise UserError(
                f'cluster.runner_num is {cfg.cluster.runner_num} but env {env.name!r} is a tensor program, which steps on the '
                'device of the policy; use runner_num=0, or an env of another library'
            )
        return Kind(env.name, env.obs_space, env.action_space)


def _make_evaluation_envs(cfg: Config, undo: ExitStack, device: str, restarts: Restarts) -> dict[str, AnyVectorEnv]:
    """The envs of all evaluations by name, the main one first, whose name is MAIN; those of their own are checked first."""
    n_episode = cfg.policy.eval.n_episode
    sections = {MAIN: evaluation_env(cfg), **evaluation_sets(cfg)}
    checked = [validate(EnvConfig, cfg.env)]
    for section in sections.values():
        if section.check and section not in checked:
            checked.append(section)
            check_env(section)
    envs: dict[str, AnyVectorEnv] = {}
    for name, section in sections.items():
        n_env = min(section.evaluator_env_num, n_episode)
        with naming_section(cfg, name or None):
            env = make_vector_env(section, n_env, device=device, restarts=restarts)
        envs[name] = undo.enter_context(closing(env))
    return envs


def _make_evaluator(cfg: Config, policy: Policy, env: AnyVectorEnv, name: str, infos: InfoKeys) -> Evaluator:
    """The evaluator of one set of envs. Raises: UserError if the policy does not fit them."""
    refuse_other_spaces(policy, env, 'policy.eval.env' if name == MAIN else f'policy.eval.sets.{name}')
    options = cfg.policy.eval
    deterministic = options.get('deterministic', True)
    return Evaluator(
        env, policy.eval_mode, options.n_episode, options.max_episode_steps, deterministic=deterministic, infos=infos
    )


def must_be_eager(cfg: Config, policy: Policy | None, callbacks: str) -> str:
    """Why the gradient steps of a run must be executed eagerly, for `RunInfo`: callbacks see its gradients.

    Args: cfg: the section `policy`; policy: one that was given; callbacks: their names.
    Raises: UserError if the policy or its executor shows nobody its gradients.
    """
    learn, kind = cfg.learn, POLICY_REGISTRY.get(cfg.type) if policy is None else type(policy)
    why = ''
    if not kind.announces_gradients:
        why = (
            f'the steps of policy {cfg.type!r} show nobody their gradients; call zoo.policy.hooks.gradient_ready(optimizers, '
            'loss) after each backward pass and set the class attribute announces_gradients = True'
        )
    elif policy is not None and policy.executor_name != 'eager' and not policy.run.eager_only:
        why = f'the policy given has the executor {policy.executor_name!r}; make it with policy.learn.executor eager'
    elif learn.get('executor', 'auto') not in ('auto', 'eager'):
        why = f'policy.learn.executor is {learn.executor!r}, which shows nobody its gradients; use auto or eager'
    elif learn.get('executor') == 'auto' and learn.get('compile') == 'on':
        why = "policy.learn.compile is 'on', and compiled steps show nobody their gradients; use auto or off"
    if why:
        raise UserError(f'callback {callbacks} has on_gradient but {why}, or leave on_gradient out')
    return f'callback {callbacks} has on_gradient'


def _make_policy(
    cfg: Config, policy: Policy | None, kind: Kind, model: nn.Module | None, eager_only: str, ranks: Ranks
) -> Policy:
    """A new policy, or the one that was given. Raises: UserError if that is for other spaces, or not for several ranks."""
    spaces = kind.obs_space, kind.action_space
    if policy is not None and ranks.size > 1:
        raise UserError(
            f'a policy was given but {ranks.size} ranks train together, which makes each of them one with its share of the '
            'samples; give a config, and model=... for a network of your own'
        )
    if model is not None and ranks.size > 1:  # each rank has made one, from random numbers of its own
        model.load_state_dict(ranks.share(model.state_dict()))
    if policy is None:
        reuse = reuse_of(cfg.buffer, cfg.policy.collect.n_sample)
        run = RunInfo(cfg.max_env_step, reuse, n_draw_of(cfg.buffer), eager_only, storable(cfg), ranks)
        make = POLICY_REGISTRY.get(cfg.policy.type)
        options = {'seed': cfg.seed, 'action_mode': cfg.env.action_mode, 'run': run, 'model': model}
        try:
            with AllocationLimit(machine_memory()):
                policy = make(cfg.policy, *spaces, **options)
        except AllocationError as error:
            raise ConfigError(
                f'policy.model describes a network that takes {error.n_byte / 1e9:,.0f} GB or more with its optimiser but '
                f'this machine has {machine_memory() / 1e9:,.0f} GB; use a smaller one, e.g. smaller hidden_sizes'
            ) from error
    if (policy.obs_space, policy.action_space) != spaces:
        raise UserError(
            f'the policy given is for {policy.obs_space} and {policy.action_space} but the '
            f'env has {spaces[0]} and {spaces[1]}; make it for this env'
        )
    return policy


def _choose_threads(cfg: Config, policy: Policy, n_env: int, n_eval_env: int, limit: int) -> dict[Phase, int]:
    if cfg.policy.n_thread is not None:
        return dict.fromkeys(('collect', 'learn', 'evaluate'), cfg.policy.n_thread)
    batch_size = policy.learn_mode.get_batch_size()
    sizes = list(batch_size.values()) if isinstance(batch_size, dict) else [batch_size]
    whole = max(n_rows_drawn(cfg.buffer) or [cfg.policy.collect.n_sample])
    n_row = max(whole if size is None else size for size in sizes)
    return phase_threads(policy, Rows(n_env, n_row, n_eval_env), limit)
