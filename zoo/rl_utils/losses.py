"""Public losses of PPO and PPG: they check inputs, read any form of logits and use kernels on GPUs. Formulas: zoo.rl_utils.ppo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from zoo.core.data import wide
from zoo.rl_utils import kernels, value_losses
from zoo.rl_utils.check import Number, check_clip_ratio, check_floating, check_shape, check_values
from zoo.rl_utils.distribution import ActionDist, Logit, check_policies, from_logits
from zoo.rl_utils.ppo import (
    added,
    clip,
    clipfrac,
    loss_mean,
    policy_loss,
    ratio_metrics,
    value_loss_of,
    weighted_mean,
    zeroed,
)
from zoo.rl_utils.surrogates import gain_of, importance_of

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
    """0-dim tensors without gradient: mean of log p_old - log p_new, and the share of ratios outside the clip range.

    With weights they are weighted means, sum(weight * x) / sum(weight), so that the share is in [0, 1]; 0 if all are 0.
    """

    approx_kl: Tensor
    clipfrac: Tensor


def ppo_error(
    data: ppo_data,
    clip_ratio: Number = 0.2,
    use_value_clip: bool = True,
    dual_clip: Number | None = None,
    kl_type: KLType = 'k1',
    dist: ActionDist | None = None,
) -> tuple[ppo_loss, ppo_info]:
    """The whole PPO loss: `ppo_policy_error` and `ppo_value_error` over one batch.

    Returns: (ppo_loss, ppo_info). Raises and Source: as the two parts; values and adv have one shape.
    """
    policy, info = ppo_policy_error(
        ppo_policy_data(data.logit_new, data.logit_old, data.action, data.adv, data.weight, data.logit_pretrained),
        clip_ratio,
        dual_clip,
        kl_type=kl_type,
        dist=dist,
    )
    check_shape('value_new', data.value_new, 'adv', data.adv.shape)
    value_data = ppo_value_data(data.value_new, data.value_old, data.return_, data.weight)
    value_loss = ppo_value_error(value_data, clip_ratio, use_value_clip)
    return ppo_loss(policy.policy_loss, value_loss, policy.entropy_loss, policy.kl_div), info


def ppo_policy_error(
    data: ppo_policy_data,
    clip_ratio: Number = 0.2,
    dual_clip: Number | None = None,
    entropy_bonus: bool = True,
    kl_type: KLType = 'k1',
    dist: ActionDist | None = None,
    surrogate: Callable[..., Tensor] = clip,
    logit_proximal: Logit | None = None,
    rho_max: Number | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """Clipped surrogate loss of a batch, or that of another surrogate.

    ratio       = p_new(action) / p_old(action)
    surrogate   = min(ratio * adv, clip(ratio, 1 - clip_ratio, 1 + clip_ratio) * adv)
    surrogate   = max(surrogate, dual_clip * adv)   where adv < 0, if dual_clip is given
    policy_loss = -mean(surrogate * weight),   entropy_loss = +mean(entropy * weight)

    With logit_proximal the ratio is p_new / p_proximal and the surrogate is multiplied by p_proximal / p_old (decoupled
    clip: the size of a step does not depend on the age of the samples). p_new / p_old counts as at most 100, and
    p_proximal / p_old as at most rho_max.

    Args:
      data.logit_new, logit_old, logit_pretrained: [..., A] (categorical), or {'mu', 'sigma'} of [..., D] (Gaussian);
        with `dist`: [..., P].
      data.action: [...] integer index in [0, A), or [..., D]: the raw action that was drawn, never a clipped copy.
      data.adv: [...]; data.weight: [...], mean 1 over the whole batch; None is 1 everywhere. Plain means: not divided
        by its sum. A row of weight 0 has no influence as long as it is finite.
      clip_ratio: > 0; infinity: no clipping. dual_clip: > 1. Either may be a 0-dim tensor, which is not checked.
      entropy_bonus: False: entropy_loss is 0.
      kl_type: estimator of KL(new || pretrained) from the drawn actions, used only with logit_pretrained (else kl_div
        is 0).
      dist: the distribution of which the logits are flat parameters; None: found from the form of the logits.
      surrogate: (log_ratio, ratio, adv, clip_ratio) -> gain, elementwise; see zoo.rl_utils.surrogates.
      logit_proximal: as logit_old; None: the old policy itself. rho_max: >= 1, None: no such bound.
    Returns: (ppo_policy_loss, ppo_info); the losses have a gradient in logit_new alone.
    Raises: ValueError if shapes differ (names both), a tensor is empty or has a wrong kind of dtype, an action lies
      outside [0, A) (checked on CPU; on a GPU only if ZOO_DEBUG=1, since that waits for it), clip_ratio <= 0,
      dual_clip <= 1 or kl_type is unknown.
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 7; dual clip: Ye et al. 2020, arXiv:1912.09729, eq. 5;
      k1, k2, k3: J. Schulman, joschu.net/blog/kl-approx.html; proximal policy: arXiv:2110.00641, eq. 3.
    """
    logits: Sequence[Any] = (data.logit_new, data.logit_old, data.logit_pretrained, logit_proximal)
    if dist is None:
        dist, *logits = from_logits(*logits)
    new, old, pretrained, proximal = logits
    action = data.action
    adv = data.adv
    weight = _detach(data.weight)
    lead = check_policies(dist, new, old, pretrained)
    check_shape('adv', adv, 'logit_new without its last dimension', lead)
    check_shape('weight', weight, 'adv', adv.shape)
    check_floating('adv', adv)
    dist.check_action(action, lead)
    check_clip_ratio(clip_ratio)
    if dual_clip is not None and not isinstance(dual_clip, Tensor) and not dual_clip > 1:
        raise ValueError(f'dual_clip is {dual_clip} but must be above 1 (3 to 5 is usual); None turns it off')
    if kl_type not in ('k1', 'k2', 'k3'):
        raise ValueError(f"kl_type is {kl_type!r}; use 'k1', 'k2' or 'k3'")
    numbers = (clip_ratio, dual_clip)
    kernel = (
        kernels.ENABLED
        and proximal is None
        and kernels.find('ppo_policy_error', new, old, action, adv, weight, dist=dist, numbers=numbers, part=surrogate)
    )
    if kernel:
        loss, entropy_loss, *info = kernel(dist, new, old, action, adv, weight, *numbers, surrogate)
    else:
        log_new = dist.log_prob(new, action)
        log_old = dist.log_prob(old.detach(), action)
        log_proximal = log_old
        importance = None
        if proximal is not None:
            log_proximal = dist.log_prob(proximal.detach(), action)
            importance = importance_of(log_new, log_old, log_proximal, weight, rho_max)
        gain = partial(gain_of, surrogate, dual_clip, importance)
        loss, log_ratio = policy_loss(log_new, log_proximal, wide(adv.detach()), weight, clip_ratio, gain)
        high = dict(getattr(surrogate, 'options', ())).get('high', clip_ratio)  # of an asymmetric clip
        if proximal is None:
            log_old_ratio = log_ratio
        else:
            log_old_ratio = zeroed(log_new.detach() - log_old, weight)
        flat_weight = None
        if weight is not None:
            flat_weight = weight.flatten()
        approx_kl = weighted_mean(-log_old_ratio.flatten(), flat_weight)
        info = [approx_kl, clipfrac(log_ratio.flatten(), flat_weight, clip_ratio, high)]
        entropy_loss = None
        if entropy_bonus:
            entropy_loss = loss_mean(dist.entropy(new), weight)
    if not entropy_bonus:
        entropy_loss = adv.new_zeros(())
    kl_div = adv.new_zeros(())
    if pretrained is not None:
        # KL(new || pretrained) estimated from actions drawn from new
        log_r = zeroed(dist.log_prob(pretrained.detach(), action) - dist.log_prob(new, action), weight)
        estimators = {'k1': lambda: -log_r, 'k2': lambda: 0.5 * log_r.square(), 'k3': lambda: log_r.exp() - 1 - log_r}
        kl_div = loss_mean(estimators[kl_type](), weight)
    return ppo_policy_loss(loss, entropy_loss, kl_div), ppo_info(*info)


def ppo_value_error(
    data: ppo_value_data,
    clip_ratio: Number = 0.2,
    use_value_clip: bool = True,
    value_loss: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Squared value error, optionally clipped around the old prediction, or another value loss.

    clipped:   0.5 * mean(max((R - V)^2, (R - V_clip)^2) * weight),
               V_clip = V_old + clamp(V - V_old, -clip_ratio, clip_ratio)
    unclipped: 0.5 * mean((R - V)^2 * weight)

    Args: data.value_new, value_old, return_: [...], equal shapes and units; data.weight: as in `ppo_policy_error`.
      clip_ratio: > 0, in their unit. value_loss: (value, return_, value_old, clip_ratio) -> error, elementwise, in place
      of the two above; see zoo.rl_utils.value_losses.
    Returns: 0-dim tensor with a gradient in value_new alone.
    Raises: ValueError if two shapes differ (a [N, 1] against [N] would broadcast to [N, N]), a tensor is empty or not
      floating, or clip_ratio <= 0.
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 9; the clip is that of OpenAI baselines' ppo2.
    """
    check_values(*data)
    check_clip_ratio(clip_ratio)
    kernel = kernels.ENABLED and value_loss is None and kernels.find('ppo_value_error', *data, numbers=(clip_ratio,))
    if kernel:
        return kernel(*data, clip_ratio if use_value_clip else None)
    error: Callable[..., Tensor] = value_losses.mse
    if value_loss is not None:
        error = partial(value_losses.checked, value_loss)
    elif use_value_clip:
        error = value_losses.clip
    value = wide(data.value_new)
    value_old = data.value_old.detach()
    return_ = wide(data.return_.detach())
    return value_loss_of(value, return_, _detach(data.weight), error, value_old, clip_ratio)


