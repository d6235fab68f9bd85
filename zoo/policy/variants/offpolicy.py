"""Policies 'ppo_offpolicy' and 'ppg_offpolicy': the learners of PPO and PPG on draws from a replay buffer.

Section `buffer` sets what is drawn, and how often (update_per_collect, n_sample, max_use, max_staleness). Values,
advantages and behaviour logits are those stored at collection, so the ratio is to the policy that acted.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field, field_validator

from zoo.core.data import Columns, Metrics
from zoo.core.registry import POLICY_REGISTRY
from zoo.policy.ppg import PPGConfig, PPGPolicy, are_parts
from zoo.policy.ppo import PPOConfig, PPOLearnConfig, PPOPolicy


class PPOOffPolicyLearnConfig(PPOLearnConfig):
    """Section `policy.learn` of 'ppo_offpolicy'; epochs and batch_size apply to each draw."""

    epoch_per_collect: int = Field(1, ge=1, description='passes over each draw')

    @field_validator('recompute_adv')
    @classmethod
    def _not_of_draws(cls, recompute_adv: bool) -> bool:
        if recompute_adv:
            raise ValueError('advantages can be recomputed over whole rollouts only, not over draws; use false.')
        return recompute_adv


class PPOOffPolicyConfig(PPOConfig):
    """Section `policy` of 'ppo_offpolicy'."""

    type: str = Field('ppo_offpolicy', description='registered name of the policy')
    learn: PPOOffPolicyLearnConfig = PPOOffPolicyLearnConfig()


class PPGOffPolicyConfig(PPGConfig):
    """Section `policy` of 'ppg_offpolicy'."""

    type: str = Field('ppg_offpolicy', description='registered name of the policy')


@POLICY_REGISTRY.register('ppo_offpolicy')
class PPOOffPolicy(PPOPolicy):
    """PPO on draws from buffer 'replay'."""

    config = PPOOffPolicyConfig

    @classmethod
    def default_buffer(cls) -> str:
        return 'replay'

    def _forward_learn(self, batch: Columns) -> Metrics:
        return {**super()._forward_learn(batch), 'staleness': _staleness(batch)}

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), 'staleness']


@POLICY_REGISTRY.register('ppg_offpolicy')
class PPGOffPolicy(PPGPolicy):
    """PPG whose policy phase and value phase have separate draws from buffer 'multi'."""

    config = PPGOffPolicyConfig

    @classmethod
    def default_buffer(cls) -> str:
        return 'multi'

    def _forward_learn(self, batch: Columns) -> Metrics:
        if are_parts(batch):
            parts = batch
        else:
            parts = {'policy': batch, 'value': batch}
        return {
            **super()._forward_learn(batch),
            **{f'{part}_staleness': _staleness(drawn) for part, drawn in parts.items()},
        }

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), 'policy_staleness', 'value_staleness']


def _staleness(batch: Any) -> torch.Tensor:
    """Mean age of the samples, in rollouts; 0 for a buffer that keeps no samples."""
    if 'staleness' in batch.keys():
        return batch['staleness'].mean()
    return torch.zeros(())


PPOOffPolicy.with_updates(
    'ppo_ewma_offpolicy',
    {'learn': {'proximal': 'ewma'}},
    __doc__='ppo_ewma on draws from a replay buffer: samples may be old.',
)
