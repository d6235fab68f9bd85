"""Policies, registered by name in POLICY_REGISTRY."""

from zoo.policy.base import CollectConfig, EvalConfig, LearnConfig, Policy, PolicyConfig
from zoo.policy.offpolicy import PPGOffPolicy, PPOOffPolicy
from zoo.policy.ppg import PPGCollectConfig, PPGConfig, PPGLearnConfig, PPGPolicy
from zoo.policy.ppo import PPOCollectConfig, PPOConfig, PPOLearnConfig, PPOPolicy

__all__ = [
    'CollectConfig',
    'EvalConfig',
    'LearnConfig',
    'PPGCollectConfig',
    'PPGConfig',
    'PPGLearnConfig',
    'PPGOffPolicy',
    'PPGPolicy',
    'PPOCollectConfig',
    'PPOConfig',
    'PPOLearnConfig',
    'PPOOffPolicy',
    'PPOPolicy',
    'Policy',
    'PolicyConfig',
]
