"""Policies 'a2c' (Mnih et al. 2016, arXiv:1602.01783), PPO with one step for each short rollout, and 'impala', the same
on samples that may come from older policies (Espeholt et al. 2018, arXiv:1802.01561)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from zoo.config.components import component_of
from zoo.config.schedule import RateSchedule, ScheduleOrZero
from zoo.config.section import Filled
from zoo.core.registry import POLICY_REGISTRY, SURROGATE_REGISTRY
from zoo.policy.config import Count, PolicyConfig
from zoo.policy.ppo import PPOCollectConfig, PPOConfig, PPOLearnConfig, PPOPolicy


class A2CLearnConfig(PPOLearnConfig):
    """Section `policy.learn` of 'a2c'; the paper uses optimizer 'rmsprop'."""

    batch_size: Count | None = Field(
        None, description='samples per gradient step; null: all of a rollout, or of a draw'
    )
    epoch_per_collect: int = Field(
        1, ge=1, description='passes over each rollout; nothing bounds how far a second one strays'
    )
    surrogate: component_of(SURROGATE_REGISTRY, 'policy.learn.surrogate') = Field(  # type: ignore[valid-type]
        'a2c',
        description='what is maximised of probability ratio and advantage, by name or as {type: name, its options}',
    )
    learning_rate: RateSchedule = Field(7e-4, description="the optimiser's step size (1e-4 to 3e-3 is usual)")
    entropy_weight: ScheduleOrZero = Field(0.01, description='factor of the entropy bonus; more explores more')
    adv_norm: Literal['off', 'batch', 'minibatch'] = Field(
        'off', description='normalise advantages over the rollout or each minibatch'
    )


class A2CCollectConfig(PPOCollectConfig):
    """Section `policy.collect` of 'a2c'."""

    n_step: Filled[Count] = Field(5, description='env steps per rollout and env (5 to 32 is usual)')
    gae_lambda: float = Field(
        1.0,
        ge=0,
        le=1,
        description='lambda of the advantage estimator: 0 trusts the critic, 1 the rewards of the rollout',
    )


class A2CConfig(PPOConfig):
    """Section `policy` of 'a2c'."""

    type: str = Field('a2c', description='registered name of the policy')
    learn: A2CLearnConfig = A2CLearnConfig()
    collect: A2CCollectConfig = A2CCollectConfig()


@POLICY_REGISTRY.register('a2c')
class A2CPolicy(PPOPolicy):
    """Advantage actor-critic: one step for each rollout.

    It minimises -mean(adv * log p(action)) + value_weight * value loss - entropy_weight * entropy.
    """

    config: ClassVar[type[PolicyConfig]] = A2CConfig


A2CPolicy.with_updates(
    'impala',
    {
        'learn': {
            'correction': 'vtrace',
            'learning_rate': 6e-4,
            'optimizer': {'type': 'rmsprop', 'alpha': 0.99, 'eps': 5e-4},
        },
        'collect': {'n_step': 20},
    },
    __doc__='IMPALA: one step of the policy gradient for each rollout, which V-trace corrects for its age.',
)
