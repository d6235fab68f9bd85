"""Policy 'ppo': proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347).

From the outside in: `PPOPolicy._forward_learn` is the loop of algorithm 1, `ppo_step` one gradient step on a minibatch,
`policy_terms` the loss of the policy, and `surrogate_loss` the ratio and its clip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.backend.step import CLIP, MSE, Found, GradientStep, LossSpec, StepNumbers, with_log_old
from zoo.core.data import Columns, Metrics, Minibatch
from zoo.core.registry import POLICY_REGISTRY
from zoo.policy.actor_critic import ActorCriticPolicy
from zoo.policy.config import ActorCriticPolicyConfig, OnPolicyCollectConfig, PolicyConfig, WholeRolloutConfig
from zoo.policy.hooks import gradient_ready, here
from zoo.policy.metrics import explained_variance, step_summary
from zoo.rl_utils import kernels
from zoo.rl_utils.check import EACH_SAMPLE, Number, check_returned
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import FlatOptimizer, backward
from zoo.rl_utils.ppo import added, clip, loss_mean, policy_loss, value_loss_of, zeroed


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


@partial(GradientStep, kind='PPO', prepare=with_log_old, summarise=step_summary)
def ppo_step(
    model: nn.Module,
    dist: ActionDist,
    optimizers: Sequence[FlatOptimizer],
    minibatch: Minibatch,
    loss: LossSpec,
    numbers: StepNumbers,
) -> Found:
    """One step on policy_loss + value_weight * value_loss - entropy_weight * entropy + the further terms of `loss`.

    Args: minibatch: obs, action, logit, value, adv, return_ and, where the rollout had invalid rows, weight; value and
      return_ in the unit of the critic's output.
    Returns: detached 0-dim tensors policy_loss, value_loss, entropy, approx_kl, clipfrac, grad_norm, penalty_<name> of
      each penalty, value_clipfrac where the value loss is clipped; with loss.measure_kl also kl, the weighted mean of
      r - 1 - log r, r = p_new / p_old, and ratio_max, the largest r.
    """
    columns = extra_columns(model, optimizers, minibatch, loss)
    output, minibatch = loss.forward(model, 'compute_actor_critic', minibatch)
    policy, metrics = policy_terms(dist, output, minibatch | columns, loss, numbers)
    value, value_metrics = value_loss_terms(output, minibatch, loss.value_loss, numbers.clip_ratio)
    total = added(policy, numbers.value_weight, value)
    grad_norm = descend(optimizers, total, numbers.grad_clip)
    return {**metrics, **value_metrics, 'grad_norm': grad_norm}


@partial(GradientStep, kind='POLICY', prepare=with_log_old, summarise=step_summary)
def policy_step(
    model: nn.Module,
    dist: ActionDist,
    optimizers: Sequence[FlatOptimizer],
    minibatch: Minibatch,
    loss: LossSpec,
    numbers: StepNumbers,
) -> Found:
    """Like `ppo_step`, but for the policy alone: value and return_ are not read, and the critic is not trained."""
    columns = extra_columns(model, optimizers, minibatch, loss)
    output, minibatch = loss.forward(model, 'compute_actor', minibatch)
    policy, metrics = policy_terms(dist, output, minibatch | columns, loss, numbers)
    return {**metrics, 'grad_norm': descend(optimizers, policy, numbers.grad_clip)}


def extra_columns(
    model: nn.Module, optimizers: Sequence[FlatOptimizer], minibatch: Minibatch, loss: LossSpec
) -> dict[str, Tensor]:
    """The columns that the loss computes from the model and its optimisers, such as logits of an averaged policy."""
    if loss.extra_columns is None:
        return {}
    return loss.extra_columns(model, optimizers, minibatch, loss)


def policy_terms(
    dist: ActionDist,
    output: dict[str, Tensor],
    minibatch: Mapping[str, Any],
    loss: LossSpec,
    numbers: StepNumbers,
) -> tuple[Tensor, Found]:
    """policy_loss - entropy_weight * entropy + the further terms.

    Returns: the loss; the metrics policy_loss and penalty_<name> of each further term, and 'rows', of which
      `zoo.policy.metrics.step_summary` computes the others (a kernel computes them itself).
    """
    logit = output['logit']
    weight = minibatch.get('weight', None)
    has_kernel = loss.proximal is None or getattr(loss.proximal, 'has_kernel', False)
    if kernels.ENABLED and has_kernel and kernels.reach(logit):
        from zoo.rl_utils.losses import policy_terms_by_kernel

        total, metrics = policy_terms_by_kernel(dist, logit, minibatch, loss, numbers)
    else:
        surrogate = loss.proximal or surrogate_loss
        total, rows = surrogate(dist, logit, minibatch, loss, numbers)
        metrics = {'policy_loss': total.detach(), 'rows': rows}
        if weight is not None:
            rows['weight'] = weight
        if isinstance(numbers.entropy_weight, Tensor) or numbers.entropy_weight:
            entropy = loss_mean(dist.entropy(logit), weight)
            total = total - numbers.entropy_weight * entropy
            metrics['entropy'] = entropy.detach()
        else:
            rows['logit'] = logit.detach()
    for term, factor in zip(loss.terms, numbers.term_weights, strict=True):
        each = term(dist, output, minibatch)
        check_returned(f'the penalty {term.name!r}', each, minibatch['adv'].shape, EACH_SAMPLE)
        mean = loss_mean(zeroed(each, weight), weight)
        total = added(total, factor, mean)
        metrics[f'penalty_{term.name}'] = mean.detach()
    return total, metrics


def surrogate_loss(
    dist: ActionDist, logit: Tensor, minibatch: Mapping[str, Any], loss: LossSpec, numbers: StepNumbers
) -> tuple[Tensor, dict[str, Tensor]]:
    """-mean(min(r A, clip(r, 1 - eps, 1 + eps) A)), r = p_new(action) / p_old(action), for the surrogate 'clip' (eq. 7).

    Returns: the loss; the rows for `step_summary`, here {'log_ratio': log r}.
    """
    log_new = dist.log_prob(logit, minibatch['action'])
    weight = minibatch.get('weight', None)
    gain = clip
    if loss.surrogate != CLIP or numbers.dual_clip is not None:
        from zoo.rl_utils.surrogates import gain_of

        gain = partial(gain_of, loss.surrogate, numbers.dual_clip, None)
    error, log_ratio = policy_loss(log_new, minibatch['log_old'], minibatch['adv'], weight, numbers.clip_ratio, gain)
    return error, {'log_ratio': log_ratio}


def value_loss_terms(
    output: dict[str, Tensor], minibatch: Minibatch, loss: Callable[..., Tensor], clip_ratio: Number
) -> tuple[Tensor, Metrics]:
    """Returns the loss, and the metrics value_loss and, for a loss that clips, value_clipfrac."""
    metrics: Metrics = {}
    has_kernel = kernels.ENABLED and kernels.reach(output['value'])
    if loss == MSE and not has_kernel:
        error = value_loss_of(output['value'], minibatch['return_'], minibatch.get('weight', None))
    else:
        from zoo.rl_utils.losses import error_of_component

        error, metrics = error_of_component(output, minibatch, loss, clip_ratio)
    return error, {'value_loss': error.detach(), **metrics}


def descend(optimizers: Sequence[FlatOptimizer], loss: Tensor, grad_clip: float | None) -> Tensor:
    """One step of each optimiser down the gradient of the loss; returns the norm of the whole gradient."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    backward(loss, optimizers)
    if here.listener is not None:
        gradient_ready(optimizers, loss)
    norms = [optimizer.step(grad_clip) for optimizer in optimizers]
    if len(norms) == 1:
        return norms[0]
    return torch.stack(norms).norm()


