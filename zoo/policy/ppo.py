"""Policy 'ppo': proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from zoo.core.data import Columns, Metrics
from zoo.core.registry import POLICY_REGISTRY
from zoo.policy.actor_critic import ActorCriticPolicy
from zoo.policy.config import ActorCriticPolicyConfig, OnPolicyCollectConfig, PolicyConfig, WholeRolloutConfig
from zoo.policy.gradient_steps import ppo_step
from zoo.policy.metrics import explained_variance
from zoo.rl_utils.optimizer import FlatOptimizer


class PPOLearnConfig(WholeRolloutConfig):
    """Section `policy.learn` of PPO."""

    epoch_per_collect: int = Field(
        4, ge=1, description='passes over each rollout; more learns faster and strays further'
    )
    value_weight: float = Field(0.5, ge=0, description='factor of the value loss, which is half the mean squared error')


class PPOCollectConfig(OnPolicyCollectConfig):
    """Section `policy.collect` of PPO."""


class PPOConfig(ActorCriticPolicyConfig):
    """Section `policy` of PPO."""

    learn: PPOLearnConfig = PPOLearnConfig()
    collect: PPOCollectConfig = PPOCollectConfig()


@POLICY_REGISTRY.register('ppo')
class PPOPolicy(ActorCriticPolicy):
    """PPO with clipping, on-policy; one optimiser for actor and critic, or one each where their rates differ."""

    cfg: PPOConfig
    config: ClassVar[type[PolicyConfig]] = PPOConfig
    step: ClassVar[Any] = staticmethod(ppo_step)
    """The gradient step, see zoo.policy.gradient_steps; a subclass may have its own."""

    def _forward_learn(self, batch: Columns) -> Metrics:
        """Runs K = epoch_per_collect passes over a rollout, in minibatches of M = batch_size (Schulman et al. 2017, alg. 1).

        `Collector` and `Samples` do the earlier lines of the algorithm: run the old policy, and estimate advantages.
        Column 'logit' of the batch, which acting wrote, has the outputs of theta_old.
        """
        cfg, optimizers = self.cfg.learn, list(self.optimizers.values())
        batch = self._begin_update(batch)
        metrics = self._train_policy(batch, cfg.epoch_per_collect, self.step, optimizers, cfg.batch_size)
        return {**metrics, 'explained_variance': explained_variance(batch), **self._end_update(batch)}

    def _make_optimizers(self) -> dict[str, FlatOptimizer]:
        if self.cfg.learn.critic_learning_rate is not None:
            return super()._make_optimizers()
        return {'all': self._make_optimizer(self._model.named_parameters())}

    def _coefficients(self) -> dict[str, float]:
        return {'value_weight': self.cfg.learn.value_weight if self.has_critic else 0.0}
