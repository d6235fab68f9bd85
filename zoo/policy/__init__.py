"""Policies, registered by name in POLICY_REGISTRY, and the sections and schedules that a policy declares fields with."""

from zoo.config.schedule import Linear, Schedule, ScheduleOrZero, schedule_value
from zoo.policy.base import CollectConfig, EvalConfig, LearnConfig, Policy, PolicyConfig
from zoo.policy.offpolicy import PPGOffPolicy, PPOOffPolicy
from zoo.policy.ppg import PPGCollectConfig, PPGConfig, PPGLearnConfig, PPGPolicy
from zoo.policy.ppo import PPOCollectConfig, PPOConfig, PPOLearnConfig, PPOPolicy

__all__ = [
    'CollectConfig',
    'EvalConfig',
    'LearnConfig',
    'Linear',
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
    'Schedule',
    'ScheduleOrZero',
    'schedule_value',
]
