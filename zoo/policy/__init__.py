"""Policies, registered by name in POLICY_REGISTRY, and the sections and schedules that a policy declares fields with."""

from zoo.config.schedule import Linear, Schedule, ScheduleOrZero, schedule_value
from zoo.policy import impala as impala
from zoo.policy import variants as variants
from zoo.policy.a2c import A2CCollectConfig, A2CConfig, A2CLearnConfig, A2CPolicy
from zoo.policy.base import CollectConfig, EvalConfig, LearnConfig, Policy, PolicyConfig
from zoo.policy.dqn import DQNCollectConfig, DQNConfig, DQNLearnConfig, DQNPolicy
from zoo.policy.network_policy import NetworkPolicy
from zoo.policy.offpolicy import PPGOffPolicy, PPOOffPolicy
from zoo.policy.pg import PGCollectConfig, PGConfig, PGLearnConfig, PGPolicy
from zoo.policy.ppg import PPGCollectConfig, PPGConfig, PPGLearnConfig, PPGPolicy
from zoo.policy.ppo import PPOCollectConfig, PPOConfig, PPOLearnConfig, PPOPolicy

__all__ = [
    'A2CCollectConfig',
    'A2CConfig',
    'A2CLearnConfig',
    'A2CPolicy',
    'DQNCollectConfig',
    'DQNConfig',
    'DQNLearnConfig',
    'DQNPolicy',
    'PGCollectConfig',
    'PGConfig',
    'PGLearnConfig',
    'PGPolicy',
    'CollectConfig',
    'EvalConfig',
    'LearnConfig',
    'Linear',
    'NetworkPolicy',
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
