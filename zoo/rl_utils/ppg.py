"""Joint loss of the auxiliary phase of phasic policy gradient, for every action distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from zoo.rl_utils import kernels
from zoo.rl_utils.check import check_clip_ratio, check_shape, check_values
from zoo.rl_utils.distribution import ActionDist, Logit, check_policies, from_logits
from zoo.rl_utils.losses import ppo_value_data, ppo_value_error
from zoo.rl_utils.ppo import loss_mean


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
    weight = None if data.weight is None else data.weight.detach()
    cloning_loss = loss_mean(dist.kl(old.detach(), new), weight)
    return ppg_joint_loss(ppo_value_error(values, clip_ratio, use_value_clip), cloning_loss)
