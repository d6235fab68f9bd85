"""Samples from rollouts: weights, scaled rewards, values of all states, advantages, returns, and the columns of a gradient step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from zoo.config.components import make_part
from zoo.core.data import (
    Columns,
    Obs,
    Rollout,
    Sample,
    State,
    Timestep,
    Transition,
    first_leaf,
    leaves,
    map_tensors,
    split_rows,
)
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.core.registry import ESTIMATOR_REGISTRY
from zoo.policy.config import ActorCriticPolicyConfig
from zoo.policy.options.off_policy_correction import estimator_of
from zoo.policy.sequences import cut, once, rows_of, states_before
from zoo.rl_utils.estimators import check_estimate
from zoo.rl_utils.gae import discounted_sum, gae_data, normalize_advantage
from zoo.rl_utils.normalizer import RunningMeanStd

CRITIC_CELLS = 1 << 24  # numbers in the observations of one pass of the critic over a rollout: 64 MB of float32
TRANSITION_ONLY = frozenset(('reward', 'done', 'traj_flag', 'value', 'is_reset', 'state', 'is_first'))
"""Columns of a transition that no sample needs; all others, a policy's own too, become columns of the samples."""
Critic = Callable[..., Tensor]


def ends_of(timestep: Timestep) -> Transition:
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


NO_INPUT = frozenset(
    ('reward', 'done', 'traj_flag', 'next_obs', 'staleness', 'is_repeat', 'intrinsic_adv')
)  # columns that no step reads


