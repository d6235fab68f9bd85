"""The auxiliary phase's joint loss of phasic policy gradient, over categorical and Gaussian heads alike."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.rl_utils import kernels
from zoo.rl_utils.check import check_clip_ratio, check_policies, check_shape, check_values
from zoo.rl_utils.distribution import Distribution, Logit, distribution_of, logit_parts
from zoo.rl_utils.ppo import ppo_value_data, ppo_value_error


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


def ppg_joint_error(data: ppg_data, clip_ratio: float = 0.2, use_value_clip: bool = True) -> ppg_joint_loss:
    """What the policy network learns in the auxiliary phase: returns, while its policy stays where it was.

    auxiliary_loss          = `ppo_value_error` of value_new, value_old, return_
    behavioral_cloning_loss = mean(KL(old || new) * weight),   over all choices, not only the one taken:
      categorical: sum_a p_old(a) * (log p_old(a) - log p_new(a))
      Gaussian:    sum_d log(s_new / s_old) + (s_old^2 + (m_old - m_new)^2) / (2 s_new^2) - 1/2

    Args:
      data.logit_new, logit_old: [..., A] (categorical), or {'mu', 'sigma'} of [..., D] (Gaussian); old: as the phase
        began. A choice at -inf in both counts for nothing.
      data.action: not read, the divergence is over all choices; may be None.
      data.value_new: [...], the policy network's own value head; value_old, return_: alike.
      data.weight, clip_ratio, use_value_clip: as in `ppo_value_error`.
    Returns: ppg_joint_loss; the cloning loss has a gradient in logit_new alone, the auxiliary loss in value_new alone.
    Raises: ValueError if shapes differ (names both), a tensor is empty or not floating, or clip_ratio <= 0.
    Source: Cobbe et al. 2021, arXiv:2009.04416, sec. 2.2. Departs: the value may be clipped (the paper does not).
    """
    logit_new, logit_old, _, value_new, value_old, return_, weight = data
    shape = check_policies(logit_new, logit_old)
    check_values(value_new, value_old, return_, weight)
    check_shape('value_new', value_new, 'logit_new without its last dimension', shape[:-1])
    check_clip_ratio(clip_ratio)
    dist, parts_new = distribution_of(logit_new), logit_parts(logit_new)
    node = kernels.find('ppg_joint_error', *parts_new, *logit_parts(logit_old), value_new, value_old, return_, weight)
    if node is not None:
        clip = clip_ratio if use_value_clip else None
        return ppg_joint_loss(*node(dist, logit_old, value_new, value_old, return_, weight, clip, *parts_new))
    auxiliary_loss = ppo_value_error(ppo_value_data(value_new, value_old, return_, weight), clip_ratio, use_value_clip)
    return ppg_joint_loss(auxiliary_loss, _CloningError.apply(dist, logit_old, weight, *parts_new))


class _CloningError(torch.autograd.Function):
    """mean(KL(old || new) * weight) as one node of the graph, its gradient found on the way forward."""

    @staticmethod
    def forward(ctx: Any, dist: Distribution, logit_old: Logit, weight: Tensor | None, *parts_new: Tensor) -> Tensor:
        kl, grads = dist.kl_terms(logit_old, parts_new)
        scale = 1 / kl.numel()
        if weight is None:
            ctx.save_for_backward(*(grad * scale for grad in grads))
            return kl.mean()
        row = (weight * scale).unsqueeze(-1)
        ctx.save_for_backward(*(grad * row for grad in grads))
        return (kl * weight).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *(grad * grad_loss for grad in ctx.saved_tensors)
