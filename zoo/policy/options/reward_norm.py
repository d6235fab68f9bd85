"""Option 'reward_norm': rewards divided by the running deviation of their discounted sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.core.data import Transition
from zoo.policy.options import Owner, UpdateOption
from zoo.rl_utils.normalizer import RunningMeanStd, discounted_sum

if TYPE_CHECKING:
    from zoo.policy.slots import UpdateSlots


class RewardNorm(UpdateOption):
    """Divides rewards by the running deviation of their discounted sum, and clips them to +-10."""

    key = 'policy.learn.reward_norm'

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        self._statistics = RunningMeanStd(ranks=policy.run.ranks).to(policy.device)
        update.normalizers['reward'] = self._statistics
        discount = policy.cfg.learn.reward_norm_discount
        if discount is None:
            discount = policy.cfg.collect.discount_factor
        self._gamma = discount
        self._carry: Tensor | None = None  # [B], what the last rollout adds to the next one's sums
        update.reward_scale.fill(self, self.scaled)

    def scaled(self, data: Transition, weight: Tensor | None) -> Tensor:
        """Divides rewards [T, B] by the running deviation of each env's discounted sum, which restarts with each episode.

        It updates the statistics first, and the next rollout continues the sums.
        """
        if 'env_index' in data:
            return self._scaled_by_env(data, weight)
        reward = data['reward']
        end = data['traj_flag']
        if 'is_open' in data:
            end = end & ~data['is_open']
        if self._carry is None or self._carry.shape != reward.shape[1:]:
            self._carry = torch.zeros_like(reward[0])
        before = self._carry
        total = discounted_sum(reward, end, before, self._gamma)
        self._statistics.update(total.flatten(), None if weight is None else weight.flatten())
        carry = self._gamma * total[-1] * (1 - end[-1].to(reward.dtype))
        if 'is_open' in data:
            carry = self._carry_of_turns(data, total, carry, before)
        self._carry = carry
        return self._statistics.rescale(reward)

    def _scaled_by_env(self, data: Transition, weight: Tensor | None) -> Tensor:
        """As `scaled`, of a rollout whose columns have the steps of several envs (env.ready_num)."""
        env, reward, end = (data[name].t().flatten() for name in ('env_index', 'reward', 'traj_flag'))
        end = end & ~data['is_open'].t().flatten()
        counts = torch.bincount(env)
        place = (
            torch.arange(len(env), device=env.device) - (counts.cumsum(0) - counts)[env]
        )  # of each step among its env's
        by_env = torch.zeros((int(counts.max()), len(counts)), dtype=reward.dtype, device=reward.device)
        ends = torch.zeros_like(by_env, dtype=torch.bool)
        by_env[place, env] = reward
        ends[place, env] = end
        if self._carry is None or len(self._carry) < len(counts):
            before = torch.zeros_like(by_env[0])
            if self._carry is not None:
                before[: len(self._carry)] = self._carry
            self._carry = before
        before = self._carry[: len(counts)]
        total = discounted_sum(by_env, ends, before, self._gamma)
        weights = None if weight is None else weight.t().flatten()
        self._statistics.update(total[place, env], weights)
        last = (counts - 1).clamp(min=0), torch.arange(len(counts), device=env.device)
        carry = self._gamma * total[last] * (1 - ends[last].to(reward.dtype))
        self._carry[: len(counts)] = torch.where(counts > 0, carry, before)
        return self._statistics.rescale(data['reward'])

    def _carry_of_turns(self, data: Transition, total: Tensor, carry: Tensor, before: Tensor) -> Tensor:
        """What rows add to the next sums whose last places have no transition.

        Args: carry: of rows without such places; before: what the rollout before added.
        """
        is_open = data['is_open']
        of_open = self._gamma * (total * is_open).sum(0)
        carry = torch.where(is_open.any(0), of_open, carry)
        has_done_nothing = data['is_reset'].all(0) & ~data['traj_flag'].any(0)
        return torch.where(has_done_nothing, before, carry)

    def forget(self, envs: slice) -> None:
        if self._carry is not None:
            self._carry[envs] = 0

    def forget_all(self) -> None:
        self._carry = None
