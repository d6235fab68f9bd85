"""Policies, registered by name in POLICY_REGISTRY."""
from zoo.policy.base import CollectConfig, EvalConfig, LearnConfig, Policy, PolicyConfig
from zoo.policy.ppo import PPOCollectConfig, PPOConfig, PPOLearnConfig, PPOPolicy

__all__ = ['CollectConfig', 'EvalConfig', 'LearnConfig', 'PPOCollectConfig', 'PPOConfig', 'PPOLearnConfig', 'PPOPolicy',
           'Policy', 'PolicyConfig']
