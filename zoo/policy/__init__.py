"""Policies, registered by name in POLICY_REGISTRY, and the config sections and schedules for the fields of a policy."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.config.schedule import (
        Linear as Linear,
        Schedule as Schedule,
        ScheduleOrZero as ScheduleOrZero,
        schedule_value as schedule_value,
    )
    from zoo.policy.base import Policy as Policy
    from zoo.policy.config import (
        CollectConfig as CollectConfig,
        EvalConfig as EvalConfig,
        LearnConfig as LearnConfig,
        PolicyConfig as PolicyConfig,
    )
    from zoo.policy.network_policy import NetworkPolicy as NetworkPolicy
    from zoo.policy.options.base import UpdateOption as UpdateOption
    from zoo.policy.ppg import (
        PPGCollectConfig as PPGCollectConfig,
        PPGConfig as PPGConfig,
        PPGLearnConfig as PPGLearnConfig,
        PPGPolicy as PPGPolicy,
    )
    from zoo.policy.ppo import (
        PPOCollectConfig as PPOCollectConfig,
        PPOConfig as PPOConfig,
        PPOLearnConfig as PPOLearnConfig,
        PPOPolicy as PPOPolicy,
    )
    from zoo.policy.variants.a2c import (
        A2CCollectConfig as A2CCollectConfig,
        A2CConfig as A2CConfig,
        A2CLearnConfig as A2CLearnConfig,
        A2CPolicy as A2CPolicy,
    )
    from zoo.policy.variants.dqn import (
        DQNCollectConfig as DQNCollectConfig,
        DQNConfig as DQNConfig,
        DQNLearnConfig as DQNLearnConfig,
        DQNPolicy as DQNPolicy,
    )
    from zoo.policy.variants.offpolicy import PPGOffPolicy as PPGOffPolicy, PPOOffPolicy as PPOOffPolicy
    from zoo.policy.variants.pg import (
        PGCollectConfig as PGCollectConfig,
        PGConfig as PGConfig,
        PGLearnConfig as PGLearnConfig,
        PGPolicy as PGPolicy,
    )
    from zoo.policy.variants.trpo import (
        TRPOConfig as TRPOConfig,
        TRPOLearnConfig as TRPOLearnConfig,
        TRPOPolicy as TRPOPolicy,
    )

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'zoo.config.schedule': 'Linear Schedule ScheduleOrZero schedule_value',
        'zoo.policy.base': 'Policy',
        'zoo.policy.config': 'CollectConfig EvalConfig LearnConfig PolicyConfig',
        'zoo.policy.network_policy': 'NetworkPolicy',
        'zoo.policy.options.base': 'UpdateOption',
        'zoo.policy.ppg': 'PPGCollectConfig PPGConfig PPGLearnConfig PPGPolicy',
        'zoo.policy.ppo': 'PPOCollectConfig PPOConfig PPOLearnConfig PPOPolicy',
        'zoo.policy.variants.a2c': 'A2CCollectConfig A2CConfig A2CLearnConfig A2CPolicy',
        'zoo.policy.variants.dqn': 'DQNCollectConfig DQNConfig DQNLearnConfig DQNPolicy',
        'zoo.policy.variants.offpolicy': 'PPGOffPolicy PPOOffPolicy',
        'zoo.policy.variants.pg': 'PGCollectConfig PGConfig PGLearnConfig PGPolicy',
        'zoo.policy.variants.trpo': 'TRPOConfig TRPOLearnConfig TRPOPolicy',
    },
)
