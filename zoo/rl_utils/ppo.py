"""Losses of proximal policy optimisation, over categorical and Gaussian heads alike."""
from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.rl_utils.distribution import Distribution, Logit, distribution_of, lead_shape, logit_parts

KLType = Literal['k1', 'k2', 'k3']


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
    data: ppo_data, clip_ratio: float = 0.2, use_value_clip: bool = True, dual_clip: float | None = None,
    kl_type: KLType = 'k1',
) -> tuple[ppo_loss, ppo_info]:
    """The whole PPO loss: `ppo_policy_error` and `ppo_value_error` over one batch.

    Returns: (ppo_loss, ppo_info). Raises and Source: as the two parts.
    """
    policy, info = ppo_policy_error(
        ppo_policy_data(data.logit_new, data.logit_old, data.action, data.adv, data.weight, data.logit_pretrained),
        clip_ratio, dual_clip, kl_type=kl_type)
    value_loss = ppo_value_error(
        ppo_value_data(data.value_new, data.value_old, data.return_, data.weight), clip_ratio, use_value_clip)
    return ppo_loss(policy.policy_loss, value_loss, policy.entropy_loss, policy.kl_div), info


def ppo_policy_error(
    data: ppo_policy_data, clip_ratio: float = 0.2, dual_clip: float | None = None, entropy_bonus: bool = True,
    kl_type: KLType = 'k1',
) -> tuple[ppo_policy_loss, ppo_info]:
    """Clipped surrogate loss of a batch.

    ratio       = p_new(action) / p_old(action)
    surrogate   = min(ratio * adv, clip(ratio, 1 - clip_ratio, 1 + clip_ratio) * adv)
    surrogate   = max(surrogate, dual_clip * adv)   where adv < 0, if dual_clip is given
    policy_loss = -mean(surrogate * weight),   entropy_loss = +mean(entropy * weight)

    Args:
      data.logit_new, logit_old, logit_pretrained: [..., A] (categorical), or {'mu', 'sigma'} of [..., D] (Gaussian).
      data.action: [...] int64 index, or [..., D]: the raw action that was drawn, never a clipped copy.
      data.adv: [...]; data.weight: [...], mean 1 over the whole batch; None is 1 everywhere. Plain means: not divided
        by its sum.
      clip_ratio: > 0. dual_clip: > 1. entropy_bonus: False leaves entropy_loss a zero.
      kl_type: estimator of KL(new || pretrained) from the drawn actions, used only with logit_pretrained (else kl_div
        is a zero).
    Returns: (ppo_policy_loss, ppo_info).
    Raises: ValueError if shapes differ (names both), clip_ratio <= 0, dual_clip <= 1 or kl_type is unknown.
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7; dual clip: Ye et al. 2020, arXiv:1912.09729, eq. 5;
      k1, k2, k3: J. Schulman, joschu.net/blog/kl-approx.html.
    """
    logit_new, logit_old, action, adv, weight, logit_pretrained = data
    _check_policy(data, clip_ratio, dual_clip, kl_type)
    dist = distribution_of(logit_new)
    policy_loss, entropy_loss, approx_kl, clipfrac = _PolicyError.apply(
        dist, logit_old, action, adv, weight, clip_ratio, dual_clip, *logit_parts(logit_new))
    if not entropy_bonus:
        entropy_loss = adv.new_zeros(())
    kl_div = adv.new_zeros(()) if logit_pretrained is None else _pretrained_kl(dist, data, kl_type)
    return ppo_policy_loss(policy_loss, entropy_loss, kl_div), ppo_info(approx_kl, clipfrac)


def ppo_value_error(data: ppo_value_data, clip_ratio: float = 0.2, use_value_clip: bool = True) -> Tensor:
    """Squared value error, optionally clipped around the old prediction.

    clipped:   0.5 * mean(max((R - V)^2, (R - V_clip)^2) * weight),
               V_clip = V_old + clamp(V - V_old, -clip_ratio, clip_ratio)
    unclipped: 0.5 * mean((R - V)^2 * weight)

    Args: data.value_new, value_old, return_: [...], equal shapes and units; data.weight: as in `ppo_policy_error`.
      clip_ratio: > 0, in their unit.
    Returns: 0-dim tensor with gradient.
    Raises: ValueError if two shapes differ (a [N, 1] against [N] would broadcast to [N, N]).
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 9; the clip is that of OpenAI baselines' ppo2.
    """
    value_new, value_old, return_, weight = data
    for name, other in (('value_old', value_old), ('return_', return_), ('weight', weight)):
        _same_shape(name, other, 'value_new', value_new.shape)
    _positive_clip(clip_ratio)
    return _ValueError.apply(value_new, value_old, return_, weight, clip_ratio if use_value_clip else None)


ppo_error_continuous = ppo_error
"""`ppo_error`; the head's output {'mu', 'sigma'} already says that the actions are continuous."""

ppo_policy_error_continuous = ppo_policy_error
"""`ppo_policy_error`; the head's output {'mu', 'sigma'} already says that the actions are continuous."""


