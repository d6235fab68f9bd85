"""How a rollout becomes samples: weights, scaled rewards, values of all states, as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoo.core.data import Obs, Rollout, State, Transition, first_leaf, leaves, map_tensors, split_rows
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.rl_utils.gae import discounted_sum
from zoo.rl_utils.normalizer import RunningMeanStd

CRITIC_CELLS = 1 << 24  # numbers in the observations of one pass of the critic over a rollout: 64 MB of float32
TRANSITION_ONLY = frozenset(('reward', 'done', 'traj_flag', 'value', 'is_reset', 'state', 'is_first'))
"""Columns of a transition that no sample needs; all others, a policy's own too, become columns of the samples."""

Critic = Callable[..., Tensor]


def ends_of(timestep: Any) -> Transition:
    """What every policy remembers of the steps themselves, [T, B] each: reward, done, traj_flag, and is_reset where it is.

    `done` where the reached state is terminal, `traj_flag` where the trace stops, also by a time limit.
    """
    found: Transition = {
        'reward': timestep.reward,
        'done': timestep.terminated,
        'traj_flag': timestep.terminated | timestep.truncated,
    }
    return found if timestep.is_reset is None else {**found, 'is_reset': timestep.is_reset}


def valid_weight(is_reset: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Weights [T, B] of mean 1 over all ranks: rows that only reset an env have 0, the others are equal."""
    valid = (~is_reset).to(torch.float32)
    return valid * weight_scale(valid, ranks)


def weight_scale(valid: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """What weights [...] are to be multiplied by so that their mean over the rows of all ranks is 1, 0-dim."""
    if ranks.size == 1:
        return valid.numel() / valid.sum().clamp(min=1)
    total = ranks.sum_(
        torch.stack((valid.new_tensor(valid.numel(), dtype=torch.float64), valid.sum(dtype=torch.float64)))
    )
    return (total[0] / total[1].clamp(min=1)).to(valid.dtype)


def whole_episodes(traj_flag: Tensor, weight: Tensor | None, ranks: Ranks = ALONE) -> Tensor:
    """Weights [T, B] that leave out steps whose episode goes on after the rollout; the others have mean 1 over all ranks.

    Without a critic nothing is known of what comes after. An episode that a time limit ends has the return it has.
    Args: traj_flag: [T, B], the episode ends with the step; weight: [T, B] of the rows so far; None: 1.
    """
    known = (traj_flag.flip(0).to(torch.int32).cumsum(0).flip(0) > 0).to(torch.float32)
    kept = known if weight is None else known * weight
    return kept * weight_scale(kept, ranks)


def refuse_no_episode(weight: Tensor | None, ranks: Ranks = ALONE) -> None:
    """Raises: UserError if no row of the rollout has a weight, on any rank: no episode ended in it."""
    if weight is not None and not any(ranks.gather(bool(weight.any()))):
        raise UserError(
            f"policy.collect.batch_mode is 'episode' but no episode ended within a rollout of {weight.shape[0]} steps in each "
            f'of {weight.shape[1]} envs, so there is nothing to learn from; raise policy.collect.n_step above the length of '
            'the episodes, limit that by env.max_episode_steps, or use fragment'
        )


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

    Args: critic: (obs [N, *O], state [N, ...] or None) -> values [N]; a column 'value' of the rollout is taken to be of
      the same unit. Where there is a recurrent state, acting has found the values of all rows.
    """
    data, last, successor, after = rollout.data, rollout.last_obs, rollout.successor, rollout.data.get('state')
    (n_step, n_env), acted, index = data['done'].shape, 'value' in data, rollout.final_index
    if successor is not None:
        rows = successor if acted else map_tensors(lambda *x: torch.cat(x), data['obs'], successor)
        value = critic(_flat(rows), None if after is None else _flat(after)).view(-1, n_env)
        return (data['value'], value) if acted else (value[:n_step], value[n_step:])
    beyond = [last, rollout.final_obs] if acted else [_flat(data['obs']), last, rollout.final_obs]
    obs = map_tensors(lambda *x: torch.cat(x), *beyond)
    state = None
    if after is not None:  # that of each row before its successor
        state = map_tensors(lambda x: torch.cat((x[-1], x[index[:, 0], index[:, 1]])), after)
    value = critic(obs, state)
    if acted:
        value = torch.cat((data['value'].flatten(), value))
    n = (n_step + 1) * n_env
    block = value[:n].view(n_step + 1, n_env)
    next_value = block[1:].clone()
    next_value[index[:, 0], index[:, 1]] = value[n:]
    return block[:-1], next_value


def _flat(tree: Obs) -> Obs:
    return map_tensors(lambda x: x.flatten(0, 1), tree)  # [T, B] -> [N]


def in_pieces(critic: Critic, obs: Obs, state: State = None) -> Tensor:
    """The critic over many observations [N, *O]; images in pieces, since the features of all of them may not fit."""
    trees = [obs] if state is None else [obs, state]
    n = len(first_leaf(obs))
    n_cell = sum(x[0].numel() for _, x in leaves(obs)) if n else 1
    n_row = max(CRITIC_CELLS // max(n_cell, 1), 1)
    if n <= n_row:
        return critic(*trees)
    parts = zip(*(split_rows(tree, n_row) for tree in trees), strict=True)
    return torch.cat([critic(*part) for part in parts])
