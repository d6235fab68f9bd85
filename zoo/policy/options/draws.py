"""Draws of minibatches other than 'shuffle': 'in_order', 'prioritized', and the check of a user's own draw.

A draw takes (columns, n_pass, generator) and returns (order, weight). order: indices of the n entries of each pass,
[n_pass, n] int64, on the generator's device; weight: a factor of the loss of each entry, [n] f32, None: 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from zoo.core.data import Columns, first_leaf, send
from zoo.core.errors import UserError
from zoo.core.registry import DRAW_REGISTRY
from zoo.rl_utils.check import check_pair, check_returned

Drawn = tuple[Tensor, Tensor | None]
_FLOOR = 1e-6
"""Least priority, as a share of the largest: every entry may be drawn, and a batch without advantages is drawn evenly."""


def checked_draw(
    draw: Callable[..., Drawn], columns: Columns, n_pass: int, generator: torch.Generator
) -> tuple[Tensor, Columns]:
    """Calls a component of DRAW_REGISTRY; returns its order, and the columns with its weights in 'weight'.

    It does not check that the indices are below the number of entries.
    Raises: UserError if the draw, which may be a user's own, does not return an order and weights.
    """
    n = len(first_leaf(columns))
    order, weight = check_pair('the draw', draw(columns, n_pass, generator), ': the order, and weights or None')
    is_index = isinstance(order, Tensor) and order.dtype in (torch.int64, torch.int32) and order.dim() == 2
    if not is_index or len(order) != n_pass or not order.shape[1]:
        got = f'{order.dtype} {tuple(order.shape)}' if isinstance(order, Tensor) else type(order).__name__
        raise UserError(
            f'the draw returned {got} as the order but must return indices, torch.int64 of shape ({n_pass}, {n})'
        )
    if weight is None:
        return order, columns
    check_returned('the draw, as weights,', weight, (n,), 'one number for each entry, or None')
    return order, {**columns, 'weight': weighted(columns, send(weight, first_leaf(columns).device))}


@DRAW_REGISTRY.register('in_order')
def in_order(columns: Columns, n_pass: int, generator: torch.Generator) -> Drawn:
    """Every entry once in each pass, in the order of collection: step by step, at each step all envs."""
    return torch.arange(len(first_leaf(columns)), device=generator.device).repeat(n_pass, 1), None


@DRAW_REGISTRY.register('prioritized')
@torch.no_grad()
def prioritized(
    columns: Columns,
    n_pass: int,
    generator: torch.Generator,
    *,
    alpha: Annotated[
        float, Field(ge=0, description='0: all entries are equally likely; 1: in proportion to their advantages')
    ] = 0.8,
    beta: Annotated[
        float, Field(ge=0, le=1, description='1: weights make up for all of the preference; 0: none')
    ] = 0.2,
) -> Drawn:
    """Draws entries with large advantages more often, with replacement, and gives them smaller weights.

    p_i = s_i^alpha / sum_j s_j^alpha, s_i = sum of |adv| over the entry's samples;   weight_i = (n p_i)^-beta / z
    z scales the weights so that sum_i p_i weight_i m_i = 1, with m_i the mean of the column 'weight' in the entry (1 if
    there is none): drawn entries have mean weight 1, and the loss keeps its scale (unlike with a largest weight of 1).
    With beta 1 the expected loss is that of 'shuffle'. Samples of weight 0 add nothing to s. Entries of such samples alone
    are drawn only if there are no others: then all are equally likely, with weight 0.
    adv is the column that the steps read, so it is normalised if policy.learn.adv_norm is 'batch'.
    Source: Schaul et al. 2016, arXiv:1511.05952, sec. 3.3; for segments of rollouts by |adv|: PufferLib 3. Departs: the
      weights' scale; beta is constant.
    Raises: UserError if the batch has no column 'adv'.
    """
    if 'adv' not in columns:
        raise UserError(
            "the draw 'prioritized' needs the column 'adv', which these samples lack; use the draw 'shuffle'"
        )
    n, device = len(first_leaf(columns)), generator.device
    adv, given = columns['adv'].to(device, torch.float64), columns.get('weight')
    share = torch.ones_like(adv) if given is None else given.to(device, torch.float64)
    size = torch.where(share > 0, adv.abs(), 0.0).view(n, -1).sum(-1)
    mean_weight = share.view(n, -1).mean(-1)
    size = size.clamp(min=size.max().clamp(min=torch.finfo(size.dtype).tiny) * _FLOOR)
    priority = torch.where(mean_weight > 0, (size / size.max()).pow(alpha), 0.0)
    total = priority.sum()
    p = torch.where(total > 0, priority / total, 1 / n)
    order = torch.multinomial(p, n_pass * n, replacement=True, generator=generator).view(n_pass, n)
    weight = torch.where(priority > 0, (n * p).pow(-beta), 0.0)
    scale = (p * weight * mean_weight).sum()
    return order, torch.where(scale > 0, weight / scale, 0.0).float()


def weighted(columns: Columns, weight: Tensor) -> Tensor:
    """Multiplies the column 'weight' of a batch, 1 if there is none, by one weight [n] for each entry."""
    like = columns['adv' if 'adv' in columns else 'return_']
    rows = weight.view(-1, *(1,) * (like.dim() - 1)).expand_as(like)
    return rows * columns['weight'] if 'weight' in columns else rows.contiguous()