class _PolicyError(torch.autograd.Function):
    """policy_loss and entropy_loss as one node of the graph: the gradient in log p_new is found on the way forward.

    d surrogate / d log p_new = ratio * adv where the unclipped term is the smaller, else 0; with the dual clip 0 too
    where that bound holds. At ties the subgradients are those of torch.min, torch.max and clamp.
    """

    @staticmethod
    def forward(
        ctx: Any, dist: Distribution, logit_old: Logit, action: Tensor, adv: Tensor, weight: Tensor | None,
        clip_ratio: float, dual_clip: float | None, *parts_new: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        logp_new, entropy, saved = dist.terms(parts_new, action)
        log_ratio = logp_new - dist.log_prob(logit_old, action)
        if weight is not None:
            log_ratio = torch.where(weight > 0, log_ratio, 0.0)  # rows without weight may hold anything
        ratio = log_ratio.exp()
        bounded = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
        unclipped, clipped = ratio * adv, bounded * adv
        surrogate = torch.min(unclipped, clipped)
        grad = torch.where(unclipped > clipped, 0.0, unclipped)  # no product: the ratio may overflow; NaN goes through
        if dual_clip is not None:
            bound = torch.where(adv < 0, dual_clip * adv, -torch.inf)
            grad = torch.where(surrogate < bound, 0.0, torch.where(surrogate == bound, 0.5 * grad, grad))
            surrogate = torch.max(surrogate, bound)
        outside = (bounded != ratio).to(adv.dtype)
        if weight is not None:
            grad, surrogate, outside, log_ratio, entropy = (
                x * weight for x in (grad, surrogate, outside, log_ratio, entropy))
        ctx.dist, ctx.has_weight = dist, weight is not None
        ctx.save_for_backward(grad.div_(-grad.numel()), *(() if weight is None else (weight,)), *saved)
        approx_kl, clipfrac = log_ratio.mean().neg_(), outside.mean()
        ctx.mark_non_differentiable(approx_kl, clipfrac)
        return surrogate.mean().neg_(), entropy.mean(), approx_kl, clipfrac

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_policy: Tensor, grad_entropy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        grad, *saved = ctx.saved_tensors
        each = (grad_entropy / grad.numel()).expand_as(grad)
        if ctx.has_weight:
            each = each * saved.pop(0)
        return None, None, None, None, None, None, None, *ctx.dist.pullback(tuple(saved), grad * grad_policy, each)


class _ValueError(torch.autograd.Function):
    """The loss of `ppo_value_error` (clip_ratio None: unclipped) with its gradient found on the way forward."""

    @staticmethod
    def forward(ctx: Any, value_new: Tensor, value_old: Tensor, return_: Tensor, weight: Tensor | None,
                clip_ratio: float | None) -> Tensor:
        error = value_new - return_
        square, grad = error.square(), error
        if clip_ratio is not None:
            change = value_new - value_old
            clipped = (value_old + change.clamp(-clip_ratio, clip_ratio) - return_).square()
            # torch.max gives half to each at a tie; inside the range both terms are the same
            share = 0.5 * ((square >= clipped).to(error.dtype) + (square > clipped))
            grad = error * torch.where(change.abs() <= clip_ratio, 1.0, share)
            square = torch.max(square, clipped)
        if weight is not None:
            square, grad = square * weight, grad * weight
        ctx.save_for_backward(grad / grad.numel())
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
    if kl_type == 'k1':
        return _mean(-log_r, data.weight)
    if kl_type == 'k2':
        return _mean(0.5 * log_r.square(), data.weight)
    return _mean(log_r.exp() - 1 - log_r, data.weight)


def _mean(x: Tensor, weight: Tensor | None) -> Tensor:
    return x.mean() if weight is None else (x * weight).mean()


def _check_policy(data: ppo_policy_data, clip_ratio: float, dual_clip: float | None, kl_type: str) -> None:
    first, *rest = logit_parts(data.logit_new)
    for sigma in rest:
        _same_shape("logit_new['sigma']", sigma, "logit_new['mu']", first.shape)
    lead = lead_shape(data.logit_new)
    _check_logit('logit_old', data.logit_old, data.logit_new)
    if data.logit_pretrained is not None:
        _check_logit('logit_pretrained', data.logit_pretrained, data.logit_new)
    _same_shape('action', data.action, 'what logit_new asks for', first.shape if rest else lead)
    _same_shape('adv', data.adv, 'logit_new without its last dimension', lead)
    _same_shape('weight', data.weight, 'logit_new without its last dimension', lead)
    _positive_clip(clip_ratio)
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f'dual_clip is {dual_clip} but must be above 1 (3 to 5 is usual); None turns it off')
    if kl_type not in ('k1', 'k2', 'k3'):
        raise ValueError(f"kl_type is {kl_type!r}; use 'k1', 'k2' or 'k3'")


def _check_logit(name: str, logit: Logit, logit_new: Logit) -> None:
    if isinstance(logit, Tensor) != isinstance(logit_new, Tensor):
        raise ValueError(f'{name} is {_kind(logit)} but logit_new {_kind(logit_new)}; give both as one kind')
    lead, lead_new = lead_shape(logit), lead_shape(logit_new)
    if lead != lead_new:
        raise ValueError(f'{name} has leading shape {tuple(lead)} but logit_new {tuple(lead_new)}; they must be equal')
    for part, part_new in zip(logit_parts(logit), logit_parts(logit_new), strict=True):
        _same_shape(name, part, 'logit_new', part_new.shape)


def _kind(logit: Logit) -> str:
    return 'a tensor of logits' if isinstance(logit, Tensor) else "a mapping {'mu', 'sigma'}"


def _same_shape(name: str, tensor: Tensor | None, other: str, shape: torch.Size) -> None:
    if tensor is not None and tensor.shape != shape:
        raise ValueError(f'{name} has shape {tuple(tensor.shape)} but {other} {tuple(shape)}; they must be equal')


def _positive_clip(clip_ratio: float) -> None:
    if not clip_ratio > 0:
        raise ValueError(f'clip_ratio is {clip_ratio} but must be above 0 (0.1 to 0.3 is usual)')
