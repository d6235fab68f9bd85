"""The PPO losses with their gradients written out, in few operations: what a minibatch costs on a CPU is their number.

`zoo.rl_utils.ppo` makes losses of them (nodes of a graph), and the starts of a backward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.rl_utils.check import check_range
from zoo.rl_utils.distribution import Distribution, Logit, wide


class PolicyTerms(NamedTuple):
    """Loss and metrics, 0-dim, and what `policy_gradient` takes: slope is d policy_loss / d log p_new, [1, N]."""

    policy_loss: Tensor
    entropy_loss: Tensor
    approx_kl: Tensor
    clipfrac: Tensor
    slope: Tensor
    weight: Tensor | None
    saved: tuple[Tensor, ...]


def policy_terms(
    dist: Distribution,
    parts_new: tuple[Tensor, ...],
    logit_old: Logit,
    action: Tensor,
    adv: Tensor,
    weight: Tensor | None,
    clip_ratio: Any,
    dual_clip: Any,
) -> PolicyTerms:
    """The policy's loss and metrics; for arguments and formulas see `ppo_policy_error`.

    d surrogate / d log p_new = ratio * adv where the unclipped term is the smaller, else 0; with the dual clip 0 too
    where that bound holds. At ties the subgradients are those of torch.min, torch.max and clamp.
    """
    try:
        log_ratio, entropy, saved = dist.terms(parts_new, logit_old, action)  # [1, N], as all that follows
    except RuntimeError:
        if len(parts_new) == 1:
            check_range(action, parts_new[0].shape[-1])  # most likely torch met an index outside; this says which
        raise
    per_row = 1 / log_ratio.numel()
    cost = wide(adv).flatten() * -per_row  # of a ratio of 1: the loss is the sum
    if weight is not None:
        weight = weight.flatten()
        log_ratio = torch.where(weight != 0, log_ratio, 0.0)  # in a row without weight the ratio may overflow
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
    unclipped, clipped = ratio * cost, bounded * cost
    loss = torch.max(unclipped, clipped)
    slope = unclipped.masked_fill(unclipped < clipped, 0.0)  # no product: the ratio may overflow; NaN goes through
    if dual_clip is not None:
        bound = torch.where(cost > 0, dual_clip * cost, torch.inf)
        slope = torch.where(loss > bound, 0.0, torch.where(loss == bound, 0.5 * slope, slope))
        loss = torch.min(loss, bound)
    outside = torch.where(ratio.isnan(), ratio, bounded != ratio)
    rows = torch.cat((log_ratio, entropy, outside))
    if weight is not None:
        loss, slope, rows = loss * weight, slope * weight, rows * weight
    kl, entropy_loss, clipfrac = rows.sum(1).mul_(per_row).unbind()  # a mean takes torch twice as long as a sum
    return PolicyTerms(loss.sum(), entropy_loss, kl.neg_(), clipfrac, slope, weight, saved)


def policy_gradient(
    dist: Distribution,
    slope: Tensor,
    weight: Tensor | None,
    saved: tuple[Tensor, ...],
    entropy_factor: Any,
) -> tuple[Tensor, ...]:
    """The gradient of policy_loss + entropy_factor * entropy_loss in each part of the new logit, [N, ...].

    Args: slope, weight, saved: of `PolicyTerms`; entropy_factor: a number or 0-dim tensor, or None to leave it out.
    """
    each = None if entropy_factor is None else entropy_factor * (1 / slope.numel())
    return dist.pullback(saved, slope, each if each is None or weight is None else weight * each)


def value_terms(
    value_new: Tensor,
    value_old: Tensor,
    return_: Tensor,
    weight: Tensor | None,
    clip_ratio: Any,
) -> tuple[Tensor, Tensor]:
    """The loss of `ppo_value_error` (clip_ratio None: unclipped) and its gradient in value_new."""
    value_new, return_ = wide(value_new), wide(return_)
    error = value_new - return_
    per_row = 1 / error.numel()
    if clip_ratio is None:
        grad = error * per_row if weight is None else error * weight * per_row
        return (error * grad).sum().mul_(0.5), grad
    square = error.square()
    change = value_new - value_old
    clipped_error = value_old + change.clamp(-clip_ratio, clip_ratio) - return_
    clipped = clipped_error.square()
    # torch.max gives half to each at a tie; inside the range (or where it is NaN) both terms are the same
    share = 0.5 * ((square >= clipped).to(error.dtype) + (square > clipped))
    grad = torch.where(change.abs() > clip_ratio, error * share, clipped_error)
    square = torch.max(square, clipped)
    if weight is not None:
        square, grad = square * weight, grad * weight
    return square.mean().mul_(0.5), grad * per_row