@POLICY_REGISTRY.register('ppo')
class PPOPolicy(ActorCriticPolicy):
    """PPO with clipping, on-policy; one optimiser for actor and critic, or one each where their rates differ."""

    cfg: PPOConfig
    config: ClassVar[type[PolicyConfig]] = PPOConfig
    step: ClassVar[Any] = staticmethod(ppo_step)
    """The gradient step; a subclass may have its own."""

    def _forward_learn(self, batch: Columns) -> Metrics:
        """Optimises the surrogate L with K epochs and minibatches of M samples (Schulman et al. 2017, algorithm 1).

        `Collector` and `Samples` do the earlier lines of the algorithm: run the old policy, and estimate advantages.
        Column 'logit' of the batch, which acting wrote, has the outputs of theta_old.
        """
        cfg = self.cfg.learn
        optimizers = list(self.optimizers.values())
        batch = self._begin_update(batch)
        numbers = self._step_numbers()
        for plan in self.passes.over(batch, cfg.epoch_per_collect, cfg.batch_size):
            self.passes.take(self.step, optimizers, plan, self.loss, numbers)  # for each minibatch: self.step(...)
        metrics = self._policy_metrics(batch, self.passes.trained(), self.step, numbers)
        metrics['explained_variance'] = explained_variance(batch)
        return metrics | self._end_update(batch)

    def _make_optimizers(self) -> dict[str, FlatOptimizer]:
        if self.cfg.learn.critic_learning_rate is not None:
            return super()._make_optimizers()
        return {'all': self._make_optimizer(self._model.named_parameters())}

    def _coefficients(self) -> dict[str, float]:
        return {'value_weight': self.cfg.learn.value_weight if self.has_critic else 0.0}
