"""Terms of the policy loss: surrogates, which a gradient step maximises, and penalties, which hold the policy or value.

A surrogate takes (log_ratio, ratio, adv, clip_ratio), all [N] but the last, and returns the gain [N]:
  log_ratio: log p_new(action) - log p_old(action); the gradient flows back through it and `ratio`.
  ratio: exp(log_ratio), bounded at e^88, where it has no gradient. adv: without gradient.
  clip_ratio: > 0, a number or a 0-dim tensor; infinity: no clipping.
The caller takes the weighted mean, and adds entropy, dual clip and metrics. Below r is the ratio, A the advantage and c the
clip_ratio; 'slope' is d gain / d log p_new. At r = 1 the slope of all but 'awr' is A.

A penalty takes (dist, output, minibatch) and returns [N], with a gradient in `output` alone; the caller multiplies the weighted
mean by the penalty's weight, which may follow a schedule or a target.
  output: the present outputs of the model as rows, 'logit' [N, P] and, where the step trains a critic too, 'value' [N].
  minibatch: the stored columns as rows, of which 'logit' is that of the behaviour policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from zoo.core.data import wide
from zoo.core.errors import UserError
from zoo.core.registry import PENALTY_REGISTRY, SURROGATE_REGISTRY
from zoo.rl_utils.check import EACH_SAMPLE, Number, check_returned
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.ppo import MAX_LOG_RATIO, clip as clip, zeroed

LOG_MAX_IMPORTANCE = math.log(100.0)
"""Log of the bound of p_new / p_behaviour with a proximal policy (Hilton et al. 2022, arXiv:2110.00641, released code)."""


@SURROGATE_REGISTRY.register('asymmetric_clip')
def asymmetric_clip(
    log_ratio: Tensor,
    ratio: Tensor,
    adv: Tensor,
    clip_ratio: Number,
    *,
    high: Annotated[
        float, Field(gt=0, description='the ratio is clipped at 1 + high; 0.28 with a clip_ratio of 0.2 is usual')
    ] = 0.28,
) -> Tensor:
    """As 'clip' with a separate upper bound, so that unlikely actions can gain probability faster.

    gain = min(r A, clamp(r, 1 - c, 1 + high) A);   slope as 'clip'
    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476.
    """
    gain = ratio * adv
    bound = ratio.detach().clamp(min=1 - clip_ratio).clamp(max=1 + high) * adv
    return torch.where(gain > bound, bound, gain)


@SURROGATE_REGISTRY.register('spo')
def spo(log_ratio: Tensor, ratio: Tensor, adv: Tensor, clip_ratio: Number) -> Tensor:
    """Simple policy optimisation: a quadratic penalty; the best ratio is an edge of the clip range.

    gain = r A - |A| (r - 1)^2 / (2 c);   slope = r A - r |A| (r - 1) / c, which is 0 at r = 1 + c sign(A)
    Outside the clip range the slope leads back into it, so every sample keeps a gradient.
    Source: Xie et al. 2025, arXiv:2401.16025.
    """
    change = ratio - 1
    return adv + change * (adv - adv.abs() / (2 * clip_ratio) * change)  # no inf - inf for huge ratios, nor 0 * inf


@SURROGATE_REGISTRY.register('dpo')
def dpo(
    log_ratio: Tensor,
    ratio: Tensor,
    adv: Tensor,
    clip_ratio: Number,
    *,
    alpha: Annotated[float, Field(gt=0, description='where adv >= 0: smaller slows sooner as the ratio grows')] = 2.0,
    beta: Annotated[float, Field(gt=0, description='where adv < 0: smaller slows sooner as the ratio falls')] = 0.6,
) -> Tensor:
    """Discovered policy optimisation: a smooth drift, found by meta-learning, in place of the clip; ignores clip_ratio.

    A >= 0, u = (r - 1) A:  gain = r A - max(u - alpha tanh(u / alpha), 0);   slope = r A (1 - [u > 0] tanh^2(u / alpha))
    A <  0, v = A log r:    gain = r A - max(v - beta tanh(v / beta), 0);     slope = r A - [v > 0] A tanh^2(v / beta)
    Source: Lu et al. 2022, arXiv:2210.05639.
    """
    plain = ratio * adv
    u = (ratio - 1) * adv
    v = log_ratio * adv
    rising = torch.where(u > 0, adv + alpha * (u / alpha).tanh(), plain)  # r A - u is A: no inf - inf for huge ratios
    falling = torch.where(v > 0, plain - v + beta * (v / beta).tanh(), plain)
    return torch.where(adv >= 0, rising, falling)


@SURROGATE_REGISTRY.register('rollback')
def rollback(
    log_ratio: Tensor,
    ratio: Tensor,
    adv: Tensor,
    clip_ratio: Number,
    *,
    slope: Annotated[
        float, Field(ge=0, description='strength of the pull back from outside; 0: as clip; 0.3 is usual')
    ] = 0.3,
) -> Tensor:
    """PPO-RB: as 'clip', but where 'clip' has no gradient, a reversed gradient leads back.

    gain = min(r A, (q - slope (r - q)) A), q = clamp(r, 1 - c, 1 + c);   slope = -slope r A where 'clip' has 0, else r A
    Source: Wang et al. 2019, arXiv:1903.07940, PPO-RB.
    """
    clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)  # type: ignore[arg-type]  # 0-dim tensors too
    return torch.min(ratio * adv, (clipped - slope * (ratio - clipped)) * adv)


@SURROGATE_REGISTRY.register('none')
def none(log_ratio: Tensor, ratio: Tensor, adv: Tensor, clip_ratio: Number) -> Tensor:
    """The ratio times the advantage without any clipping; needs a KL penalty or few steps; ignores clip_ratio.

    gain = r A;   slope = r A
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 6; with penalty 'kl' eq. 8.
    """
    return ratio * adv


@SURROGATE_REGISTRY.register('a2c')
def a2c(log_ratio: Tensor, ratio: Tensor, adv: Tensor, clip_ratio: Number) -> Tensor:
    """The policy gradient of actor-critic methods, for one pass over each batch; ignores clip_ratio.

    gain = A log r;   slope = A
    The constant A log p_old is subtracted from the usual A log p_new: the gradient is the same, the gain 0 at r = 1.
    Source: Mnih et al. 2016, arXiv:1602.01783.
    """
    return log_ratio * adv


@SURROGATE_REGISTRY.register('cispo')
def cispo(log_ratio: Tensor, ratio: Tensor, adv: Tensor, clip_ratio: Number) -> Tensor:
    """The policy gradient with an importance weight that is limited to 1 + clip_ratio: no sample loses its gradient.

    slope = min(r, 1 + c) A;   gain = r A up to r = 1 + c, beyond (1 + c) (1 + log(r / (1 + c))) A
    Source: MiniMax 2025 (CISPO), arXiv:2506.13585. Departs: there the gain is sg(min(r, 1 + c)) A log p_new with a
      stopped gradient sg; this one has the same slope and is its integral, so that the loss can be compared with others.
    """
    outside = ratio > 1 + clip_ratio
    log_bound: Number
    if isinstance(clip_ratio, Tensor):
        log_bound = clip_ratio.log1p()
    else:
        log_bound = math.log1p(clip_ratio)
    bounded = torch.where(outside, 1 + clip_ratio, ratio)
    return bounded * (1 + torch.where(outside, log_ratio - log_bound, 0.0)) * adv


@SURROGATE_REGISTRY.register('awr')
def awr(
    log_ratio: Tensor,
    ratio: Tensor,
    adv: Tensor,
    clip_ratio: Number,
    *,
    temperature: Annotated[
        float, Field(gt=0, description='of the weights exp(adv / temperature), in units of adv')
    ] = 1.0,
    max_weight: Annotated[float, Field(gt=0, description='largest weight of a sample')] = 20.0,
) -> Tensor:
    """Advantage-weighted regression: likelihood of the actions taken, good ones weighted more; ignores clip_ratio.

    gain = w log r, w = min(exp(A / temperature), max_weight);   slope = w: at r = 1 it is not A, and never negative
    Source: Peng et al. 2019, arXiv:1910.00177. Departs: w log p_old is subtracted, which has no gradient.
    """
    return (adv / temperature).clamp(max=math.log(max_weight)).exp() * log_ratio


@PENALTY_REGISTRY.register('kl')
def kl(dist: ActionDist, output: Mapping[str, Tensor], minibatch: Mapping[str, Any]) -> Tensor:
    """KL divergence from the stored policy to the present one, KL(old || new), nats per sample.

    Its gradient keeps probability where the stored policy has some.
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 8.
    """
    return dist.kl(minibatch['logit'].detach(), output['logit'])


@PENALTY_REGISTRY.register('reverse_kl')
def reverse_kl(dist: ActionDist, output: Mapping[str, Tensor], minibatch: Mapping[str, Any]) -> Tensor:
    """KL divergence from the present policy to the stored one, KL(new || old), nats per sample.

    Its gradient avoids probability where the stored policy has little; the penalty is infinite where the stored policy has none.
    """
    return dist.kl(output['logit'], minibatch['logit'].detach())


@PENALTY_REGISTRY.register('magnet')
def magnet(
    dist: ActionDist,
    output: Mapping[str, Tensor],
    minibatch: Mapping[str, Any],
    *,
    decay: Annotated[
        float, Field(gt=0, lt=1, description='of the average, per gradient step; 1 - 1 / n follows the last n steps')
    ] = 0.999,
) -> Tensor:
    """KL divergence from the average of past policies to the present one, KL(new || average), nats per sample.

    The average is over the parameters of past gradient steps, those of s steps ago with the weight decay ** s. In self-play the
    policy circles less, and the point to which it is pulled is not uniform play, as with an entropy bonus, but moves with it.
    Source: arXiv:2606.23995, of the magnet; Sokota et al. 2023, arXiv:2206.05825, of one that stays.
    """
    return dist.kl(output['logit'], minibatch['logit_magnet'].detach())


@PENALTY_REGISTRY.register('value_drift')
def value_drift(dist: ActionDist, output: Mapping[str, Tensor], minibatch: Mapping[str, Any]) -> Tensor:
    """Half the squared change of the value since the samples were collected, in squared units of the critic's output.

    0.5 (V - V_old)^2, for policies whose actor and critic share a network.
    Source: Moon et al. 2022 (DCPG), arXiv:2210.09960.
    Raises: UserError if the step computes no value.
    """
    if 'value' not in output:
        raise UserError(
            "the penalty 'value_drift' needs the critic's value in the step on the policy, but this policy trains its "
            'critic in steps of its own; leave the penalty out, or use one network for both'
        )
    return 0.5 * (wide(output['value']) - wide(minibatch['value'].detach())).square()


def gain_of(
    surrogate: Callable[..., Tensor],
    dual_clip: Number | None,
    importance: Tensor | None,
    log_ratio: Tensor,
    ratio: Tensor,
    adv: Tensor,
    clip_ratio: Number,
) -> Tensor:
    """The gain of a surrogate, perhaps a user's own: checked, multiplied by the importance, and bounded from below.

    gain = surrogate(log_ratio, ratio, adv, clip_ratio) * importance;   gain = max(gain, dual_clip * adv) where adv < 0
    """
    gain = surrogate(log_ratio, ratio, adv, clip_ratio)
    check_returned('the surrogate', gain, adv.shape, EACH_SAMPLE, log_ratio)
    if importance is not None:
        gain = gain * importance
    if dual_clip is None:
        return gain
    return torch.where(adv < 0, torch.max(gain, dual_clip * adv), gain)


@torch.no_grad()
def importance_of(
    log_new: Tensor, log_old: Tensor, log_proximal: Tensor, weight: Tensor | None, rho_max: Number | None
) -> Tensor:
    """p_proximal / p_old, at most rho_max; p_old is raised where p_new / p_old would exceed 100."""
    log_importance = zeroed(log_proximal - torch.max(log_old, log_new - LOG_MAX_IMPORTANCE), weight)
    importance = log_importance.clamp(max=MAX_LOG_RATIO).exp()
    if rho_max is None:
        return importance
    return importance.clamp(max=rho_max)
