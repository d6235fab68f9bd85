"""Policy 'ppo': proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar

from pydantic import Field
from tensordict import TensorDict

from zoo.core.registry import POLICY_REGISTRY
from zoo.policy.actor_critic import ActorCriticPolicy
from zoo.policy.base import Metrics, PolicyConfig
from zoo.policy.config import ActorCriticLearnConfig, OnPolicyCollectConfig
from zoo.policy.metrics import explained_variance
from zoo.policy.updates import ppo_step
from zoo.rl_utils.optimizer import FlatAdam


class PPOLearnConfig(ActorCriticLearnConfig):
    """Section `policy.learn` of PPO."""

    epoch_per_collect: int = Field(
        4, ge=1, description='passes over each rollout; more learns faster and strays further'
    )
    value_weight: float = Field(0.5, ge=0, description='factor of the value loss, which is half the mean squared error')
    recompute_adv: bool = Field(
        False, description='recompute values, advantages and returns before every epoch but the first'
    )


class PPOCollectConfig(OnPolicyCollectConfig):
    """Section `policy.collect` of PPO."""

    n_step: Annotated[int, Field(ge=1)] | None = Field(128, description='env steps per rollout and env')


class PPOConfig(PolicyConfig):
    """Section `policy` of PPO."""

    learn: PPOLearnConfig = PPOLearnConfig()
    collect: PPOCollectConfig = PPOCollectConfig()


@POLICY_REGISTRY.register('ppo')
class PPOPolicy(ActorCriticPolicy):
    """On-policy PPO with clipping; one optimiser for actor and critic."""

    config: ClassVar[type[PolicyConfig]] = PPOConfig

    @classmethod
    def default_model(cls) -> str:
        return 'vac'

    def _build(self) -> None:
        super()._build()
        self._keep_transitions = self.cfg.learn.recompute_adv

    def _make_optimizers(self) -> dict[str, FlatAdam]:
        return {'all': FlatAdam(self._model.named_parameters(), eps=self.cfg.learn.adam_eps)}

    def _steps_per_env_step(self) -> list[float]:
        return [self.reuse['policy'] * self.cfg.learn.epoch_per_collect / self.cfg.learn.batch_size]

    def _forward_learn(self, batch: TensorDict) -> Metrics:
        optimizer, config = self._optimizers['all'], self._step_config(self.cfg.learn.value_weight)
        optimizer.lr = self._rates['learning_rate']
        fit = explained_variance(batch)
        self._update_value_statistics(batch)
        metrics, n_epoch = self._train_epochs(
            batch, self.cfg.learn.epoch_per_collect, partial(self._steps.take, ppo_step, optimizer, config)
        )
        self._update_obs_statistics(batch)
        return {**metrics, 'explained_variance': fit, **self._learner_metrics(n_epoch)}
