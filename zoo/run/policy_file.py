"""Loads a policy from a checkpoint file alone, and saves one to it, without env, config file or pickle."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn

from zoo.agents.actors import SAVED, kind_of
from zoo.agents.config import SHARED
from zoo.agents.layout import entries_of_actors
from zoo.agents.self_play import BUILT_IN
from zoo.buffer.base import n_draw_of, reuse_of
from zoo.config.section import plain
from zoo.config.yaml_io import storable
from zoo.core.errors import RunError, UserError, closest
from zoo.core.ranks import RunInfo
from zoo.core.registry import POLICY_REGISTRY, SAVE_REGISTRY
from zoo.core.spaces import Dict
from zoo.env import EnvConfig
from zoo.model.check import AllocationError, AllocationLimit
from zoo.policy.base import Policy
from zoo.policy.config import PolicyConfig, why_not_here
from zoo.policy.modes import MODES, Mode
from zoo.run.checkpoint import (
    BY_HAND,
    EVALUATION_ENVS,
    Checkpoint,
    CheckpointError,
    SavedRun,
    State,
    Trust,
    approve_agents,
    approve_opponent,
    causes_of_misfits,
    check_env_known,
    check_finite,
    check_given_model,
    check_names,
    check_saved_modes,
    check_sizes,
    fit_state,
    learner_file,
    load_checkpoint,
    malformed,
    save_checkpoint,
    saved_meta,
    saved_run,
    shown,
)
from zoo.run.config import defaults_for, resolve_policy
from zoo.worker.evaluation_env import evaluation_env

logger = logging.getLogger(__name__)
BUILD_FACTOR = 8
BUILD_SLACK = 1 << 28
"""A policy of n bytes of parameters may allocate BUILD_FACTOR * n + BUILD_SLACK while it is built.

Initialisation and a first pass through the network need about 3 * n; small networks need a few MB.
"""


@SAVE_REGISTRY.register('checkpoint')
def save_policy(policy: Policy, path: str | os.PathLike[str], env: object = None, env_step: int = 0) -> Path:
    """Saves a policy, see `Policy.save`. Raises: UserError for a state that a checkpoint cannot hold."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(
            f'a policy is saved to the path of a file, got {path!r:.60}; e.g. policy.save("policy.safetensors")'
        )
    if type(env_step) is not int or env_step < 0:
        raise UserError(f'env_step is {env_step!r} but must be the number of env steps so far, an integer >= 0')
    memory: State = {}
    train_iter = 0
    if 'learn' in policy._fields:
        memory = policy.memory_state_dict()
        train_iter = policy._get_train_iter()
    state = {
        'policy': policy.state_dict(),
        'memory': memory,
        'buffer': {},
        'counter': {
            'env_step': env_step,
            'collect_iter': 0,
            'episode': 0,
            'eval_step': 0,
            'best_return': None,
            'last_return': None,
            'wall_s': 0.0,
        },
    }
    meta = saved_meta(policy, _config_of(policy, env), env_step, train_iter, None)
    if not set(policy._fields) >= set(MODES):
        meta['fields'] = list(policy._fields)
    if policy.run.config is None:
        meta['version']['run'] = BY_HAND
    try:
        save_checkpoint(path, state, meta)
    except TypeError as error:
        raise UserError(f'policy {policy.cfg.type!r} cannot be saved: {error}') from error
    return Path(path)


def _config_of(policy: Policy, env: object) -> dict[str, Any]:
    """The config of the policy's run (for a policy made by hand, of defaults), with the policy's own section `policy`."""
    section = storable(plain(policy.cfg))
    config = policy.run.config
    if config is None:
        config = defaults_for(section)
    given_env: Any = {}
    if isinstance(env, Mapping):
        given_env = storable(env)
    elif env is not None:
        given_env = storable({'id': env})
    if not isinstance(given_env.get('id', ''), str):
        raise UserError(f'env is {shown(repr(env))} but must name an env, or be the section env as a dict')
    env_section = {**config['env'], 'action_mode': policy._action_map.mode, **given_env}
    return {**config, 'policy': section, 'env': env_section, 'seed': policy.seed}


