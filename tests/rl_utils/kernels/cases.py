"""Random inputs for the kernels' tests: leaves that require a gradient, of any leading shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.rl_utils import ActionDist, gae_data, ppg_data, ppo_policy_data, ppo_value_data


def policy_case(dist: ActionDist, *lead: int, weight: bool = False, seed: int = 0, **options: Any) -> ppo_policy_data:
    """A batch [*lead] of flat parameters; the ratios lie on both sides of the clip range. options: those of `_params`."""
    generator = torch.Generator().manual_seed(seed)
    new, old, action = _params(dist, lead, generator, **options)
    adv = torch.randn(lead, generator=generator)
    return ppo_policy_data(new, old, action, adv, _weight(lead, generator) if weight else None)


def joint_case(dist: ActionDist, *lead: int, weight: bool = False, seed: int = 0, **options: Any) -> ppg_data:
    """Like `policy_case`, with values."""
    new, old, _ = _params(dist, lead, torch.Generator().manual_seed(seed), **options)
    return ppg_data(new, old, None, *value_case(*lead, weight=weight, seed=seed))


def value_case(*shape: int, weight: bool = False, seed: int = 0) -> ppo_value_data:
    """Values [*shape] whose changes lie on both sides of the clip range."""
    generator = torch.Generator().manual_seed(seed)
    value_old, change, error = torch.randn((3, *shape), generator=generator)
    value_new = (value_old + 0.3 * change).requires_grad_()
    return ppo_value_data(value_new, value_old, value_old + error, _weight(shape, generator) if weight else None)


def gae_case(shape: tuple[int, ...], flags: str = 'both', kind: torch.dtype = torch.bool, seed: int = 0) -> gae_data:
    """A rollout [T], [T, B] or [T, B, A]; flags: 'none', 'done' or 'both', of dtype kind."""
    generator = torch.Generator().manual_seed(seed)
    value, next_value = torch.randn((2, *shape), generator=generator)
    reward = torch.randn(shape[:2], generator=generator)
    done, cut = (torch.rand((2, *shape[:2]), generator=generator) < 0.1).unbind(0)
    return gae_data(
        value,
        next_value,
        reward,
        None if flags == 'none' else done.to(kind),
        (done | cut).to(kind) if flags == 'both' else None,
    )


def _params(
    dist: ActionDist,
    lead: tuple[int, ...],
    generator: torch.Generator,
    masked: str = '',
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """New and old parameters [*lead, P] and actions.

    masked: 'new', 'old' or 'both': these logits are -inf at some options, but never at the option that is taken.
    """
    if dist.name == 'gaussian':
        first, change = torch.randn((2, *lead, dist.n_action), generator=generator)
        sigma, sigma_old = 0.5 + torch.rand((2, *lead, dist.n_action), generator=generator)
        action = first + sigma_old * torch.randn(first.shape, generator=generator)
        new, old = torch.cat((first + 0.1 * change, sigma), -1), torch.cat((first, sigma_old), -1)
        return new.to(dtype).requires_grad_(), old.to(dtype), action
    nvec = getattr(dist, 'nvec', (dist.n_param,))
    first, change = torch.randn((2, *lead, dist.n_param), generator=generator)
    action = torch.stack([torch.randint(n, lead, generator=generator) for n in nvec], -1)
    begin = torch.tensor((0, *nvec[:-1])).cumsum(0)
    forbidden = (torch.rand(first.shape, generator=generator) < 0.5).scatter(-1, action + begin, False)
    new, old = first + 0.3 * change, first
    if masked in ('new', 'both'):
        new = new.masked_fill(forbidden, -torch.inf)
    if masked in ('old', 'both'):
        old = old.masked_fill(forbidden, -torch.inf)
    return new.to(dtype).requires_grad_(), old.to(dtype), action if dist.n_action else action[..., 0]


def _weight(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    weight = torch.rand(shape, generator=generator)
    return torch.where(weight < 0.2, 0.0, weight)
