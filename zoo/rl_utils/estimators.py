"""Estimators of advantages and returns, from (data, gamma, lambda_) as `gae` takes them; targets and loss of Q-learning.

The registered ones return (adv, return_), new tensors in the shape and dtype of data.value, without gradient. All treat ends
the same way: where `done`, the value of the next state counts as 0; where `traj_flag`, and at the end of the rollout, later
rows are not used, and the value of the next state replaces them. Inputs and errors are those of `gae`.
Below r is the reward, V the value, V' the value of the next state, 0 where done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import huber_loss

from zoo.core.data import wide
from zoo.core.registry import ESTIMATOR_REGISTRY
from zoo.rl_utils import kernels
from zoo.rl_utils.check import check_gae, check_not_empty, check_pair, check_returned, check_shape
from zoo.rl_utils.gae import gae as gae_advantage, gae_data, gae_estimate, linear_scan

Estimate = tuple[Tensor, Tensor]


class gae_result(NamedTuple):
    """Result of `gae_return`: adv and return_ in the shape of value, mean and std of adv as 0-dim tensors."""

    adv: Tensor
    return_: Tensor
    mean: Tensor
    std: Tensor


@torch.no_grad()
def gae_return(data: gae_data, gamma: float = 0.99, lambda_: float = 0.95) -> gae_result:
    """`gae` together with the returns, and the moments that normalise the advantages.

    return_ = adv + value,   mean = mean(adv),   std = sqrt(mean((adv - mean)^2))   over all elements

    The moments come from centred sums, on a GPU from float64 sums: std loses no digits if the mean is at most 1e5 std.
    Args and Raises: as `gae`.
    Returns: gae_result, new tensors without gradient in the dtype of value; inputs are unchanged.
    """
    check_gae(*data, gamma, lambda_)
    kernel = kernels.ENABLED and kernels.find('gae', *data)
    if kernel:
        return gae_result(*kernel(*data, gamma, lambda_, True))
    adv, return_ = gae_estimate(data, gamma, lambda_)
    std, mean = torch.std_mean(adv, correction=0)
    return gae_result(adv, return_, mean, std)


@ESTIMATOR_REGISTRY.register('n_step')
@torch.no_grad()
def n_step(
    data: gae_data,
    gamma: float,
    lambda_: float,
    *,
    n: Annotated[int, Field(ge=1, description='steps whose rewards count; the value estimates what follows them')] = 5,
) -> Estimate:
    """Returns of n steps, fewer where an end comes first; ignores gae_lambda.

    return_t = r_t + gamma r_{t+1} + .. + gamma^{m-1} r_{t+m-1} + gamma^m V'_{t+m-1},   adv = return_ - V
    m = n, or the number of rows up to the first end if that is less.
    Source: Mnih et al. 2016, arXiv:1602.01783, sec. 4.
    """
    last, reward, cut = _one_step(data, gamma)
    if n >= len(last):
        return returns(data, gamma, lambda_)
    return_ = last
    for _ in range(n - 1):
        longer = torch.where(cut[:-1], last[:-1], reward[:-1] + gamma * return_[1:])
        return_ = torch.cat((longer, last[-1:]))
    return return_ - data.value, return_


@ESTIMATOR_REGISTRY.register('returns')
@torch.no_grad()
def returns(data: gae_data, gamma: float, lambda_: float) -> Estimate:
    """Discounted returns up to the end of each episode; ignores gae_lambda.

    return_t = r_t + gamma return_{t+1}, but r_t + gamma V'_t where a trace ends,   adv = return_ - V
    A caller without a critic passes values of 0; adv and return_ are then both the discounted sum of rewards.
    Source: Williams 1992, doi:10.1007/BF00992696 (REINFORCE with a baseline).
    """
    last, reward, cut = _one_step(data, gamma)
    decay = torch.full_like(last, gamma).masked_fill_(cut, 0.0)
    return_ = linear_scan(torch.where(cut, last, reward), decay)
    return return_ - data.value, return_


@ESTIMATOR_REGISTRY.register('vtrace')
@torch.no_grad()
def vtrace(
    data: gae_data,
    gamma: float,
    lambda_: float,
    log_ratio: Tensor | None = None,
    *,
    rho_max: Annotated[
        float, Field(ge=1, description='bound of the ratio that weights each temporal difference')
    ] = 1.0,
    c_max: Annotated[float, Field(ge=1, description='bound of the ratio that carries the trace back')] = 1.0,
    weigh_adv: Annotated[
        bool, Field(description='advantages too are weighed by the ratio; false: the loss does that, after adv_norm')
    ] = True,
) -> Estimate:
    """V-trace, for samples of another policy: bounded ratios weight temporal differences, advantages and the trace.

    trace_t = min(rho_t, rho_max) delta_t + gamma lambda_ min(rho_t, c_max) (1 - traj_flag_t) trace_{t+1},   trace_T = 0
    adv_t   = min(rho_t, rho_max) (delta_t + gamma lambda_ (1 - traj_flag_t) trace_{t+1}),   return_ = trace + V
    delta_t = r_t + gamma V'_t - V_t,   rho = exp(log_ratio)

    With lambda_ 1, adv is min(rho_t, rho_max) (r_t + gamma return_{t+1} - V_t) as published. If rho_max and c_max are equal,
    adv is the trace. Without weigh_adv the first factor of adv is 1.

    Args: log_ratio: log p_now(action) - log p_behaviour(action), in the shape of reward; None: 0, the samples are of the
      policy itself, and the result is that of 'gae'.
    Source: Espeholt et al. 2018, arXiv:1802.01561, eq. 1, sec. 4.2 and remark 2; lambda_ in adv as in DeepMind's rlax.
    """
    if log_ratio is None:
        check_gae(*data, gamma, lambda_)
        return gae_estimate(data, gamma, lambda_)
    check_shape('log_ratio', log_ratio, 'reward', data.reward.shape)
    delta = wide(gae_advantage(data, gamma, 0.0))
    # finite; since e^x > x, a clamped ratio is still above both bounds
    ratio = _like(wide(log_ratio), delta).clamp(max=max(rho_max, c_max)).exp()
    rho = ratio.clamp(max=rho_max)
    c = ratio.clamp(max=c_max)
    decay = torch.full_like(delta, gamma * lambda_).masked_fill_(_cut(data, delta), 0.0)
    trace = linear_scan(rho * delta, c * decay)
    adv = delta + decay * torch.cat((trace[1:], trace[-1:]))  # the decay of the last row is 0
    if weigh_adv:
        adv = rho * adv
    return adv.to(data.value.dtype), trace.to(data.value.dtype) + data.value


def checked(estimator: Callable[..., Estimate], data: gae_data, *args: Any) -> Estimate:
    """The checked result of an estimator, perhaps a user's own. Raises: UserError unless it is a pair of tensors [T, B]."""
    pair = check_pair('the estimator', estimator(data, *args), ' tensors, advantages and returns')
    for name, x in zip(('advantages', 'returns'), pair, strict=True):
        check_returned(f'the estimator, as {name},', x, data.value.shape, 'one number for each step of each env')
    return pair


