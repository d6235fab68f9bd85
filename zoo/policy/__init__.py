"""Policies, registered by name in POLICY_REGISTRY, and the config sections and schedules for the fields of a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.config.schedule import Linear, Schedule, ScheduleOrZero, schedule_value
    from zoo.policy.acting import NetworkPolicy
    from zoo.policy.base import Policy
    from zoo.policy.config import CollectConfig, EvalConfig, LearnConfig, PolicyConfig
    from zoo.policy.options.base import UpdateOption
    from zoo.policy.ppg import PPGCollectConfig, PPGConfig, PPGLearnConfig, PPGPolicy
    from zoo.policy.ppo import PPOCollectConfig, PPOConfig, PPOLearnConfig, PPOPolicy
    from zoo.policy.variants.a2c import A2CCollectConfig, A2CConfig, A2CLearnConfig, A2CPolicy
    from zoo.policy.variants.dqn import DQNCollectConfig, DQNConfig, DQNLearnConfig, DQNPolicy
    from zoo.policy.variants.offpolicy import PPGOffPolicy, PPOOffPolicy
    from zoo.policy.variants.pg import PGCollectConfig, PGConfig, PGLearnConfig, PGPolicy
    from zoo.policy.variants.trpo import TRPOConfig, TRPOLearnConfig, TRPOPolicy

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
    'TRPOConfig',
    'TRPOLearnConfig',
    'TRPOPolicy',
    'UpdateOption',
    'schedule_value',
]

_HOME = {
    'zoo.config.schedule': 'Linear Schedule ScheduleOrZero schedule_value',
    'zoo.policy.acting': 'NetworkPolicy',
    'zoo.policy.base': 'Policy',
    'zoo.policy.config': 'CollectConfig EvalConfig LearnConfig PolicyConfig',
    'zoo.policy.options.base': 'UpdateOption',
    'zoo.policy.ppg': 'PPGCollectConfig PPGConfig PPGLearnConfig PPGPolicy',
    'zoo.policy.ppo': 'PPOCollectConfig PPOConfig PPOLearnConfig PPOPolicy',
    'zoo.policy.variants.a2c': 'A2CCollectConfig A2CConfig A2CLearnConfig A2CPolicy',
    'zoo.policy.variants.dqn': 'DQNCollectConfig DQNConfig DQNLearnConfig DQNPolicy',
    'zoo.policy.variants.offpolicy': 'PPGOffPolicy PPOOffPolicy',
    'zoo.policy.variants.pg': 'PGCollectConfig PGConfig PGLearnConfig PGPolicy',
    'zoo.policy.variants.trpo': 'TRPOConfig TRPOLearnConfig TRPOPolicy',
}
__getattr__, __dir__ = lazy_names(__name__, {name: module for module, names in _HOME.items() for name in names.split()})
