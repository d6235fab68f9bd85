"""Writes a policy alone to a checkpoint file, also one that was trained by hand, without a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from zoo.config.section import plain
from zoo.config.yaml_text import storable
from zoo.core.errors import UserError
from zoo.core.registry import SAVE_REGISTRY
from zoo.core.version import VERSION
from zoo.policy.base import MODES, Policy
from zoo.run.checkpoint import save_checkpoint
from zoo.run.config import defaults_for
from zoo.run.saved_run import BY_HAND, MAX_KEY


@SAVE_REGISTRY.register('checkpoint')
def save_policy(policy: Policy, path: str | os.PathLike[str], env: Any = None, env_step: int = 0) -> Path:
    """See `Policy.save`. Raises: UserError for a state that a checkpoint cannot hold."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(
            f'a policy is saved to the path of a file, got {path!r:.60}; e.g. policy.save("policy.safetensors")'
        )
    if type(env_step) is not int or env_step < 0:
        raise UserError(f'env_step is {env_step!r} but must be the number of env steps so far, an integer >= 0')
    learns = 'learn' in policy._fields
    state = {
        'policy': policy.state_dict(),
        'memory': policy.memory_state_dict() if learns else {},
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
    try:
        save_checkpoint(path, state, _meta_of(policy, env, env_step))
    except TypeError as error:
        raise UserError(f'policy {policy.cfg.type!r} cannot be saved: {error}') from error
    return Path(path)


def _meta_of(policy: Policy, env: Any, env_step: int) -> dict[str, Any]:
    by_hand = policy.run.config is None
    version = {'zoo': VERSION, 'torch': torch.__version__, 'executor': policy.executor_name}
    return {
        'config': _config_of(policy, env),
        'env_step': env_step,
        'train_iter': policy._get_train_iter() if 'learn' in policy._fields else 0,
        'best_return': None,
        'obs_space': policy.obs_space.to_json(),
        'action_space': policy.action_space.to_json(),
        'version': version | ({'run': BY_HAND} if by_hand else {}),
        **({} if set(policy._fields) >= set(MODES) else {'fields': list(policy._fields)}),
        **({} if policy.given_model is None else {'model': policy.given_model[:MAX_KEY]}),
    }


def _config_of(policy: Policy, env: Any) -> dict[str, Any]:
    """The config of the policy's run, or of a policy made by hand one of defaults; with its own section `policy`."""
    section = storable(plain(policy.cfg))
    if policy.run.config is not None:
        config = {**policy.run.config, 'policy': section}
    else:
        config = {**defaults_for(section), 'policy': section}
    given = {'id': env} if isinstance(env, str) else storable(env) if env is not None else {}
    config['env'] = {**config['env'], 'action_mode': policy._action_map.mode, **given}
    return {**config, 'seed': policy.seed}