def _one_step(data: gae_data, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """r + gamma V' of every row [T, ...]; and, for broadcasting to it, rewards and `_cut`. Checks data."""
    last = gae_advantage(data._replace(value=torch.zeros_like(data.value)), gamma, 0.0)
    return last, _like(data.reward, last).to(last.dtype), _cut(data, last)


def _like(x: Tensor, value: Tensor) -> Tensor:
    """[T, B] -> [T, B, 1] for rewards or flags that the agents of value [T, B, A] share."""
    if x.dim() < value.dim():
        return x.unsqueeze(-1)
    return x


def _cut(data: gae_data, value: Tensor) -> Tensor:
    """[T, ...] bool, for broadcasting to value: whether the trace ends with the row; true for the last row."""
    flag = data.traj_flag
    if flag is None:
        flag = data.done
    if flag is None:
        cut = torch.zeros_like(data.reward, dtype=torch.bool)
    else:
        cut = flag.bool().clone()
    cut[-1] = True
    return _like(cut, value)


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
    if weight is not None:
        taken = torch.where(weight > 0, taken, target)
    delta = torch.inf
    if huber_delta is not None:
        delta = huber_delta
    error = huber_loss(taken, target, reduction='none', delta=delta)
    if weight is not None:
        error = torch.where(weight > 0, error * weight, 0.0)
    return error.mean(), taken


def quantile_error(
    theta: Tensor, target: Tensor, weight: Tensor | None = None, huber_delta: float | None = None
) -> Tensor:
    """The quantile Huber loss of QR-DQN, averaged over the rows.

    u_ij = target_j - theta_i,   tau_i = (2 i + 1) / (2 K),   i from 0
    loss = mean(weight * sum over i of mean over j of |tau_i - [u_ij < 0]| huber(u_ij) / delta);  without delta |u_ij| alone

    Args: theta: [N, K], quantiles of the return of the actions taken; target: [N, J], of reward + discount * the return after
      it; weight: [N], at least 0, None: 1, a row of weight 0 may have any target; huber_delta: > 0, or None.
    Returns: a 0-dim tensor with a gradient in theta alone.
    Raises: ValueError if two shapes do not match, there are no rows, or huber_delta <= 0.
    Source: Dabney et al. 2018, arXiv:1710.10044, eq. 9 and 10 and algorithm 1.
    """
    if theta.dim() != 2 or target.dim() != 2 or len(theta) != len(target):
        raise ValueError(
            f'theta has shape {tuple(theta.shape)} and target {tuple(target.shape)}; give both as [N, quantiles], with one N'
        )
    check_shape('weight', weight, 'theta', theta.shape[:1])
    check_not_empty('theta', theta)
    if huber_delta is not None and not huber_delta > 0:
        raise ValueError(f'huber_delta is {huber_delta} but must be above 0; give None for the absolute error')
    theta = wide(theta)
    difference = wide(target.detach()).unsqueeze(1) - theta.unsqueeze(2)  # [N, K, J]
    if weight is not None:
        difference = torch.where((weight > 0).view(-1, 1, 1), difference, 0.0)
    size = difference.abs()
    if huber_delta is not None:
        size = torch.where(size <= huber_delta, 0.5 * size * size / huber_delta, size - 0.5 * huber_delta)
    n = theta.shape[1]
    tau = (torch.arange(n, dtype=theta.dtype, device=theta.device) + 0.5) / n
    error = ((tau.view(-1, 1) - (difference.detach() < 0).to(theta.dtype)).abs() * size).mean(2).sum(1)
    if weight is not None:
        error = error * weight
    return error.mean()