def load_policy(
    path: str | os.PathLike[str] | Checkpoint,
    device: str | None = None,
    trust: Trust = (),
    model: nn.Module | None = None,
    *,
    fields: Literal['all'] | Sequence[Mode] = ('eval',),
    only: Sequence[str] | None = None,
    policy: str | None = None,
) -> Policy:
    """Loads the policy of a checkpoint, its file, or a run folder. With eval mode, `policy.act(obs)` acts as in evaluation.

    Args:
      device: as `policy.device`; None: the device of the run, or the CPU if that is not available.
      trust: True, or a list of modules: code that the config of the policy may name, as 'module:function'.
      model: a module like the one that was trained, where `serial_pipeline` was given one; its weights are replaced.
      fields: modes to build, of 'learn', 'collect' and 'eval', or 'all'. With learn, the optimiser and all other state for
        learning are restored too, so that learning continues as if it had not stopped.
      only: patterns of names of parameters, e.g. ['actor_*']: only these are loaded, if they fit, all others keep their
        initial values; the log says which.
      policy: the name of one of the policies of a run with several agents; None: the first one.
    Raises: CheckpointError (path and reason); ConfigError if its policy or model is not registered; UserError if `only`
      matches nothing, or the run has no policy of that name.
    """
    if fields == 'all':
        fields = MODES
    elif isinstance(fields, str):
        fields = (cast('Mode', fields),)
    modes = tuple(fields)
    if not modes or not set(modes) <= set(MODES):
        raise UserError(f"fields is {fields!r} but must be 'all' or a list of {', '.join(MODES)}")
    checkpoint = path
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = load_checkpoint(checkpoint)
    run = saved_run(checkpoint)
    with suppress(CheckpointError):  # a policy alone needs no code of others; evaluations in which they play do
        approve_agents(run, trust)
    if policy is not None:
        checkpoint = checkpoint_of_policy(checkpoint, policy)
        run = saved_run(checkpoint)
    elif len(run.learners) > 1:
        names = ', '.join(run.learners)
        logger.info('%s has the policies %s: the first one is loaded; policy=NAME loads another', run.path, names)
    return _load(run, device, trust, model, modes, only)


def load_policies(
    path: str | os.PathLike[str] | Checkpoint,
    device: str | None = None,
    trust: Trust = (),
    *,
    fields: Literal['all'] | Sequence[Mode] = ('eval',),
) -> dict[str, Policy]:
    """Loads all policies of a run with several agents, by name, in the order of its config; `evaluate` takes them together.

    Args and raises: as of `load_policy`.
    """
    checkpoint = path
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = load_checkpoint(checkpoint)
    approve_agents(saved_run(checkpoint), trust)
    approve_opponents(saved_run(checkpoint).config.get('agents'), trust)
    return {
        name: load_policy(checkpoint, device, trust, fields=fields, policy=name)
        for name in saved_policies(saved_run(checkpoint))
    }


def approve_opponents(agents: Any, trust: Trust) -> None:
    """Remembers that the user consents to the code of saved runs whose policies a section agents has as opponents.

    Args: agents: of a config; trust: as of `load_policy`; without consent, making the opponent says what to type.
    """
    for path, policy in _saved_opponents(agents or {}):
        with suppress(UserError):
            checkpoint = load_checkpoint(path)
            if policy is not None:
                checkpoint = checkpoint_of_policy(checkpoint, policy)
            approve_opponent(saved_run(checkpoint), trust)


