"""Random inputs for the kernels' tests: leaves that require a gradient, of any leading shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from zoo.rl_utils import (
    ActionDist,
    Categorical,
    Gaussian,
    MultiCategorical,
    gae_data,
    ppg_data,
    ppo_policy_data,
    ppo_value_data,
)

BFLOAT16 = dict(dtype=torch.bfloat16)
DISTS = [Categorical(5), Gaussian(3), MultiCategorical((3, 4))]
each_dist = pytest.mark.parametrize('dist', DISTS, ids=lambda dist: dist.name)
MANY = MultiCategorical((5, 1, 33, 2, 7))

# One row; several tiles; more than one program; rows wider than a tile; masks of new and of old; choices of one option; 300
# choices, which are computed 256 at a time; choices that are computed one at a time; a game's choices
CASES: list[tuple[ActionDist, tuple[int, ...], dict[str, Any]]] = [
    *((kind(1), (1,), {}) for kind in (Categorical, Gaussian)),
    *((kind(3), (7,), {}) for kind in (Categorical, Gaussian)),
    *((kind(2), (600,), {}) for kind in (Categorical, Gaussian)),
    *((kind(18), (5, 3), dict(weight=True)) for kind in (Categorical, Gaussian)),
    *((kind(18), (5, 3), dict(BFLOAT16, weight=True)) for kind in (Categorical, Gaussian)),
    *((kind(5), (2, 3, 4), {}) for kind in (Categorical, Gaussian)),
    *((kind(130), (9,), BFLOAT16) for kind in (Categorical, Gaussian)),
    *((kind(4100), (3,), {}) for kind in (Categorical, Gaussian)),
    (Categorical(1), (21,), dict(masked='both', weight=True)),
    *((Categorical(5), (21,), dict(masked=masked, weight=masked == 'old')) for masked in ('new', 'old', 'both')),
    (Categorical(130), (9,), dict(masked='both', weight=True)),
    (MultiCategorical((2, 1)), (1,), {}),
    (MultiCategorical((3, 2)), (7,), dict(masked='both')),
    (MultiCategorical((4, 3)), (9,), dict(masked='new')),
    (MANY, (5, 3), dict(weight=True)),
    (MANY, (5, 3), dict(BFLOAT16, masked='both', weight=True)),
    (MultiCategorical((18,)), (7,), dict(BFLOAT16, masked='both')),
    (MultiCategorical((2,) * 300), (3,), dict(masked='both')),
    (MultiCategorical((300, 3, 257)), (2, 2), dict(weight=True)),
    (MultiCategorical((6, 4, 4, 4, 4, 7, 49)), (9,), dict(masked='both')),
    (MultiCategorical((3, 3)), (150,), {}),
]
each_case = pytest.mark.parametrize(
    'dist, lead, options',
    CASES,
    ids=[f'{dist.name} {dist.n_param} {lead} {" ".join(map(str, options.values()))}' for dist, lead, options in CASES],
)


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
