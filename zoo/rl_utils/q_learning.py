"""Losses of Q-learning."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from zoo.rl_utils.check import check_shape


@torch.no_grad()
def q_target(reward: Tensor, discount: Tensor, value: Tensor, choice: Tensor) -> Tensor:
    """reward + discount * value[argmax choice], [N].

    Args: reward, discount: [N]; value: [N, A], the target network's Q-values of what follows; choice: [N, A], those that
      pick the action: the network's own (double Q-learning), or value again. Both are -inf where an action is not allowed.
    Raises: ValueError if two shapes do not belong together.
    Source: van Hasselt et al. 2016, arXiv:1509.06461, eq. 4.
    """
    check_shape('discount', discount, 'reward', reward.shape)
    check_shape('choice', choice, 'value', value.shape)
    check_shape('value without its last dimension', value[..., 0], 'reward', reward.shape)
    rest = value.gather(-1, choice.argmax(-1, keepdim=True)).squeeze(-1)
    return reward + torch.where(discount > 0, discount * rest, 0.0)  # a terminal state may allow no action


def q_error(
    q: Tensor, action: Tensor, target: Tensor, weight: Tensor | None, huber_delta: float | None
) -> tuple[Tensor, Tensor]:
    """The mean of weight * huber(Q[action] - target), and Q[action] of each row, which where the weight is 0 is the target.

    Args: q: [N, A]; action: [N] int64; target: [N]; weight: [N], None: 1; huber_delta: error beyond which its loss is linear,
      None: nowhere. Rows without weight may hold anything, such as an action that is not allowed.
    Returns: a 0-dim tensor with a gradient in q alone; [N].
    Raises: ValueError if two shapes do not belong together.
    Source: Mnih et al. 2015, doi:10.1038/nature14236; Huber loss with the factor .5 of the squared error.
    """
    check_shape('action', action, 'target', target.shape)
    check_shape('q without its last dimension', q[..., 0], 'target', target.shape)
    check_shape('weight', weight, 'target', target.shape)
    taken = q.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    taken = taken if weight is None else torch.where(weight > 0, taken, target)
    error = huber_loss(taken, target.detach(), reduction='none', delta=huber_delta or torch.inf)
    return (error if weight is None else error * weight).mean(), taken
