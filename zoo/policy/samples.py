"""How a rollout becomes samples: weights, scaled rewards, values of all states, as functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from zoo.core.data import Columns, Rollout, Transition
from zoo.rl_utils.gae import discounted_sum
from zoo.rl_utils.normalizer import RunningMeanStd

CRITIC_CELLS = 1 << 24  # numbers in the observations of one pass of the critic over a rollout: 64 MB of float32
TRANSITION_ONLY = frozenset(('reward', 'done', 'traj_flag', 'value', 'is_reset'))
"""Columns of a transition that no sample needs; all others, a policy's own too, become columns of the samples."""

Critic = Callable[[Tensor], Tensor]


def valid_weight(is_reset: Tensor) -> Tensor:
    """Weights [T, B] of mean 1: rows that only reset an env have 0, the others are equal."""
    valid = (~is_reset).to(torch.float32)
    return valid * (valid.numel() / valid.sum().clamp(min=1))


def scaled_reward(
    data: Transition, weight: Tensor | None, carry: Tensor | None, gamma: float, statistics: RunningMeanStd
) -> tuple[Tensor, Tensor]:
    """Rewards over the running deviation of each env's discounted sum, which restarts with each episode.

    Args: carry: the sums [B] that the rollout before ended with; None: at the start of all episodes.
    Returns: rewards [T, B]; the next carry. The statistics are updated.
    """
    reward, end = data['reward'], data['traj_flag']
    if carry is None or carry.shape != reward.shape[1:]:
        carry = torch.zeros_like(reward[0])
    total = discounted_sum(reward, end, carry, gamma)
    statistics.update(total.flatten(), None if weight is None else weight.flatten())
    return statistics.rescale(reward), gamma * total[-1] * (1 - end[-1].to(reward.dtype))


def rollout_values(rollout: Rollout, critic: Critic) -> tuple[Tensor, Tensor]:
    """Values of all rows and of their true successors, [T, B] each; the critic sees only what acting did not.

    Args: critic: obs [N, *O] -> values [N]; a column 'value' of the rollout is taken to be of the same unit.
    """
    data, last, successor = rollout.data, rollout.last_obs, rollout.successor
    (n_step, n_env), acted = data['done'].shape, 'value' in data
    if successor is not None:
        value = critic((successor if acted else torch.cat((data['obs'], successor))).flatten(0, 1)).view(-1, n_env)
        return (data['value'], value) if acted else (value[:n_step], value[n_step:])
    beyond = last, rollout.final_obs
    value = critic(torch.cat(beyond if acted else (data['obs'].flatten(0, 1), *beyond)))
    if acted:
        value = torch.cat((data['value'].flatten(), value))
    n = (n_step + 1) * n_env
    block = value[:n].view(n_step + 1, n_env)
    next_value = block[1:].clone()
    next_value[rollout.final_index[:, 0], rollout.final_index[:, 1]] = value[n:]
    return block[:-1], next_value


def as_rows(batch: Columns, name: str) -> Tensor | None:
    """A column of samples, which may be sequences [S, L], as rows [N, ...]; None where there is none."""
    x = batch.get(name)
    return None if x is None else x.flatten(0, batch['return_'].dim() - 1)


def in_pieces(critic: Critic, obs: Tensor) -> Tensor:
    """The critic over many observations [N, *O]; images in pieces, since the features of all of them may not fit."""
    n_row = max(CRITIC_CELLS // max(obs[0].numel(), 1), 1)
    values = [critic(piece) for piece in obs.split(n_row)]
    return values[0] if len(values) == 1 else torch.cat(values)
