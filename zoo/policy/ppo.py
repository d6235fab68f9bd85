"""Policy 'ppo': proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from zoo.core.data import Columns, Metrics
from zoo.core.registry import POLICY_REGISTRY
from zoo.model.parameters import critic_names
from zoo.policy.actor_critic import ActorCriticPolicy
from zoo.policy.base import PolicyConfig
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


class PPOConfig(PolicyConfig):
    """Section `policy` of PPO."""

    learn: PPOLearnConfig = PPOLearnConfig()
    collect: PPOCollectConfig = PPOCollectConfig()


@POLICY_REGISTRY.register('ppo')
class PPOPolicy(ActorCriticPolicy):
    """On-policy PPO with clipping; one optimiser for actor and critic, or one each where their rates differ."""

    config: ClassVar[type[PolicyConfig]] = PPOConfig

    @classmethod
    def default_model(cls) -> str:
        return 'vac'

    def _build(self) -> None:
        self._keep_transitions = self.cfg.learn.recompute_adv
        super()._build()

    def _make_optimizers(self) -> dict[str, FlatAdam]:
        named, eps = list(self._model.named_parameters()), self.cfg.learn.adam_eps
        if self.cfg.learn.critic_learning_rate is None:
            return {'all': FlatAdam(named, eps=eps)}
        critic = critic_names(self._model, self.obs_space)
        return {
            'actor': FlatAdam([(name, p) for name, p in named if name not in critic], eps=eps),
            'critic': FlatAdam([(name, p) for name, p in named if name in critic], eps=eps),
        }

    def _steps_per_env_step(self) -> float:
        n_pass = self.run.reuse['policy'] * self.cfg.learn.epoch_per_collect
        return self._overlap * n_pass / self.cfg.learn.batch_size

    def _forward_learn(self, batch: Columns) -> Metrics:
        cfg = self.cfg.learn
        self._set_learning_rates()
        fit = explained_variance(batch)
        self._update_value_statistics(batch)
        numbers = self._policy_numbers(cfg.value_weight)
        metrics, n_epoch = self._train_epochs(
            batch, cfg.epoch_per_collect, ppo_step, list(self._optimizers.values()), numbers
        )
        self._update_obs_statistics(batch)
        return {**metrics, 'explained_variance': fit, **self._learner_metrics(n_epoch)}
