"""Last layers of a model: features -> parameters of the action distribution, features -> value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from zoo.core.errors import UserError
from zoo.core.spaces import ACTION_MASK, Space, mask_space
from zoo.model.mlp import Layers, ValueHead
from zoo.rl_utils.distribution import ActionDist, make_dist


def make_policy_head(
    n_feature: int,
    action_space: Space,
    state_dependent_std: bool = False,
    log_std_init: float = 0.0,
    distribution: str = 'auto',
    log_std_min: float = -10.0,
    log_std_max: float = 2.0,
) -> nn.Module:
    """The last layer of a policy: features [..., n_feature] -> logit [..., P], as the action space asks for.

    Args: distribution: a registered one, 'auto' by the space; the others: where actions are real numbers, see
      `ActorCriticConfig`.
    """
    options = {
        'n_feature': n_feature,
        'state_dependent_std': state_dependent_std,
        'log_std_init': log_std_init,
        'log_std_min': log_std_min,
        'log_std_max': log_std_max,
    }
    return make_dist(action_space, distribution, options).make_head(n_feature, options)


def policy_head(cfg: Any, n_feature: int, action_space: Space) -> tuple[nn.Module, ActionDist]:
    """The head that `policy.model` asks for, behind hidden layers where `actor_head` has widths, and its distribution."""
    hidden = _hidden(cfg, cfg.actor_head, n_feature)
    n = n_feature if hidden is None else hidden.n_feature
    options = {**dict(cfg), 'n_feature': n}
    dist = make_dist(action_space, cfg.distribution, options)
    head = dist.make_head(n, options)
    return (head if hidden is None else nn.Sequential(hidden, head)), dist


def value_head(cfg: Any, n_feature: int, gain: float) -> nn.Module:
    """The head of the critic, behind hidden layers where `critic_head` has widths; gain: of one without."""
    hidden = _hidden(cfg, cfg.critic_head, n_feature)
    if hidden is None:
        return ValueHead(n_feature, gain)
    return nn.Sequential(hidden, ValueHead(hidden.n_feature, hidden.value_gain))


def _hidden(cfg: Any, widths: Sequence[int], n_feature: int) -> Layers | None:
    return Layers(n_feature, widths, cfg.activation, cfg.layer_norm) if widths else None


def check_mask(obs_space: Space, dist: ActionDist) -> bool:
    """Whether observations hold an action mask. Raises: UserError if the distribution cannot use it."""
    mask = mask_space(obs_space)
    if mask is None:
        return False
    if not dist.n_mask:
        raise UserError(
            f'the observations hold an {ACTION_MASK!r} but actions of a {dist.name} distribution take no mask; '
            'set env.action_mask=off'
        )
    if mask.shape != (dist.n_mask,):
        raise UserError(
            f'the {ACTION_MASK!r} of the observations has shape {mask.shape} but must have ({dist.n_mask},), one entry '
            f'for each choice of the {dist.name} distribution; change the env'
        )
    return True
