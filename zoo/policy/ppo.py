"""Policy 'ppo': proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""
from __future__ import annotations

import logging
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from tensordict import TensorDict
from torch import Tensor

from zoo.policy.actor_critic import ActorCriticPolicy, OnPolicyCollectConfig
from zoo.policy.base import LearnConfig, Metrics, PolicyConfig, torch_generator
from zoo.policy.updates import PPOStep, minibatches, ppo_step
from zoo.registry import POLICY_REGISTRY
from zoo.rl_utils.normalizer import normalize_advantage
from zoo.rl_utils.optimizer import FlatAdam
from zoo.schedule import Schedule, ScheduleOrZero, schedule_value

logger = logging.getLogger(__name__)


class PPOLearnConfig(LearnConfig):
    """Section `policy.learn` of PPO."""

    epoch_per_collect: int = Field(
        4, ge=1, description='passes over each rollout; more learns faster and strays further')
    batch_size: int = Field(256, ge=1, description='samples per gradient step; divides the rollout')
    learning_rate: Schedule = Field(2.5e-4, description="Adam's step size")
    adam_eps: float = Field(1e-5, gt=0, description="Adam's epsilon")
    value_weight: float = Field(0.5, ge=0, description='factor of the value loss, which is half the mean squared error')
    entropy_weight: ScheduleOrZero = Field(0.0, description='factor of the entropy bonus; more explores more')
    clip_ratio: Schedule = Field(
        0.2, description='how far the probability ratio may move from 1 before its gradient stops')
    value_clip: bool = Field(
        False, description='clip the value around its old prediction by clip_ratio, in units of the critic')
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        None, description='bound on the loss where adv < 0 (3 to 5 is usual); null: off')
    adv_norm: Literal['off', 'batch', 'minibatch'] = Field(
        'minibatch', description='normalise advantages over the rollout or each minibatch')
    value_norm: bool = Field(
        False, description='the critic predicts returns normalised by their running mean and deviation')
    reward_norm: bool = Field(
        False, description='divide rewards by the running deviation of their discounted sum, clip to +-10')
    target_kl: Annotated[float, Field(gt=0)] | None = Field(
        None, description='stop the epochs once KL(old || new) exceeds 1.5 times this; null: off')
    grad_clip: Annotated[float, Field(gt=0)] | None = Field(
        0.5, description='limit of the global gradient norm; null: off')
    recompute_adv: bool = Field(
        False, description='recompute values, advantages and returns before every epoch but the first')
    ignore_done: bool = Field(
        False, description='bootstrap through terminal states too (tasks that end only for convenience)')
    nonfinite_limit: int = Field(
        10, ge=1, description='gradient steps in a row that may be skipped as not finite before the run stops')


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

    def _init_learn(self) -> None:
        cfg = self.cfg.learn
        self._make_normalizers()
        self._optimizer = FlatAdam(self._model.named_parameters(), eps=cfg.adam_eps)
        self._order_generator = torch_generator(self.seed, 'learn')
        self._train_iter, self._warned = 0, False
        self._set_env_step(0)

    def _set_env_step(self, env_step: int) -> None:
        cfg = self.cfg.learn
        self._rates = {name: schedule_value(cfg[name], env_step)
                       for name in ('learning_rate', 'clip_ratio', 'entropy_weight')}
        if self._rates['learning_rate'] == 0 and not self._warned:
            self._warned = True
            logger.warning('policy.learn.learning_rate is 0 from env step %d on: nothing more is learned; resume with '
                           'another, e.g. policy.learn.learning_rate=1e-4', env_step)

    def _forward_learn(self, batch: TensorDict) -> Metrics:
        cfg = self.cfg.learn
        step = self._step_config()
        self._optimizer.lr = self._rates['learning_rate']
        explained_variance = _explained_variance(batch)
        if cfg.value_norm:
            self._normalizers['value'].update(batch['return_'], batch.get('weight', None))
        metrics: list[Metrics] = []
        n_epoch = 0
        for epoch in range(cfg.epoch_per_collect):
            if epoch and cfg.recompute_adv:
                batch = self._recompute(batch)
            if epoch == 0 or cfg.recompute_adv:
                targets = self._targets(batch)
            done = [ppo_step(self._model, self._optimizer, minibatch, step)
                    for minibatch in minibatches(targets, cfg.batch_size, self._order_generator,
                                                 cfg.adv_norm == 'minibatch')]
            self._train_iter += len(done)
            metrics += done
            n_epoch += 1
            if cfg.target_kl is not None and bool(_mean_of(done, 'kl') > 1.5 * cfg.target_kl):
                break
        n_skipped = self._optimizer.count_skipped(cfg.nonfinite_limit)
        self._update_obs_statistics(batch)
        return {**{name: _mean_of(metrics, name) for name in metrics[0]}, 'explained_variance': explained_variance,
                'n_epoch': torch.tensor(float(n_epoch)), 'skipped_step': torch.tensor(float(n_skipped)),
                **{name: torch.tensor(value, dtype=torch.float64) for name, value in self._rates.items()}}

    def _step_config(self) -> PPOStep:
        cfg = self.cfg.learn
        clip_ratio = max(self._rates['clip_ratio'], 1e-6)  # a schedule may end at 0, the loss needs a range
        return PPOStep(clip_ratio, cfg.value_weight, self._rates['entropy_weight'], cfg.value_clip,
                       cfg.dual_clip, cfg.grad_clip, cfg.target_kl is not None)

    @torch.no_grad()
    def _targets(self, batch: TensorDict) -> TensorDict:
        """Only what `ppo_step` reads: values in the unit of the critic's output, advantages of the batch normalised."""
        cfg = self.cfg.learn
        weight_key = ('weight',) if 'weight' in batch.keys() else ()
        targets = batch.select('obs', 'action', 'logit', 'value', 'adv', 'return_', *weight_key)
        if cfg.value_norm:
            for key in ('value', 'return_'):
                targets[key] = self._normalizers['value'].standardize(targets[key])
        if cfg.adv_norm == 'batch':
            targets['adv'] = normalize_advantage(targets['adv'], targets.get('weight', None))
        return targets

    @torch.no_grad()
    def _recompute(self, batch: TensorDict) -> TensorDict:
        """The batch with values, advantages and returns of the critic as it is now (arXiv:2006.05990, sec. 3.5)."""
        n_step = self.cfg.collect.n_step
        block = batch.view(n_step, -1)  # [N] -> [T, B]
        value, next_value = self._compute_value(block['obs']), self._compute_value(block['next_obs'])
        adv = self._advantage(value, next_value, block['reward'], block['done'], block['traj_flag'])
        return batch.clone(recurse=False).update({'value': value.flatten(), 'adv': adv.flatten(),
                                                  'return_': (adv + value).flatten()})

    def _monitor_vars_learn(self) -> list[str]:
        names = ['policy_loss', 'value_loss', 'entropy', 'approx_kl', 'clipfrac', 'grad_norm', 'explained_variance',
                 'n_epoch', 'skipped_step', 'learning_rate', 'clip_ratio', 'entropy_weight']
        return names + (['kl'] if self.cfg.learn.target_kl is not None else [])

    def _get_train_iter(self) -> int:
        return self._train_iter

    def _state_dict_learn(self) -> dict[str, Any]:
        return {'optimizer': self._optimizer.state_dict(), 'generator': self._order_generator.get_state(),
                'train_iter': self._train_iter}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state['optimizer'])
        self._order_generator.set_state(state['generator'])
        self._train_iter = state['train_iter']


def _mean_of(metrics: list[Metrics], name: str) -> Tensor:
    return torch.stack([m[name] for m in metrics]).mean()


def _explained_variance(batch: TensorDict) -> Tensor:
    """1 - Var(return - value) / Var(return): 1 is a perfect critic, 0 as good as a constant."""
    return_, value, weight = batch['return_'], batch['value'], batch.get('weight', None)
    if weight is not None:
        valid = weight > 0
        return_, value = return_[valid], value[valid]
    return 1 - (return_ - value).var(correction=0) / return_.var(correction=0).clamp(min=1e-12)
