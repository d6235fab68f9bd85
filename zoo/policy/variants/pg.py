"""Policy 'pg': REINFORCE (Williams 1992, doi:10.1007/BF00992696) with the rewards to go of whole episodes, and no critic."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator
from torch import Tensor

from zoo.backend.executor import Step
from zoo.config.components import component_of, name_of
from zoo.config.schedule import RateSchedule
from zoo.config.section import Filled
from zoo.core.data import Columns, Metrics, Obs, State, first_leaf
from zoo.core.registry import ESTIMATOR_REGISTRY, POLICY_REGISTRY, SURROGATE_REGISTRY
from zoo.model.check import actor_parameters
from zoo.policy.actor_critic import ActorCriticPolicy
from zoo.policy.config import (
    ActorCriticLearnConfig,
    ActorCriticPolicyConfig,
    Count,
    OnPolicyCollectConfig,
    PolicyConfig,
)
from zoo.policy.ppo import policy_step
from zoo.rl_utils.optimizer import FlatOptimizer

OF_CRITIC = ('critic_learning_rate', 'value_loss', 'value_norm')
"""Fields of `policy.learn` that only a critic reads."""


class PGLearnConfig(ActorCriticLearnConfig):
    """Section `policy.learn` of 'pg'."""

    batch_size: Count | None = Field(
        None, description='samples per gradient step; null: all of a rollout, or of a draw'
    )
    surrogate: component_of(SURROGATE_REGISTRY, 'policy.learn.surrogate') = Field(  # type: ignore[valid-type]
        'a2c',
        description='what is maximised of probability ratio and advantage, by name or as {type: name, its options}',
    )
    baseline: Literal['none'] = Field(
        'none',
        description='there is no critic: steps whose episode does not end within the rollout train nothing, so give rollouts '
        'several times as long as episodes',
    )
    learning_rate: RateSchedule = Field(1e-3, description="the optimiser's step size (3e-4 to 1e-2 is usual)")

    @model_validator(mode='after')
    def _has_no_critic(self) -> PGLearnConfig:
        for name in OF_CRITIC:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} is {value!r} but policy 'pg' trains no critic; leave it out, or use policy 'a2c'."
                )
        if 'value_drift' in map(name_of, self.penalties):
            raise ValueError(
                "penalties has 'value_drift' but policy 'pg' trains no critic; leave it out, or use policy 'a2c'."
            )
        return self


class PGCollectConfig(OnPolicyCollectConfig):
    """Section `policy.collect` of 'pg'."""

    n_step: Filled[Count] = Field(512, description='env steps per rollout and env; several times as long as an episode')
    estimator: component_of(ESTIMATOR_REGISTRY, 'policy.collect.estimator') = Field(  # type: ignore[valid-type]
        'returns', description='how returns come from rewards, by name or as {type: name, its options}'
    )


class PGConfig(ActorCriticPolicyConfig):
    """Section `policy` of 'pg'."""

    type: str = Field('pg', description='registered name of the policy')
    learn: PGLearnConfig = PGLearnConfig()
    collect: PGCollectConfig = PGCollectConfig()


@POLICY_REGISTRY.register('pg')
class PGPolicy(ActorCriticPolicy):
    """REINFORCE, policy gradient without a critic.

    It minimises -mean(return * log p(action)) - entropy_weight * entropy; the model's critic is neither run nor trained.
    """

    cfg: PGConfig
    config: ClassVar[type[PolicyConfig]] = PGConfig
    step: ClassVar[Step] = staticmethod(policy_step)
    """The gradient step, see zoo.policy.ppo; a subclass may have its own."""

    def _make_optimizers(self) -> dict[str, FlatOptimizer]:
        return {'actor': self._make_optimizer(actor_parameters(self._model, self.obs_space))}

    def compute_critic(self, obs: Obs, state: State = None) -> Tensor:
        first = first_leaf(obs)
        return first.new_zeros(len(first)).float()

    def _forward_learn(self, batch: Columns) -> Metrics:
        batch = self._begin_update(batch)
        numbers = self._step_numbers()
        for plan in self.passes.over(batch, 1, self.cfg.learn.batch_size):
            self.passes.take(self.step, list(self.optimizers.values()), plan, self.loss, numbers)
        metrics = self._policy_metrics(batch, self.passes.trained(), self.step, numbers)
        return metrics | self._end_update(batch)

    def _monitor_vars_learn(self) -> list[str]:
        return [name for name in super()._monitor_vars_learn() if name not in ('value_loss', 'explained_variance')]
