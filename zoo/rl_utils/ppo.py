"""Losses of proximal policy optimisation, over categorical and Gaussian heads alike."""
from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.rl_utils import kernels
from zoo.rl_utils.check import (
    check_clip_ratio,
    check_range,
    check_shape,
    check_surrogate,
    check_surrogate_options,
    check_values,
)
from zoo.rl_utils.distribution import Distribution, Logit, distribution_of, logit_parts, wide

KLType = Literal['k1', 'k2', 'k3']
Number = float | Tensor


class ppo_data(NamedTuple):
    """Inputs of `ppo_error`; see `ppo_policy_error` and `ppo_value_error` for shapes."""

    logit_new: Logit
    logit_old: Logit
    action: Tensor
    value_new: Tensor
    value_old: Tensor
    adv: Tensor
    return_: Tensor
    weight: Tensor | None = None
    logit_pretrained: Logit | None = None


class ppo_policy_data(NamedTuple):
    """Inputs of `ppo_policy_error`; see there."""

    logit_new: Logit
    logit_old: Logit
    action: Tensor
    adv: Tensor
    weight: Tensor | None = None
    logit_pretrained: Logit | None = None


class ppo_value_data(NamedTuple):
    """Inputs of `ppo_value_error`; see there."""

    value_new: Tensor
    value_old: Tensor
    return_: Tensor
    weight: Tensor | None = None


class ppo_loss(NamedTuple):
    """0-dim tensors with gradient. Callers minimise policy_loss + a * value_loss - b * entropy_loss + c * kl_div."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy_loss: Tensor
    kl_div: Tensor


class ppo_policy_loss(NamedTuple):
    """The policy's part of `ppo_loss`."""

    policy_loss: Tensor
    entropy_loss: Tensor
    kl_div: Tensor


class ppo_info(NamedTuple):
    """0-dim tensors without gradient: mean of log p_old - log p_new, and the share of ratios outside the clip range."""

    approx_kl: Tensor
    clipfrac: Tensor


def ppo_error(
    data: ppo_data, clip_ratio: Number = 0.2, use_value_clip: bool = True, dual_clip: Number | None = None,
    kl_type: KLType = 'k1',
) -> tuple[ppo_loss, ppo_info]:
    """The whole PPO loss: `ppo_policy_error` and `ppo_value_error` over one batch.

    Returns: (ppo_loss, ppo_info). Raises and Source: as the two parts; values and adv have one shape.
    """
    policy_data = ppo_policy_data(
        data.logit_new, data.logit_old, data.action, data.adv, data.weight, data.logit_pretrained)
    value_data = ppo_value_data(data.value_new, data.value_old, data.return_, data.weight)
    check_surrogate(*policy_data)
    check_surrogate_options(clip_ratio, dual_clip, kl_type)
    check_values(*value_data)
    check_shape('value_new', data.value_new, 'adv', data.adv.shape)
    policy, info = _policy_error(policy_data, clip_ratio, dual_clip, True, kl_type)
    value_loss = _value_error(value_data, clip_ratio if use_value_clip else None)
    return ppo_loss(policy.policy_loss, value_loss, policy.entropy_loss, policy.kl_div), info


def ppo_policy_error(
    data: ppo_policy_data, clip_ratio: Number = 0.2, dual_clip: Number | None = None, entropy_bonus: bool = True,
    kl_type: KLType = 'k1',
) -> tuple[ppo_policy_loss, ppo_info]:
    """Clipped surrogate loss of a batch.

    ratio       = p_new(action) / p_old(action)
    surrogate   = min(ratio * adv, clip(ratio, 1 - clip_ratio, 1 + clip_ratio) * adv)
    surrogate   = max(surrogate, dual_clip * adv)   where adv < 0, if dual_clip is given
    policy_loss = -mean(surrogate * weight),   entropy_loss = +mean(entropy * weight)

    Args:
      data.logit_new, logit_old, logit_pretrained: [..., A] (categorical), or {'mu', 'sigma'} of [..., D] (Gaussian).
      data.action: [...] integer index in [0, A), or [..., D]: the raw action that was drawn, never a clipped copy.
      data.adv: [...]; data.weight: [...], mean 1 over the whole batch; None is 1 everywhere. Plain means: not divided
        by its sum. A row of weight 0 has no influence as long as it is finite.
      clip_ratio: > 0. dual_clip: > 1. Either may be a 0-dim tensor, which is not checked.
      entropy_bonus: False leaves entropy_loss a zero.
      kl_type: estimator of KL(new || pretrained) from the drawn actions, used only with logit_pretrained (else kl_div
        is a zero).
    Returns: (ppo_policy_loss, ppo_info).
    Raises: ValueError if shapes differ (names both), a tensor is empty or has a wrong kind of dtype, an action lies
      outside [0, A) (checked on CPU; on a GPU only if ZOO_DEBUG=1, since that waits for it), clip_ratio <= 0,
      dual_clip <= 1 or kl_type is unknown.
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7; dual clip: Ye et al. 2020, arXiv:1912.09729, eq. 5;
      k1, k2, k3: J. Schulman, joschu.net/blog/kl-approx.html.
    """
    check_surrogate(*data)
    check_surrogate_options(clip_ratio, dual_clip, kl_type)
    return _policy_error(data, clip_ratio, dual_clip, entropy_bonus, kl_type)


