"""Generalised advantage estimation, and the linear recursion it rests on."""
from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
    Raises: ValueError if two shapes differ (names both) or gamma, lambda_ leave [0, 1].
    Source: Schulman et al. 2016, arXiv:1506.02438, sec. 3. Departs: the trace is cut at rollout ends.
    """
    value, next_value, reward, done, traj_flag = data
    _check(data, gamma, lambda_)
    if traj_flag is None:
        traj_flag = done
    if value.dim() == reward.dim() + 1:  # [T, B] -> [T, B, 1]: the agents share reward and ends
        reward = reward.unsqueeze(-1)
        done = None if done is None else done.unsqueeze(-1)
        traj_flag = None if traj_flag is None else traj_flag.unsqueeze(-1)
    bootstrap = next_value if done is None else next_value * (1 - done.to(value.dtype))
    delta = (reward.to(value.dtype) - value).add_(bootstrap, alpha=gamma)
    if traj_flag is None:
        decay = torch.full_like(delta, gamma * lambda_)
    else:
        decay = (1 - traj_flag.to(value.dtype)).mul_(gamma * lambda_).expand_as(delta)
    return linear_scan(delta, decay)


def linear_scan(x: Tensor, decay: Tensor) -> Tensor:
    """Solves y_t = x_t + decay_t * y_{t+1}, y_T = 0, along dimension 0 in log2(T) passes.

    After the pass of stride s, y_t holds the terms t .. t + 2s - 1 and decay_t the product that carries the next ones.
    Args: x, decay: [T, ...], equal shapes. Returns: [T, ...], a new tensor; inputs are unchanged.
    """
    n_row, stride = x.shape[0], 1
    while stride < n_row:
        head = torch.addcmul(x[:-stride], decay[:-stride], x[stride:])
        x = torch.cat((head, x[-stride:]))
        stride *= 2
        if stride < n_row:
            half = stride // 2
            # rows beyond the end would carry zeros, so their decay is never read again
            decay = torch.cat((decay[:-half] * decay[half:], decay[-half:]))
    return x.clone() if n_row == 1 else x


def discounted_sum(reward: Tensor, end: Tensor, carry: Tensor, gamma: float) -> Tensor:
    """Running discounted sum of each env's rewards: R_t = gamma * R_{t-1} * (1 - end_{t-1}) + reward_t.

    Args: reward [T, B]; end [T, B] bool, the episode ends at t; carry [B], gamma * R_{-1} * (1 - end_{-1}).
    Returns: R [T, B], a new tensor.
    """
    x = torch.cat(((reward[:1] + carry), reward[1:]))
    keep = torch.cat((torch.zeros_like(carry).unsqueeze(0), 1 - end[:-1].to(reward.dtype)))
    return linear_scan(x.flip(0), (keep * gamma).flip(0)).flip(0)


def _check(data: gae_data, gamma: float, lambda_: float) -> None:
    value, next_value, reward, done, traj_flag = data
    if next_value.shape != value.shape:
        raise ValueError(
            f'next_value has shape {tuple(next_value.shape)} but value {tuple(value.shape)}; they must be equal')
    if reward.shape != value.shape and not (value.dim() == 3 and reward.shape == value.shape[:2]):
        raise ValueError(
            f'reward has shape {tuple(reward.shape)} but value {tuple(value.shape)}; '
            'give [T, B] for [T, B] or [T, B, A]')
    for name, flag in (('done', done), ('traj_flag', traj_flag)):
        if flag is not None and flag.shape != reward.shape:
            raise ValueError(
                f'{name} has shape {tuple(flag.shape)} but reward {tuple(reward.shape)}; they must be equal')
    if not 0 <= gamma <= 1 or not 0 <= lambda_ <= 1:
        raise ValueError(f'gamma is {gamma} and lambda_ is {lambda_}; both must lie in [0, 1]')
