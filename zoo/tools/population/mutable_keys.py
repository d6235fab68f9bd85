"""Keys whose values may differ between the members of a population, and change while they train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from torch import Tensor

from zoo.config.section import ConfigError, value_at
from zoo.config.yaml_io import value_text
from zoo.core.errors import UserError
from zoo.env.errors import SeveralAgentsError
from zoo.env.make_vector import make_vector_env
from zoo.policy.base import Policy
from zoo.run.base_config import JobConfig
from zoo.run.config import frozen_config, resolve_config
from zoo.tools.sweep.spaces import DEFAULT_SPACES, Space

ALLOWED = ('policy.learn', 'policy.collect', 'buffer', 'env.kwargs', 'env.reset_options')
"""Sections whose keys may have a space."""
REMEDIES = {
    'seed': 'each member has a seed of its own, derived from --seed; leave it out',
    'max_env_step': 'all members train for the same env steps; use --every and --generations',
    'env': 'all members train in the same env; env.kwargs and env.reset_options may have spaces',
    'policy.eval': 'all members are measured in the same way; give one value',
    'policy.type': 'a checkpoint of one policy fits no other; evolve each one in a population of its own',
    'policy.model': 'a checkpoint of one network fits no other; use --mutate architecture=.2 or activation=.1',
    'cluster': 'all members run in the same way; give one value',
    'logger': 'all members write their logs in the same way; give one value',
    'checkpoint': 'all members save in the same way; give one value',
}
OTHER = 'it is the same for all members; give one value'


def space_problems(cfg: JobConfig, spaces: Mapping[str, Space]) -> list[str]:
    """Returns a sentence for each key of a config that may have no space."""
    problems = []
    for key in spaces:
        reason = ''
        if not _is_below(key, ALLOWED):
            reason = next((text for path, text in REMEDIES.items() if _is_below(key, (path,))), OTHER)
        elif _is_adaptive(cfg, key):
            reason = (
                'the value follows a target and is part of the checkpoint; give a number in its place, or leave it out'
            )
        if reason:
            problems.append(f'{key} can have no space in a population: {reason}')
    return problems


def state_problems(source: Any, overrides: list[str], spaces: Mapping[str, Space]) -> list[str]:
    """Returns a sentence for each key of which some values need another state of the policy than the config without them.

    A member could not continue with such a value. One env is made to get its spaces, and closed; envs of several agents are
    not looked at. Keys of the default spaces are known to be right. Values that the config refuses are not tried.
    """
    known = {key for of_policy in DEFAULT_SPACES.values() for key in of_policy}
    keys = [key for key in spaces if key not in known and key.startswith('policy.')]
    cfg = frozen_config(resolve_config(source, overrides))
    if not keys or cfg.agents.policies:
        return []
    try:
        with closing(make_vector_env(cfg.env, 1)) as env:
            of_env = env.obs_space, env.action_space
    except SeveralAgentsError:
        return []
    before = _shapes(cfg, *of_env)
    problems = []
    for key in keys:
        for text in spaces[key].probes():
            try:
                other = frozen_config(resolve_config(source, [*overrides, f'{key}={text}']))
            except ConfigError:
                continue
            if _shapes(other, *of_env) != before:
                problems.append(
                    f'{key} can have no space in a population: with {key}={text} a policy has another state than with '
                    f'{value_text(value_at(cfg, key))}, so no member could change from one to the other; give one value'
                )
                break
    return problems


def _is_below(key: str, paths: tuple[str, ...]) -> bool:
    return any(key == path or key.startswith(f'{path}.') for path in paths)


def _is_adaptive(cfg: JobConfig, key: str) -> bool:
    """Whether a key is of a rate or of a weight that a run adapts to a target."""
    parent = value_at(cfg, key.rpartition('.')[0])
    if isinstance(parent, Mapping):
        return parent.get('kl_target') is not None or (parent.get('target') is not None and 'weight' in parent)
    return False


def _shapes(cfg: JobConfig, obs_space: Any, action_space: Any) -> dict[str, Any]:
    """The kinds of all entries of a new policy's state, with the shapes of tensors; without a policy, why there is none."""
    from zoo.core.registry import POLICY_REGISTRY

    try:
        policy: Policy = POLICY_REGISTRY.get(cfg.policy.type)(cfg.policy, obs_space, action_space)
    except UserError as error:
        return {'': str(error)}
    return dict(_entries(policy.state_dict(), ''))


def _entries(state: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, x in state.items():
        if isinstance(x, Mapping):
            yield from _entries(x, f'{path}/{name}')
        elif isinstance(x, Tensor):
            yield f'{path}/{name}', (x.shape, x.dtype)
        else:
            yield f'{path}/{name}', type(x)