def ppo_value_error(data: ppo_value_data, clip_ratio: Number = 0.2, use_value_clip: bool = True) -> Tensor:
    """Squared value error, optionally clipped around the old prediction.

    clipped:   0.5 * mean(max((R - V)^2, (R - V_clip)^2) * weight),
               V_clip = V_old + clamp(V - V_old, -clip_ratio, clip_ratio)
    unclipped: 0.5 * mean((R - V)^2 * weight)

    Args: data.value_new, value_old, return_: [...], equal shapes and units; data.weight: as in `ppo_policy_error`.
      clip_ratio: > 0, in their unit.
    Returns: 0-dim tensor with gradient.
    Raises: ValueError if two shapes differ (a [N, 1] against [N] would broadcast to [N, N]), a tensor is empty or not
      floating, or clip_ratio <= 0.
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 9; the clip is that of OpenAI baselines' ppo2.
    """
    check_values(*data)
    check_clip_ratio(clip_ratio)
    return _value_error(data, clip_ratio if use_value_clip else None)


ppo_error_continuous = ppo_error
"""`ppo_error`; the head's output {'mu', 'sigma'} already says that the actions are continuous."""

ppo_policy_error_continuous = ppo_policy_error
"""`ppo_policy_error`; the head's output {'mu', 'sigma'} already says that the actions are continuous."""


def _policy_error(
    data: ppo_policy_data, clip_ratio: Number, dual_clip: Number | None, entropy_bonus: bool, kl_type: KLType,
) -> tuple[ppo_policy_loss, ppo_info]:
    logit_new, logit_old, action, adv, weight, logit_pretrained = data
    dist, parts_new = distribution_of(logit_new), logit_parts(logit_new)
    node = None
    if not isinstance(clip_ratio, Tensor) and not isinstance(dual_clip, Tensor):  # which kernels take as numbers
        node = kernels.find('ppo_policy_error', *parts_new, *logit_parts(logit_old), action, adv, weight)
    try:
        policy_loss, entropy_loss, approx_kl, clipfrac = (node or _PolicyError.apply)(
            dist, logit_old, action, adv, weight, clip_ratio, dual_clip, *parts_new)
    except RuntimeError:
        if len(parts_new) == 1:
            check_range(action, parts_new[0].shape[-1])  # most likely torch met an index outside; this says which
        raise
    if not entropy_bonus:
        entropy_loss = adv.new_zeros(())
    kl_div = adv.new_zeros(()) if logit_pretrained is None else _pretrained_kl(dist, data, kl_type)
    return ppo_policy_loss(policy_loss, entropy_loss, kl_div), ppo_info(approx_kl, clipfrac)


def _value_error(data: ppo_value_data, clip_ratio: Number | None) -> Tensor:
    node = None if isinstance(clip_ratio, Tensor) else kernels.find('ppo_value_error', *data)
    return (node or _ValueError.apply)(*data, clip_ratio)


