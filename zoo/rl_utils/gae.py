"""Advantages: generalised advantage estimation, the linear recursion that it uses, and their normalisation."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from zoo.core.data import wide
from zoo.core.ranks import ALONE, Ranks, normalized_over
from zoo.core.registry import ESTIMATOR_REGISTRY
from zoo.rl_utils import kernels
from zoo.rl_utils.check import check_gae


class gae_data(NamedTuple):
    """Inputs of `gae`; see there."""

    value: Tensor
    next_value: Tensor
    reward: Tensor
    done: Tensor | None = None
    traj_flag: Tensor | None = None


@torch.no_grad()
def gae(data: gae_data, gamma: float = 0.99, lambda_: float = 0.95) -> Tensor:
    """Generalised advantage of every step of a rollout.

    delta_t = reward_t + gamma * next_value_t * (1 - done_t) - value_t
    adv_t   = delta_t + gamma * lambda_ * (1 - traj_flag_t) * adv_{t+1},   adv_T = 0

    Args:
      data.value, data.next_value: [T], [T, B] or [T, B, A], in return units; next_value: of the state before any reset.
      data.reward: [T] or [T, B], per env step, after scaling; with [T, B, A] values the agents share it.
      data.done: as reward, bool or 0/1, the reached state is terminal; None: nowhere.
      data.traj_flag: as reward, bool or 0/1, the trace stops here (terminal, time limit); None: where done.
      gamma, lambda_: per env step, in [0, 1].
    Returns: the shape and dtype of value, a new tensor without gradient; inputs are unchanged.
    Raises: ValueError if two shapes differ (names both), a tensor is empty or value, next_value or reward not floating,
      or gamma, lambda_ leave [0, 1].
    Source: Schulman et al. 2016, arXiv:1506.02438, sec. 3. Departs: the trace is cut at rollout ends.
    """
    check_gae(*data, gamma, lambda_)
    kernel = kernels.ENABLED and kernels.find('gae', *data)
    if kernel:
        return kernel(*data, gamma, lambda_, False)[0]
    return advantage_of(data, gamma, lambda_)


@ESTIMATOR_REGISTRY.register('gae')
@torch.no_grad()
def gae_estimate(
    data: gae_data,
    gamma: float,
    lambda_: float,
    *,
    value_lambda: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None,
        Field(description='lambda of the returns that the critic learns (DNA: 0.95, gae_lambda 0.8); null: gae_lambda'),
    ] = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantages; the critic's returns may have a lambda of their own. Nothing is checked.

    adv = gae(lambda_),   return_ = gae(value_lambda) + V
    Source: Schulman et al. 2016, arXiv:1506.02438; two lambdas: Aitchison and Sweetser 2022 (DNA), arXiv:2206.10027.
    """
    adv, return_ = _estimate(data, gamma, lambda_)
    if value_lambda is not None:
        return_ = _estimate(data, gamma, value_lambda)[1]
    return adv, return_


def _estimate(data: gae_data, gamma: float, lambda_: float) -> tuple[Tensor, Tensor]:
    kernel = kernels.ENABLED and kernels.find('gae', *data)
    if kernel:
        adv, return_, *_ = kernel(*data, gamma, lambda_, True)
        return adv, return_
    adv = advantage_of(data, gamma, lambda_)
    return adv, adv + data.value


def advantage_of(data: gae_data, gamma: float, lambda_: float) -> Tensor:
    """The formula of `gae`; nothing is checked."""
    value, next_value, reward, done, traj_flag = data
    dtype = value.dtype
    value = wide(value)
    if traj_flag is None:
        traj_flag = done
    if value.dim() == reward.dim() + 1:  # [T, B] -> [T, B, 1]: the agents share reward and ends
        reward = reward.unsqueeze(-1)
        if done is not None:
            done = done.unsqueeze(-1)
        if traj_flag is not None:
            traj_flag = traj_flag.unsqueeze(-1)
    if done is None:
        bootstrap = next_value
    else:
        bootstrap = next_value * (1 - done.to(value.dtype))
    delta = (reward.to(value.dtype) - value).add_(bootstrap, alpha=gamma)
    if traj_flag is None:
        keep = torch.ones_like(delta)
    else:
        keep = 1 - traj_flag.to(value.dtype)
    decay = keep.mul_(gamma * lambda_).expand_as(delta)
    if traj_flag is not None and traj_flag.is_floating_point():
        delta[-1].add_(decay[-1], alpha=0)  # a NaN flag reaches the last row: adv_T is 0, but 0 * nan is nan
    return linear_scan(delta, decay).to(dtype)


def linear_scan(x: Tensor, decay: Tensor) -> Tensor:
    """Solves y_t = x_t + decay_t * y_{t+1}, y_T = 0, along dimension 0 in log2(T) passes.

    After the pass of stride s, y_t holds the terms t .. t + 2s - 1 and decay_t the factor of the terms after these.
    Args: x, decay: [T, ...], equal shapes. Returns: [T, ...], a new tensor; inputs are unchanged.
    """
    n_row = x.shape[0]
    stride = 1
    while stride < n_row:
        head = torch.addcmul(x[:-stride], decay[:-stride], x[stride:])
        x = torch.cat((head, x[-stride:]))
        stride *= 2
        if stride < n_row:
            half = stride // 2
            # rows beyond the end would carry zeros, so their decay is never read again
            decay = torch.cat((decay[:-half] * decay[half:], decay[-half:]))
    if n_row == 1:
        return x.clone()
    return x


def normalize_advantage(adv: Tensor, weight: Tensor | None = None, ranks: Ranks = ALONE) -> Tensor:
    """(adv - mean) / std over the last dimension; one row, or equal rows, are only centred.

    Args: adv [..., N]; weight [..., N], rows of weight 0 enter no statistic; ranks: the processes whose rows the moments
      are taken over, with one exchange for all leading dimensions. Returns: [..., N], a new tensor.
    """
    if ranks is not ALONE:
        return normalized_over(adv, weight, ranks)
    # subtracting a row first makes equal rows exactly 0; the mean of n equal numbers need not equal them
    if weight is None:
        adv = adv - adv[..., :1]
        std, mean = torch.std_mean(adv, dim=-1, correction=0, keepdim=True)
        return (adv - mean) / (std + 1e-8)
    valid = weight.gt(0).to(adv.dtype)
    adv = torch.where(weight > 0, adv, 0.0)  # nothing in a row without weight, not even a NaN, reaches the others
    n = valid.sum(-1, keepdim=True).clamp(min=1)
    adv = adv - adv.gather(-1, valid.argmax(-1, keepdim=True))
    centred = adv - (adv * valid).sum(-1, keepdim=True) / n
    std = ((centred.square() * valid).sum(-1, keepdim=True) / n).sqrt()
    return centred / (std + 1e-8)
