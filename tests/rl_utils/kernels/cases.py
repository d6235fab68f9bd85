"""Inputs of the kernels' tests: random, leaves with gradient, of any leading shape."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.rl_utils import gae_data, ppg_data, ppo_policy_data, ppo_value_data


def policy_case(
    *shape: int,
    gaussian: bool = False,
    weight: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> ppo_policy_data:
    """A batch [*shape[:-1]] over shape[-1] choices or dimensions; the ratios lie on both sides of the clip range."""
    generator = torch.Generator().manual_seed(seed)
    new, old = _logits(shape, gaussian, dtype, generator)
    if gaussian:
        action = (old['mu'] + old['sigma'] * torch.randn(shape, generator=generator)).to(torch.float32)
    else:
        action = torch.randint(shape[-1], shape[:-1], generator=generator)
    adv = torch.randn(shape[:-1], generator=generator)
    return ppo_policy_data(new, old, action, adv, _weight(shape[:-1], generator) if weight else None)


def joint_case(
    *shape: int,
    gaussian: bool = False,
    weight: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> ppg_data:
    """As `policy_case`, with values."""
    generator = torch.Generator().manual_seed(seed)
    new, old = _logits(shape, gaussian, dtype, generator)
    value_new, value_old, return_, weight_ = value_case(*shape[:-1], weight=weight, seed=seed)
    return ppg_data(new, old, None, value_new, value_old, return_, weight_)


def choices_case(
    *lead: int,
    nvec: tuple[int, ...],
    masked: str = '',
    weight: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> ppo_policy_data:
    """A batch [*lead] over several choices; masked: 'new', 'old' or 'both', whose logits are -inf at some options.

    Every choice keeps the option that the action takes. Actions [*lead, K]; for a categorical take [..., 0].
    """
    generator = torch.Generator().manual_seed(seed)
    new, old, action = _choices(lead, nvec, masked, dtype, generator)
    adv = torch.randn(lead, generator=generator)
    return ppo_policy_data(new, old, action, adv, _weight(lead, generator) if weight else None)


def joint_choices_case(
    *lead: int,
    nvec: tuple[int, ...],
    masked: str = '',
    weight: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> ppg_data:
    """As `choices_case`, with values."""
    new, old, _ = _choices(lead, nvec, masked, dtype, torch.Generator().manual_seed(seed))
    return ppg_data(new, old, None, *value_case(*lead, weight=weight, seed=seed))


def value_case(*shape: int, weight: bool = False, seed: int = 0) -> ppo_value_data:
    """Values [*shape]; the changes lie on both sides of the clip range."""
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


def _logits(shape: tuple[int, ...], gaussian: bool, dtype: torch.dtype, generator: torch.Generator):
    first, change = torch.randn((2, *shape), generator=generator)
    if not gaussian:
        return (first + 0.3 * change).to(dtype).requires_grad_(), first.to(dtype)
    sigma, sigma_old = 0.5 + torch.rand((2, *shape), generator=generator)
    return (
        {'mu': (first + 0.1 * change).to(dtype).requires_grad_(), 'sigma': sigma.to(dtype).requires_grad_()},
        {'mu': first.to(dtype), 'sigma': sigma_old.to(dtype)},
    )


def _choices(
    lead: tuple[int, ...], nvec: tuple[int, ...], masked: str, dtype: torch.dtype, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """New and old logits [*lead, sum(nvec)] and actions [*lead, K]."""
    first, change = torch.randn((2, *lead, sum(nvec)), generator=generator)
    action = torch.stack([torch.randint(n, lead, generator=generator) for n in nvec], -1)
    begin = torch.tensor((0, *nvec[:-1])).cumsum(0)
    forbidden = (torch.rand(first.shape, generator=generator) < 0.5).scatter(-1, action + begin, False)
    new, old = first + 0.3 * change, first
    if masked in ('new', 'both'):
        new = new.masked_fill(forbidden, -torch.inf)
    if masked in ('old', 'both'):
        old = old.masked_fill(forbidden, -torch.inf)
    return new.to(dtype).requires_grad_(), old.to(dtype), action


def _weight(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    weight = torch.rand(shape, generator=generator)
    return torch.where(weight < 0.2, 0.0, weight)