class _PolicyError(torch.autograd.Function):
    """policy_loss and entropy_loss as one node of the graph: the gradient in log p_new is found on the way forward.

    d surrogate / d log p_new = ratio * adv where the unclipped term is the smaller, else 0; with the dual clip 0 too
    where that bound holds. At ties the subgradients are those of torch.min, torch.max and clamp.
    """

    @staticmethod
    def forward(
        ctx: Any, dist: Distribution, logit_old: Logit, action: Tensor, adv: Tensor, weight: Tensor | None,
        clip_ratio: Any, dual_clip: Number | None, *parts_new: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        log_ratio, entropy, saved = dist.terms(parts_new, logit_old, action)  # [..., 1], as all that follows
        adv = adv.unsqueeze(-1)
        if weight is not None:
            weight = weight.unsqueeze(-1)
            log_ratio = torch.where(weight != 0, log_ratio, 0.0)  # in a row without weight the ratio may overflow
        ratio = log_ratio.exp()
        bounded = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
        unclipped, clipped = ratio * adv, bounded * adv
        surrogate = torch.min(unclipped, clipped)
        grad = torch.where(unclipped > clipped, 0.0, unclipped)  # no product: the ratio may overflow; NaN goes through
        if dual_clip is not None:
            bound = torch.where(adv < 0, dual_clip * adv, -torch.inf)
            grad = torch.where(surrogate < bound, 0.0, torch.where(surrogate == bound, 0.5 * grad, grad))
            surrogate = torch.max(surrogate, bound)
        outside = torch.where(ratio.isnan(), ratio, bounded != ratio)
        if weight is not None:
            grad, surrogate, outside, log_ratio, entropy = (
                x * weight for x in (grad, surrogate, outside, log_ratio, entropy))
        ctx.dist, ctx.has_weight = dist, weight is not None
        ctx.set_materialize_grads(False)  # no zeros for the metrics
        ctx.save_for_backward(grad.div_(-grad.numel()), *(() if weight is None else (weight,)), *saved)
        # four means at once; sum and scale, since a mean takes torch twice as long as a sum
        sums = torch.cat((surrogate, log_ratio, entropy, outside)).view(4, -1).sum(1).mul_(1 / grad.numel())
        policy_loss, approx_kl, entropy_loss, clipfrac = sums.unbind()
        ctx.mark_non_differentiable(approx_kl, clipfrac)
        # tensors of their own: autograd forbids callers to change views of one in place
        return policy_loss.neg(), entropy_loss.clone(), approx_kl.neg_(), clipfrac

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_policy: Tensor | None, grad_entropy: Tensor | None, *_: Any) -> tuple[Any, ...]:
        grad, *saved = ctx.saved_tensors
        zero = grad.new_zeros(()) if grad_policy is None or grad_entropy is None else None
        each = (zero if grad_entropy is None else grad_entropy) * (1 / grad.numel())
        if ctx.has_weight:
            each = each * saved.pop(0)
        grad = grad * (zero if grad_policy is None else grad_policy)
        return None, None, None, None, None, None, None, *ctx.dist.pullback(tuple(saved), grad, each)


class _ValueError(torch.autograd.Function):
    """The loss of `ppo_value_error` (clip_ratio None: unclipped) with its gradient found on the way forward."""

    @staticmethod
    def forward(ctx: Any, value_new: Tensor, value_old: Tensor, return_: Tensor, weight: Tensor | None,
                clip_ratio: Any) -> Tensor:
        dtype, value_new, return_ = value_new.dtype, wide(value_new), wide(return_)
        error = value_new - return_
        square, grad = error.square(), error
        if clip_ratio is not None:
            change = value_new - value_old
            clipped_error = value_old + change.clamp(-clip_ratio, clip_ratio) - return_
            clipped = clipped_error.square()
            # torch.max gives half to each at a tie; inside the range (or where it is NaN) both terms are the same
            share = 0.5 * ((square >= clipped).to(error.dtype) + (square > clipped))
            grad = torch.where(change.abs() > clip_ratio, error * share, clipped_error)
            square = torch.max(square, clipped)
        if weight is not None:
            square, grad = square * weight, grad * weight
        ctx.save_for_backward((grad / grad.numel()).to(dtype))
        return square.mean().mul_(0.5)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.saved_tensors[0] * grad_loss, None, None, None, None


def _pretrained_kl(dist: Distribution, data: ppo_policy_data, kl_type: KLType) -> Tensor:
    """KL(new || pretrained) from samples of (nearly) the new policy."""
    assert data.logit_pretrained is not None
    with torch.no_grad():
        logp_pretrained = dist.log_prob(data.logit_pretrained, data.action)
    log_r = logp_pretrained - dist.log_prob(data.logit_new, data.action)
    if data.weight is not None:
        log_r = torch.where(data.weight != 0, log_r, 0.0)
    if kl_type == 'k1':
        return _mean(-log_r, data.weight)
    if kl_type == 'k2':
        return _mean(0.5 * log_r.square(), data.weight)
    return _mean(log_r.exp() - 1 - log_r, data.weight)


def _mean(x: Tensor, weight: Tensor | None) -> Tensor:
    return x.mean() if weight is None else (x * weight).mean()
