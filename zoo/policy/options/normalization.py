"""Options 'value_norm' and 'reward_norm': running statistics of returns and rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from zoo.core.data import Columns, Rollout, Transition
from zoo.policy.options.base import Estimated, Owner, UpdateOption, kept_output
from zoo.rl_utils.normalizer import RunningMeanStd, discounted_sum


class RewardNorm(UpdateOption):
    """Divides rewards by the running deviation of their discounted sum, and clips them to +-10."""

    def attach(self, policy: Owner) -> None:
        learn, collect = policy.cfg.learn, policy.cfg.collect
        self._statistics = policy.normalizers['reward'] = _statistics(policy)
        gamma = learn.reward_norm_discount
        self._gamma = collect.discount_factor if gamma is None else gamma
        self._carry: Tensor | None = None  # [B], what the last rollout adds to the next one's sums
        policy.samples.scaled_reward = self.scaled

    def scaled(self, data: Transition, weight: Tensor | None) -> Tensor:
        """Divides rewards [T, B] by the running deviation of each env's discounted sum, which restarts with each episode.

        It updates the statistics first, and the next rollout continues the sums.
        """
        reward, end = data['reward'], data['traj_flag']
        if self._carry is None or self._carry.shape != reward.shape[1:]:
            self._carry = torch.zeros_like(reward[0])
        total = discounted_sum(reward, end, self._carry, self._gamma)
        self._statistics.update(total.flatten(), None if weight is None else weight.flatten())
        self._carry = self._gamma * total[-1] * (1 - end[-1].to(reward.dtype))
        return self._statistics.rescale(reward)

    def forget(self, envs: slice) -> None:
        if self._carry is not None:
            self._carry[envs] = 0

    def forget_all(self) -> None:
        self._carry = None


class ValueNorm(UpdateOption):
    """Makes the critic predict returns normalised by their running mean and deviation.

    The returns of a batch update the statistics before its first step, so that the critic's new outputs are converted
    with the same statistics with which it was trained.
    """

    phase: ClassVar[Literal['policy', 'value', 'all']] = 'value'

    def attach(self, policy: Owner) -> None:
        self._samples = policy.samples
        self._statistics = policy.samples.units = policy.normalizers['value'] = _statistics(policy)
        self._keeps_output = policy.objective.reads_old_value
        policy.samples.inputs.append(self.in_units_of_critic)

    def in_units_of_critic(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Converts 'value' and 'return_' to the unit of the critic's output, in which steps read them."""
        return columns | {key: self._statistics.standardize(columns[key]) for key in ('value', 'return_')}

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> Mapping[str, Any]:
        return kept_output(estimated) if self._keeps_output else {}

    def before_update(self, batch: Columns) -> Columns:
        rows, weight = self._samples.rows_once(batch)
        self._statistics.update(rows['return_'], weight)
        return batch


def _statistics(policy: Owner) -> RunningMeanStd:
    found = RunningMeanStd().to(policy.device)
    found.ranks = policy.run.ranks
    return found