class Advantages:
    """Values, advantages and returns in their units: rewards scaled, values normalised, an intrinsic reward added.

    Args: cfg: the resolved section `policy`; normalizers: 'reward' and 'value', where cfg.learn has these options;
      reads_old_value: a loss compares the critic's output with what it was before; ranks: over whose rows moments and weights are taken.
    Attributes: intrinsic: of INTRINSIC_REGISTRY, or None.
    """

    def __init__(
        self,
        cfg: ActorCriticPolicyConfig,
        normalizers: Mapping[str, RunningMeanStd],
        reads_old_value: bool,
        ranks: Ranks = ALONE,
    ) -> None:
        self._cfg, self._normalizers, self._reads_old_value, self._ranks = cfg, normalizers, reads_old_value, ranks
        self._estimator = make_part(ESTIMATOR_REGISTRY, estimator_of(cfg))
        self._reward_sum: Tensor | None = None
        self.intrinsic: Any = None

    def reset(self) -> None:
        """All envs begin new episodes."""
        self._reward_sum = None

    def forget(self, envs: slice) -> None:
        """These of the envs begin new episodes."""
        if self._reward_sum is not None:
            self._reward_sum[envs] = 0
        if hasattr(self.intrinsic, 'forget'):  # one of your own need not have it
            self.intrinsic.forget(envs)

    @torch.no_grad()
    def samples(self, rollout: Rollout, critic: Critic, keeps_transitions: bool) -> Sample:
        """A rollout as rows [N], t-major, or for a model with a recurrent state as sequences [S].

        Args: critic: see `rollout_values`; keeps_transitions: the samples also hold what `recomputed` needs.
        """
        cfg, data = self._cfg, rollout.data
        weight = valid_weight(data['is_reset'], self._ranks) if 'is_reset' in data else None
        reward = self._scaled(data, weight)
        outputs = rollout_values(rollout, critic)
        if cfg.learn.baseline == 'none' or cfg.collect.batch_mode == 'episode':
            weight = whole_episodes(data['traj_flag'], weight, self._ranks)
        if cfg.collect.batch_mode == 'episode':
            refuse_no_episode(weight, self._ranks)
        ends = data['done'], data['traj_flag']
        found = self._estimate(outputs, reward, *ends)
        kept = {name: x for name, x in data.items() if name not in TRANSITION_ONLY}
        samples: dict[str, Any] = {**kept, **found, **self._clip_centre(outputs[0])}
        if self.intrinsic is not None:
            samples['intrinsic_adv'] = self.intrinsic.advantage(rollout)
            samples['adv'] = samples['adv'] + samples['intrinsic_adv']
        if weight is not None:
            samples['weight'] = weight
        if 'state' in data:
            before = states_before(data['state'], rollout.state)
            return cut(samples, before, data['is_first'], cfg.learn.sequence)
        if keeps_transitions:
            samples |= {'reward': reward, 'done': ends[0], 'traj_flag': ends[1], 'next_obs': rollout.next_obs()}
        return map_tensors(lambda x: x.flatten(0, 1), samples)  # [T, B] -> [N]

    @torch.no_grad()
    def recomputed(self, batch: Columns, critic: Critic, log_ratio: Tensor | None = None) -> dict[str, Any]:
        """A batch with values, advantages and returns of the critic as it is now (arXiv:2006.05990, sec. 3.5).

        Args: log_ratio: [N], log p_now - log p_behaviour, for estimators that weigh samples by it.
        """
        n_step = self._cfg.collect.n_step
        outputs = critic(batch['obs']).view(n_step, -1), critic(batch['next_obs']).view(n_step, -1)
        reward, done, traj_flag = (batch[key].view(n_step, -1) for key in ('reward', 'done', 'traj_flag'))
        ratio = None if log_ratio is None else log_ratio.view(n_step, -1)
        found = self._estimate(outputs, reward, done, traj_flag, ratio)
        found |= self._clip_centre(outputs[0])
        if 'intrinsic_adv' in batch:
            found['adv'] = found['adv'] + batch['intrinsic_adv'].view(n_step, -1)
        return {**batch, **{name: x.flatten() for name, x in found.items()}}

    @torch.no_grad()
    def targets(self, batch: Columns) -> dict[str, Tensor]:
        """What a step reads: values in the unit of the critic's output, advantages of the batch normalised.

        'value' is the critic's output before the first step where a loss reads it, see `_clip_centre`.
        """
        cfg = self._cfg.learn
        columns = {name: x for name, x in batch.items() if name not in NO_INPUT}
        if cfg.value_norm:
            for key in ('value', 'return_'):
                columns[key] = self._normalizers['value'].standardize(columns[key])
        if 'value_output' in columns:
            columns['value'] = columns.pop('value_output')
        if cfg.adv_norm == 'batch':
            adv, weight = columns['adv'], columns.get('weight')
            weight = None if weight is None else weight.flatten()
            columns['adv'] = normalize_advantage(adv.flatten(), weight, self._ranks).view_as(adv)
        return columns

    def in_return_units(self, value: Tensor) -> Tensor:
        """Outputs of the critic as returns."""
        return self._normalizers['value'].restore(value) if self._cfg.learn.value_norm else value

    def update_statistics(self, batch: Columns) -> None:
        """Takes the returns of a batch into the statistics of value_norm, where that is on."""
        if self._cfg.learn.value_norm:
            rows = rows_of(batch)
            self._normalizers['value'].update(rows['return_'], once(rows))

    def _scaled(self, data: Transition, weight: Tensor | None) -> Tensor:
        cfg = self._cfg
        if not cfg.learn.reward_norm:
            return data['reward']
        gamma = cfg.learn.reward_norm_discount
        gamma = cfg.collect.discount_factor if gamma is None else gamma
        statistics = self._normalizers['reward']
        reward, self._reward_sum = scaled_reward(data, weight, self._reward_sum, gamma, statistics)
        return reward

    def _estimate(
        self,
        outputs: tuple[Tensor, Tensor],
        reward: Tensor,
        done: Tensor,
        traj_flag: Tensor,
        log_ratio: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """value, adv and return_, [T, B] each, in return units. outputs: of the critic for rows and their successors."""
        collect = self._cfg.collect
        value, next_value = map(self.in_return_units, outputs)
        if self._cfg.learn.baseline == 'none':
            value, next_value = torch.zeros_like(value), torch.zeros_like(value)
        data = gae_data(value, next_value, reward, done, traj_flag)
        numbers = collect.discount_factor, collect.gae_lambda
        found = self._estimator(data, *numbers) if log_ratio is None else self._estimator(data, *numbers, log_ratio)
        check_estimate(found, value)
        return {'value': value, 'adv': found[0], 'return_': found[1]}

    def _clip_centre(self, output: Tensor) -> dict[str, Tensor]:
        """The column 'value_output' of the samples, where a loss needs it: what the critic put out, in its own unit.

        A value clip limits how far gradient steps move the critic's output, so its centre is the output that was there
        before the first of them, also in later draws from a buffer. The column 'value' cannot give it back: it is in
        return units, and the statistics that lead back move with the samples' own returns before the first step.
        (They do so before it, so that the critic's new outputs are read by the statistics that it learned them in.)
        Without a baseline that column is 0.
        """
        learn = self._cfg.learn
        is_apart = learn.value_norm or learn.baseline == 'none'
        return {'value_output': output} if is_apart and self._reads_old_value else {}
