"""Losses of proximal policy optimisation, over categorical and Gaussian heads alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.rl_utils import kernels
from zoo.rl_utils.check import check_clip_ratio, check_shape, check_surrogate, check_surrogate_options, check_values
from zoo.rl_utils.distribution import Distribution, Logit, distribution_of, logit_parts
from zoo.rl_utils.surrogate import policy_gradient, policy_terms, value_terms

KLType = Literal['k1', 'k2', 'k3']
Number = float | Tensor
Slopes = list[tuple[Tensor, Number]]
"""Where a backward pass starts: outputs of a model with the gradient in each, and losses with their factors."""


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
    data: ppo_data,
    clip_ratio: Number = 0.2,
    use_value_clip: bool = True,
    dual_clip: Number | None = None,
    kl_type: KLType = 'k1',
) -> tuple[ppo_loss, ppo_info]:
    """The whole PPO loss: `ppo_policy_error` and `ppo_value_error` over one batch.

    Returns: (ppo_loss, ppo_info). Raises and Source: as the two parts; values and adv have one shape.
    """
    policy_data = ppo_policy_data(
        data.logit_new, data.logit_old, data.action, data.adv, data.weight, data.logit_pretrained
    )
    value_data = ppo_value_data(data.value_new, data.value_old, data.return_, data.weight)
    check_surrogate(*policy_data)
    check_surrogate_options(clip_ratio, dual_clip, kl_type)
    check_values(*value_data)
    check_shape('value_new', data.value_new, 'adv', data.adv.shape)
    policy, info = _policy_error(policy_data, clip_ratio, dual_clip, True, kl_type)
    value_loss = _value_error(value_data, clip_ratio if use_value_clip else None)
    return ppo_loss(policy.policy_loss, value_loss, policy.entropy_loss, policy.kl_div), info


def ppo_policy_error(
    data: ppo_policy_data,
    clip_ratio: Number = 0.2,
    dual_clip: Number | None = None,
    entropy_bonus: bool = True,
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


def ppo_policy_slopes(
    data: ppo_policy_data,
    clip_ratio: Number = 0.2,
    dual_clip: Number | None = None,
    entropy_weight: Number = 0.0,
) -> tuple[Slopes, Tensor, Tensor, ppo_info]:
    """Where to start a backward pass on policy_loss - entropy_weight * entropy_loss; policy_loss; entropy_loss; info.

    Arguments (but logit_pretrained), values and errors are those of `ppo_policy_error`. The gradient in the model's
    outputs is written out, which takes less time than nodes of a graph; where there is a kernel, it has the nodes.
    """
    check_surrogate(*data)
    check_surrogate_options(clip_ratio, dual_clip, 'k1')
    logit_new, logit_old, action, adv, weight, _ = data
    dist, parts = distribution_of(logit_new), logit_parts(logit_new)
    if (node := _policy_kernel(data, clip_ratio, dual_clip)) is not None:
        loss, entropy, *info = node(dist, logit_old, action, adv, weight, clip_ratio, dual_clip, *parts)
        slopes: Slopes = [(loss, 1.0), (entropy, -entropy_weight)]
        return slopes, loss.detach(), entropy.detach(), ppo_info(*info)
    factor = None if is_zero(entropy_weight) else -entropy_weight
    with torch.no_grad():
        terms = policy_terms(dist, parts, logit_old, action, adv, weight, clip_ratio, dual_clip)
        grads = policy_gradient(dist, terms.slope, terms.weight, terms.saved, factor)
    slopes = [(x, grad.view(x.shape)) for x, grad in zip(parts, grads, strict=True) if x.requires_grad]
    return slopes, terms.policy_loss, terms.entropy_loss, ppo_info(terms.approx_kl, terms.clipfrac)


def ppo_value_slopes(
    data: ppo_value_data,
    clip_ratio: Number = 0.2,
    use_value_clip: bool = True,
    factor: Number = 1.0,
) -> tuple[Slopes, Tensor]:
    """Where to start a backward pass on factor * `ppo_value_error`, and the loss without its graph."""
    check_values(*data)
    check_clip_ratio(clip_ratio)
    clip = clip_ratio if use_value_clip else None
    if (node := _value_kernel(data, clip)) is not None:
        loss = node(*data, clip)
        return [(loss, factor)], loss.detach()
    with torch.no_grad():
        loss, grad = value_terms(*data, clip)
        # 0 times an infinite one would be NaN
        return [] if is_zero(factor) else [(data.value_new, grad * factor)], loss


def is_zero(factor: Number) -> bool:
    """Whether it is a number, and 0: what is in a tensor is not looked at."""
    return not isinstance(factor, Tensor) and factor == 0


def _policy_error(
    data: ppo_policy_data,
    clip_ratio: Number,
    dual_clip: Number | None,
    entropy_bonus: bool,
    kl_type: KLType,
) -> tuple[ppo_policy_loss, ppo_info]:
    logit_new, logit_old, action, adv, weight, logit_pretrained = data
    dist = distribution_of(logit_new)
    node = _policy_kernel(data, clip_ratio, dual_clip) or _PolicyError.apply
    policy_loss, entropy_loss, approx_kl, clipfrac = node(
        dist, logit_old, action, adv, weight, clip_ratio, dual_clip, *logit_parts(logit_new)
    )
    if not entropy_bonus:
        entropy_loss = adv.new_zeros(())
    kl_div = adv.new_zeros(()) if logit_pretrained is None else _pretrained_kl(dist, data, kl_type)
    return ppo_policy_loss(policy_loss, entropy_loss, kl_div), ppo_info(approx_kl, clipfrac)


def _policy_kernel(data: ppo_policy_data, clip_ratio: Number, dual_clip: Number | None) -> Callable[..., Any] | None:
    if isinstance(clip_ratio, Tensor) or isinstance(dual_clip, Tensor):  # which kernels take as numbers
        return None
    return kernels.find('ppo_policy_error', *logit_parts(data.logit_new), *logit_parts(data.logit_old), *data[2:5])


def _value_error(data: ppo_value_data, clip_ratio: Number | None) -> Tensor:
    return (_value_kernel(data, clip_ratio) or _ValueError.apply)(*data, clip_ratio)


def _value_kernel(data: ppo_value_data, clip_ratio: Number | None) -> Callable[..., Any] | None:
    return None if isinstance(clip_ratio, Tensor) else kernels.find('ppo_value_error', *data)


class _PolicyError(torch.autograd.Function):
    """policy_loss and entropy_loss as one node of the graph, with the metrics."""

    @staticmethod
    def forward(
        ctx: Any,
        dist: Distribution,
        logit_old: Logit,
        action: Tensor,
        adv: Tensor,
        weight: Tensor | None,
        clip_ratio: Any,
        dual_clip: Number | None,
        *parts_new: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        terms = policy_terms(dist, parts_new, logit_old, action, adv, weight, clip_ratio, dual_clip)
        ctx.dist, ctx.shape, ctx.has_weight = dist, parts_new[0].shape, weight is not None
        ctx.set_materialize_grads(False)  # no zeros for the metrics
        ctx.save_for_backward(terms.slope, *(() if terms.weight is None else (terms.weight,)), *terms.saved)
        ctx.mark_non_differentiable(terms.approx_kl, terms.clipfrac)
        # a tensor of its own: autograd forbids callers to change views of one in place
        return terms.policy_loss, terms.entropy_loss.clone(), terms.approx_kl, terms.clipfrac

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_policy: Tensor | None, grad_entropy: Tensor | None, *_: Any) -> tuple[Any, ...]:
        slope, *saved = ctx.saved_tensors
        weight = saved.pop(0) if ctx.has_weight else None
        slope = slope * (0.0 if grad_policy is None else grad_policy)
        grads = policy_gradient(ctx.dist, slope, weight, tuple(saved), grad_entropy)
        return None, None, None, None, None, None, None, *(grad.view(ctx.shape) for grad in grads)


class _ValueError(torch.autograd.Function):
    """The loss of `ppo_value_error` with its gradient found on the way forward."""

    @staticmethod
    def forward(
        ctx: Any, value_new: Tensor, value_old: Tensor, return_: Tensor, weight: Tensor | None, clip_ratio: Any
    ) -> Tensor:
        loss, grad = value_terms(value_new, value_old, return_, weight, clip_ratio)
        ctx.save_for_backward(grad.to(value_new.dtype))
        return loss

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