ppo_error_continuous = ppo_error
"""`ppo_error`; the head's output {'mu', 'sigma'} already says that the actions are continuous."""


def ppo_policy_error_continuous(
    data: ppo_policy_data,
    clip_ratio: Number = 0.2,
    dual_clip: Number | None = None,
    kl_type: KLType = 'k1',
    *,
    entropy_bonus: bool = True,
    dist: ActionDist | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """`ppo_policy_error` with the arguments in DI-engine's order: its function of this name has kl_type as the fourth.

    The head's output {'mu', 'sigma'} already says that the actions are continuous. Args, Returns, Raises: as there.
    """
    return ppo_policy_error(data, clip_ratio, dual_clip, entropy_bonus, kl_type, dist)


def _detach(x: Tensor | None) -> Tensor | None:
    if x is None:
        return None
    return x.detach()


def policy_terms_by_kernel(
    dist: ActionDist, logit: Tensor, minibatch: Mapping[str, Any], loss_spec: Any, numbers: Any
) -> tuple[Tensor, dict[str, Any]]:
    """policy_loss - entropy_weight * entropy of a gradient step, and all metrics of its policy, by a kernel if there is one."""
    logit_old = minibatch['logit']
    action = minibatch['action']
    weight = minibatch.get('weight')
    losses, info = ppo_policy_error(
        ppo_policy_data(logit, logit_old, action, minibatch['adv'], weight),
        numbers.clip_ratio,
        numbers.dual_clip,
        dist=dist,
        surrogate=loss_spec.surrogate,
        logit_proximal=minibatch.get('logit_proximal'),
        rho_max=getattr(loss_spec.proximal, 'rho_max', None),
    )
    loss = added(losses.policy_loss, -numbers.entropy_weight, losses.entropy_loss)
    metrics = {'policy_loss': losses.policy_loss.detach(), 'entropy': losses.entropy_loss.detach(), **info._asdict()}
    if loss_spec.measure_kl:
        with torch.no_grad():
            log_ratio = dist.log_prob(logit, action) - dist.log_prob(logit_old, action)
        metrics |= ratio_metrics(zeroed(log_ratio, weight), weight)
    return loss, metrics


def error_of_component(
    output: Mapping[str, Tensor], minibatch: Mapping[str, Any], loss: Callable[..., Tensor], clip_ratio: Number
) -> tuple[Tensor, dict[str, Tensor]]:
    """The error of a critic by any value loss, 0-dim; and the metric value_clipfrac of losses that clip.

    Args: output: of the model, with 'value', or with 'value_logit' of a critic that predicts a distribution of returns.
    """
    return_ = minibatch['return_']
    weight = minibatch.get('weight')
    if 'value_logit' in output:
        return loss_mean(loss(output['value_logit'], return_, None, None), weight), {}
    is_mse = getattr(loss, 'function', None) is value_losses.mse
    data = ppo_value_data(output['value'], return_ if is_mse else minibatch['value'], return_, weight)
    if is_mse:
        return ppo_value_error(data, use_value_clip=False), {}
    if not value_losses.clips_values(loss):
        return ppo_value_error(data, clip_ratio, value_loss=loss), {}
    clips_at_ratio = loss.name == 'clip' and loss.options == (('range', None),)
    error = ppo_value_error(data, clip_ratio, clips_at_ratio, None if clips_at_ratio else loss)
    with torch.no_grad():
        value = data.value_new
        limit = dict(loss.options).get('range')
        if loss.name == 'clip':
            distance = (value - data.value_old).abs()
        else:
            distance = (value - return_).square()
        if limit is None:
            limit = clip_ratio
        is_outside = distance > limit
        return error, {'value_clipfrac': weighted_mean(is_outside.to(value.dtype), weight)}


class ppg_data(NamedTuple):
    """Inputs of `ppg_joint_error`; see there."""

    logit_new: Logit
    logit_old: Logit
    action: Tensor | None
    value_new: Tensor
    value_old: Tensor
    return_: Tensor
    weight: Tensor | None = None


class ppg_joint_loss(NamedTuple):
    """0-dim tensors with gradient. Callers minimise auxiliary_loss + beta_clone * behavioral_cloning_loss."""

    auxiliary_loss: Tensor
    behavioral_cloning_loss: Tensor


def ppg_joint_error(
    data: ppg_data, clip_ratio: float = 0.2, use_value_clip: bool = True, dist: ActionDist | None = None
) -> ppg_joint_loss:
    """Losses of the policy network in the auxiliary phase: it learns returns while its policy stays the same.

    auxiliary_loss          = `ppo_value_error` of value_new, value_old, return_
    behavioral_cloning_loss = mean(KL(old || new) * weight),   over all choices, not only the one taken:
      categorical: sum_a p_old(a) * (log p_old(a) - log p_new(a))
      Gaussian:    sum_d log(s_new / s_old) + (s_old^2 + (m_old - m_new)^2) / (2 s_new^2) - 1/2

    Args:
      data.logit_new, logit_old: [..., A] (categorical), or {'mu', 'sigma'} of [..., D] (Gaussian); old: from the
        start of the phase. A choice at -inf in both has no influence.
      data.action: not read, the divergence is over all choices; may be None.
      data.value_new: [...], output of the policy network's own value head; value_old, return_: same shape.
      data.weight, clip_ratio, use_value_clip: as in `ppo_value_error`; dist: as in `ppo_policy_error`.
    Returns: ppg_joint_loss; the cloning loss has a gradient in logit_new alone, the auxiliary loss in value_new alone.
    Raises: ValueError if shapes differ (names both), a tensor is empty or not floating, or clip_ratio <= 0.
    Source: Cobbe et al. 2021, arXiv:2009.04416, sec. 2.2. Departs: the value may be clipped (the paper does not).
    """
    logits: Sequence[Any] = (data.logit_new, data.logit_old)
    if dist is None:
        dist, *logits = from_logits(*logits)
    new, old = logits
    values = ppo_value_data(data.value_new, data.value_old, data.return_, data.weight)
    lead = check_policies(dist, new, old)
    check_values(*values)
    check_shape('value_new', data.value_new, 'logit_new without its last dimension', lead)
    check_clip_ratio(clip_ratio)
    kernel = kernels.ENABLED and kernels.find('ppg_joint_error', new, old, *values, dist=dist, numbers=(clip_ratio,))
    if kernel:
        return ppg_joint_loss(*kernel(dist, new, old, *values, clip_ratio if use_value_clip else None))
    weight = _detach(data.weight)
    cloning_loss = loss_mean(dist.kl(old.detach(), new), weight)
    return ppg_joint_loss(ppo_value_error(values, clip_ratio, use_value_clip), cloning_loss)
