"""Losses of Q-learning."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from zoo.core.data import wide
from zoo.rl_utils.check import check_not_empty, check_shape


@torch.no_grad()
def q_target(reward: Tensor, discount: Tensor, value: Tensor, choice: Tensor) -> Tensor:
    """Targets of Q-learning, reward + discount * value[argmax choice], [N].

    Args: reward, discount: [N]; value: [N, A], the target network's Q-values of the state that follows; choice: [N, A], Q-values
      that select the action: the trained network's (double Q-learning), or value. Both are -inf for forbidden actions.
    Raises: ValueError if two shapes do not match.
    Source: van Hasselt et al. 2016, arXiv:1509.06461, eq. 4.
    """
    check_shape('discount', discount, 'reward', reward.shape)
    check_shape('choice', choice, 'value', value.shape)
    if value.shape[:-1] != reward.shape or not value.dim():
        raise ValueError(
            f'value has shape {tuple(value.shape)} but reward {tuple(reward.shape)}; give value as '
            f'{(*reward.shape, "A")}'
        )
    rest = value.gather(-1, choice.argmax(-1, keepdim=True)).squeeze(-1)
    return reward + torch.where(discount > 0, discount * rest, 0.0)  # a terminal state may allow no action


def q_error(
    q: Tensor, action: Tensor, target: Tensor, weight: Tensor | None = None, huber_delta: float | None = None
) -> tuple[Tensor, Tensor]:
    """The loss mean(weight * huber(Q[action] - target)); and Q[action] of each row, or the target where the weight is 0.

    Args: q: [N, A]; action: [N] int64, in [0, A); target: [N]; weight: [N], at least 0, None: 1, a row of weight 0 may have
      any target; huber_delta: > 0, the error beyond which the loss is linear, None: never.
    Returns: a 0-dim tensor with a gradient in q alone; [N].
    Raises: ValueError if two shapes do not match, there are no rows, or huber_delta <= 0.
    Source: Mnih et al. 2015, doi:10.1038/nature14236; Huber loss with the factor .5 of the squared error.
    """
    if q.shape[:-1] != action.shape or not q.dim():
        raise ValueError(
            f'q has shape {tuple(q.shape)} but action {tuple(action.shape)}; give q as {(*action.shape, "A")}'
        )
    check_shape('target', target, 'action', action.shape)
    check_shape('weight', weight, 'action', action.shape)
    check_not_empty('q', q)
    if huber_delta is not None and not huber_delta > 0:
        raise ValueError(f'huber_delta is {huber_delta} but must be above 0; give None for the squared error')
    target = wide(target.detach())
    taken = wide(q).gather(-1, action.unsqueeze(-1)).squeeze(-1)
    taken = taken if weight is None else torch.where(weight > 0, taken, target)
    error = huber_loss(taken, target, reduction='none', delta=torch.inf if huber_delta is None else huber_delta)
    return (error if weight is None else torch.where(weight > 0, error * weight, 0.0)).mean(), taken
