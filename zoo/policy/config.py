"""The settings that PPO and PPG have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from zoo.backend.choose import WORTH_STEPS, CompileMode, ExecutorName
from zoo.config.schedule import Schedule, ScheduleOrZero
from zoo.policy.base import CollectConfig, LearnConfig
from zoo.policy.sequences import SequenceConfig


class ActorCriticLearnConfig(LearnConfig):
    """What the sections `policy.learn` of PPO and PPG have in common."""

    learning_rate: Schedule = Field(2.5e-4, description="Adam's step size")
    critic_learning_rate: Schedule | None = Field(
        None,
        description="Adam's step size of the parameters that are the critic's alone; null: learning_rate. In ppo the "
        "gradients of actor and critic are then limited by grad_clip apart; ppg's auxiliary phase moves the critic by "
        'aux_learning_rate',
    )
    adam_eps: float = Field(1e-5, gt=0, description="Adam's epsilon")
    entropy_weight: ScheduleOrZero = Field(0.0, description='factor of the entropy bonus; more explores more')
    clip_ratio: Schedule = Field(
        0.2, description='how far the probability ratio may move from 1 before its gradient stops'
    )
    value_clip: bool = Field(
        False, description='clip the value around its old prediction by clip_ratio, in units of the critic'
    )
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        None, description='bound on the loss where adv < 0 (3 to 5 is usual); null: off'
    )
    adv_norm: Literal['off', 'batch', 'minibatch'] = Field(
        'minibatch', description='normalise advantages over the rollout or each minibatch'
    )
    value_norm: bool = Field(
        False, description='the critic predicts returns normalised by their running mean and deviation'
    )
    reward_norm: bool = Field(
        False, description='divide rewards by the running deviation of their discounted sum, clip to +-10'
    )
    reward_norm_discount: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description='discount of the sum that reward_norm divides by; null: policy.collect.discount_factor'
    )
    target_kl: Annotated[float, Field(gt=0)] | None = Field(
        None, description='stop the epochs once KL(old || new) exceeds 1.5 times this; null: off'
    )
    grad_clip: Annotated[float, Field(gt=0)] | None = Field(
        0.5, description='limit of the global gradient norm; null: off'
    )
    ignore_done: bool = Field(
        False, description='bootstrap through terminal states too (tasks that end only for convenience)'
    )
    nonfinite_limit: int = Field(
        10, ge=1, description='gradient steps in a row that may be skipped as not finite before the run stops'
    )
    sequence: SequenceConfig = Field(
        SequenceConfig(), description='sequences for training, where the model has a recurrent state'
    )
    executor: ExecutorName = Field(
        'auto',
        description="what runs updates and acting: 'native' (C, for the MLP networks of zoo on a CPU), 'graph' "
        "(compiled), 'eager' (PyTorch as written), or 'auto', the fastest that serves",
    )
    compile: CompileMode = Field(
        'auto',
        description="whether what 'native' does not serve is compiled: 'on', 'off', or 'auto', where there is a compiler, "
        f'in runs of {WORTH_STEPS:,} gradient steps or more',
    )


class OnPolicyCollectConfig(CollectConfig):
    """Section `policy.collect` of the actor-critic policies."""

    discount_factor: float = Field(0.99, ge=0, le=1, description='gamma, per env step')
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description='lambda of the advantage estimator: 0 trusts the critic, 1 the returns'
    )