def _saved_opponents(agents: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """The paths and policies of the saved runs in a section agents."""
    for differs in (agents.get('policies') or {}).values():
        if kind_of(differs) == SAVED and isinstance(differs, Mapping):
            yield str(differs.get('path')), differs.get('policy')
    for name in (agents.get('self_play') or {}).get('fixed') or ():
        if name not in BUILT_IN and ':' not in name:
            yield name, None


def saved_policies(run: SavedRun) -> tuple[str, ...]:
    """The names of the policies of a run, in the order of its config; the only one of a run with one agent is ''."""
    if len(run.learners) > 1:
        return run.learners
    policies = (run.config.get('agents') or {}).get('policies') or {}
    return tuple(name for name, differs in policies.items() if kind_of(differs) is None) or run.learners


def checkpoint_of_policy(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """The checkpoint of one of the policies of a run, from the main one. Raises: UserError if it has no such policy."""
    run = saved_run(checkpoint)
    names = saved_policies(run)
    if name not in names and not (len(names) == 1 and name == SHARED):
        known = [each for each in names if each]
        has = f'it has {", ".join(known)}'
        if not known:
            has = 'its only one has no name: leave policy out'
        close = closest(name, known)
        if close:
            has += f'; did you mean {close[0]!r}?'
        raise UserError(f'{run.path} has no policy {name!r}: {has}')
    if len(names) == 1 or name == run.learners[0]:
        return checkpoint
    return load_checkpoint(learner_file(run.path, name))


def _load(
    run: SavedRun,
    device: str | None,
    trust: Trust,
    model: nn.Module | None,
    modes: Sequence[Mode],
    only: Sequence[str] | None,
) -> Policy:
    """Builds a policy from its checkpoint, with its state; see `load_policy`."""
    check_names(run, ('policy',), trust, without=EVALUATION_ENVS)
    cfg = resolve_policy(_section_of(run))
    if device is not None or not torch.cuda.is_available() or why_not_here(cfg.device):
        cfg = cfg.model_copy(update={'device': device or 'cpu'})
    policy = build_policy(run, cfg, model, modes, is_whole=only is None)
    if only is not None:
        report = policy.load_state_dict(run.state.policy, strict=False, only=only)
        assert report is not None, 'it is not strict'
        logger.info('%s was loaded in part\n%s', run.path, report.text())
        return policy
    try:
        policy.load_state_dict(run.state.policy)
        if 'learn' in modes:
            policy.load_memory_state_dict(run.state.memory)
    except (UserError, RunError):
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise malformed(run.path, f'its policy cannot be restored ({shown(str(error))})') from error
    return policy


def _section_of(run: SavedRun) -> dict[str, Any]:
    """The section policy of a checkpoint, with what its run added: actors see no state of the whole env."""
    section: dict[str, Any] = run.config['policy']
    model = section.get('model')
    state = (run.config.get('agents') or {}).get('state', 'off')
    if not isinstance(model, dict) or state == 'off' or not isinstance(run.obs_space, Dict):
        return section
    if model.get('actor_obs') is not None:
        return section
    return {**section, 'model': {**model, 'actor_obs': entries_of_actors(run.obs_space)}}


def build_policy(
    run: SavedRun,
    cfg: PolicyConfig,
    model: nn.Module | None = None,
    fields: Sequence[Mode] = ('eval',),
    is_whole: bool = True,
) -> Policy:
    """Builds a new policy from a section `policy` with some modes, and checks that the state in a checkpoint fits it.

    Args: is_whole: false: the state need not fit.
    Raises: CheckpointError if the state does not fit or has numbers that are not finite, or the policy would be much larger.
    """
    check_given_model(run, model is not None)
    if is_whole:
        check_saved_modes(run, fields)
    n_byte = _n_byte(run.state.policy)
    make = POLICY_REGISTRY.get(cfg.type)
    mode = run.config['env'].get('action_mode', 'clip')
    try:
        with AllocationLimit(BUILD_FACTOR * n_byte + BUILD_SLACK):
            policy: Policy = make(
                cfg,
                run.obs_space,
                run.action_space,
                enable_field=fields,
                seed=run.config['seed'],
                action_mode=mode,
                run=_run_info(run, fields, is_whole),
                model=model,
            )
    except AllocationError as error:
        raise CheckpointError(
            run.path,
            f'does not fit: its config describes a policy of {error.n_byte / 1e6:,.0f} MB or more but its tensors have '
            f'{n_byte / 1e6:,.1f} MB; use the config that it was saved with',
        ) from error
    except RunError:
        raise
    except (RuntimeError, OverflowError, MemoryError) as error:
        raise malformed(run.path, f'its policy cannot be built ({shown(str(error))})') from error
    if not is_whole:
        return policy
    expected = policy.state_dict()
    state = {key: run.state.policy[key] for key in expected if key in run.state.policy}
    fit_state(expected, state, run.path, causes_of_misfits(run, plain(cfg)))
    check_finite(expected, state, run.path)
    return policy


def _run_info(run: SavedRun, fields: Sequence[Mode], is_whole: bool) -> RunInfo:
    """The information about its run that a loaded policy gets."""
    info = RunInfo()
    if is_whole:
        info = info._replace(env_step=run.env_step)
    if run.by_hand:
        return info
    info = info._replace(config=run.config)
    if 'learn' not in fields:
        return info
    buffer = run.config['buffer']
    n_sample = run.config['policy']['collect'].get('n_sample') or 1
    return info._replace(  # the executor of its updates depends on these
        max_env_step=run.config['max_env_step'], reuse=reuse_of(buffer, n_sample), n_draw=n_draw_of(buffer)
    )


def env_config_of(
    checkpoint: Checkpoint, trust: Trust = (), overrides: Sequence[str] = (), name: str | None = None
) -> EnvConfig:
    """The envs that the policy of a checkpoint is evaluated on, see `zoo.worker.evaluation_env`.

    Args: overrides: 'env.a.b=value' texts; name: of one of policy.eval.sets.
    Raises: CheckpointError, ConfigError.
    """
    run = saved_run(checkpoint)
    check_names(run, ('env', 'policy'), trust, overrides)
    check_sizes(run, ('env',), trust, overrides)
    check_env_known(run, overrides)
    return evaluation_env(run.config, overrides, name)


def _n_byte(state: State) -> int:
    inner = sum(_n_byte(value) for value in state.values() if isinstance(value, dict))
    return inner + sum(value.nbytes for value in state.values() if isinstance(value, torch.Tensor))
