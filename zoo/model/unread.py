"""Fields of `policy.model` that are set though nothing reads them."""

from __future__ import annotations

from typing import Any

from zoo.config.section import plain
from zoo.core.registry import DISTRIBUTION_REGISTRY, MODEL_REGISTRY
from zoo.core.spaces import Space
from zoo.model.networks import ActorCriticConfig
from zoo.rl_utils.distribution import ActionDist, fitting


def set_fields(cfg: Any, default_type: str | None) -> list[str]:
    """The names of the fields of a resolved section `policy.model` that differ from their defaults.

    Args: default_type: the model of the policy, where the section names none.
    """
    values = plain(cfg)
    if 'type' not in values:  # a policy without a network
        return []
    fields = MODEL_REGISTRY.get(values['type']).config.model_fields
    default = {name: plain(field.get_default(call_default_factory=True)) for name, field in fields.items()}
    default['type'] = default_type
    return [name for name, value in values.items() if value != default.get(name)]


def unread_option(cfg: Any, dist: ActionDist, action_space: Space) -> str:
    """A sentence about a field of `policy.model` that is set but not read by the distribution; empty if there is none.

    Args: cfg: the fields of ActorCriticConfig; one that differs from its default is set.
    """
    kinds = {name: DISTRIBUTION_REGISTRY.get(name) for name in DISTRIBUTION_REGISTRY.names()}
    known = {name for kind in kinds.values() for name in kind.reads or ()} & ActorCriticConfig.model_fields.keys()
    for name in sorted(known.difference(known if dist.reads is None else dist.reads)):
        value, default = getattr(cfg, name), ActorCriticConfig.model_fields[name].default
        if value != default:
            readers = [kind for kind in fitting(action_space, cfg) if name in (kinds[kind].reads or ())]
            use = f', or use policy.model.distribution={" or ".join(readers)}' if readers else ''
            shown = 'null' if default is None else str(default).lower()
            return (
                f'policy.model.{name} is {str(value).lower()} but the actions are drawn by the distribution '
                f'{dist.name!r}, which does not read it; leave it at {shown}{use}'
            )
    return ''
