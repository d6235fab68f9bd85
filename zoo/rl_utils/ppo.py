"""Formulas of proximal policy optimisation, for every action distribution: the losses of a gradient step, and its metrics.

Nothing is checked here and no kernel is used; the public functions of zoo.rl_utils.losses do both. All tensors have the shape
[N] unless another is given. Weights have mean 1 over the whole batch; None is 1 everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from zoo.core.registry import SURROGATE_REGISTRY, VALUE_LOSS_REGISTRY
from zoo.rl_utils.check import Number as Number

MIN_WEIGHT = 1e-30  # least sum of weights to divide by: a mean over rows of weight 0 is then 0, not NaN
MAX_LOG_RATIO = 88.0
"""Largest log of a probability ratio, since e^89 overflows float32; a larger ratio counts as e^88 and has no gradient."""


@SURROGATE_REGISTRY.register('clip')
def clip(log_ratio: Tensor, ratio: Tensor, adv: Tensor, clip_ratio: Number) -> Tensor:
    """PPO's clipped gain: no reward for a ratio outside [1 - clip_ratio, 1 + clip_ratio].

    gain = min(r A, clamp(r, 1 - c, 1 + c) A);   slope = r A, but 0 where the ratio is outside and moving further out raises r A
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7.
    """
    gain = ratio * adv
    bound = ratio.detach().clamp(1 - clip_ratio, 1 + clip_ratio) * adv  # type: ignore[arg-type]  # 0-dim tensors too
    return torch.where(gain > bound, bound, gain)  # min() would halve the gradient at a tie, and take 20 operations


@VALUE_LOSS_REGISTRY.register('mse')
def mse(value: Tensor, return_: Tensor, value_old: Tensor | None, clip_ratio: Number | None) -> Tensor:
    """Half the squared error.

    error = 0.5 (R - V)^2;   d error / d V = V - R
    """
    return 0.5 * (return_ - value).square()


def policy_loss(
    log_new: Tensor,
    log_old: Tensor,
    adv: Tensor,
    weight: Tensor | None,
    clip_ratio: Number,
    surrogate: Callable[..., Tensor] = clip,
) -> tuple[Tensor, Tensor]:
    """Surrogate loss of a minibatch, 0-dim; and log_ratio of its rows, without gradient, 0 in rows of weight 0.

    log_ratio   = log p_new(action) - log p_old(action)
    policy_loss = -mean(surrogate(log_ratio, exp(log_ratio), adv, clip_ratio) * weight)

    Args: log_old, adv: without gradient, in float32 at least. surrogate: see zoo.rl_utils.surrogates.
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7.
    """
    log_ratio = zeroed(log_new - log_old, weight)
    ratio = log_ratio.masked_fill(log_ratio > MAX_LOG_RATIO, MAX_LOG_RATIO).exp()  # clamp has no gradient at NaN
    return -loss_mean(surrogate(log_ratio, ratio, adv, clip_ratio), weight), log_ratio.detach()


def value_loss_of(
    value: Tensor,
    return_: Tensor,
    weight: Tensor | None = None,
    value_loss: Callable[..., Tensor] = mse,
    value_old: Tensor | None = None,
    clip_ratio: Number | None = None,
) -> Tensor:
    """mean(value_loss(value, return_, value_old, clip_ratio) * weight), 0-dim.

    Args: value: of the critic, in the unit of return_ and value_old. value_loss: see zoo.rl_utils.value_losses.
    """
    return loss_mean(value_loss(value, return_, value_old, clip_ratio), weight)


def zeroed(x: Tensor, weight: Tensor | None) -> Tensor:
    """x, but 0 in rows of weight 0, where a probability ratio may overflow."""
    if weight is None:
        return x
    return torch.where(weight != 0, x, 0.0)


def loss_mean(x: Tensor, weight: Tensor | None) -> Tensor:
    """mean(x * weight), 0-dim: a plain mean, not divided by the sum of the weights."""
    if weight is None:
        return x.mean()
    return (x * weight).mean()


def weighted_mean(x: Tensor, weight: Tensor | None) -> Tensor:
    """sum(weight * x) / sum(weight) of x, weight [..., N] -> [...], for metrics; 0 where all weights are 0."""
    if weight is None:
        return x.mean(-1)
    return (x * weight).sum(-1) / weight.sum(-1, dtype=x.dtype).clamp(min=MIN_WEIGHT)


def clipfrac(log_ratio: Tensor, weight: Tensor | None, clip_ratio: Number, high: Number) -> Tensor:
    """Share of rows whose ratio is outside [1 - clip_ratio, 1 + high]: log_ratio [..., N] -> [...]."""
    ratio = ratio_of(log_ratio)
    bounded = ratio.clamp(min=1 - clip_ratio).clamp(max=1 + high)  # one by one: both may be tensors
    outside = torch.where(ratio.isnan(), ratio, (bounded != ratio).to(ratio.dtype))
    return weighted_mean(outside, weight)


def ratio_of(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio) without overflow, for metrics."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


@torch.no_grad()
def ratio_metrics(log_ratio: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
    """The metrics kl, the weighted mean of r - 1 - log r, and ratio_max, the largest r with a weight: [..., N] -> [...]."""
    ratio = ratio_of(log_ratio)
    kl = weighted_mean(ratio - 1 - log_ratio, weight)
    return {'kl': kl, 'ratio_max': zeroed(ratio, weight).amax(-1)}


def added(loss: Tensor, factor: Number, term: Tensor) -> Tensor:
    """loss + factor * term; a factor of exactly 0 drops the term, which may be infinite."""
    if not isinstance(factor, Tensor) and factor == 0:
        return loss
    return loss + factor * term
