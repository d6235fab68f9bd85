"""Policies 'trpo' (Schulman et al. 2015, arXiv:1502.05477) and 'npg', the same without its line search (Kakade 2001; with a
step of a given KL, Rajeswaran et al. 2017, arXiv:1703.02660): one step along the natural gradient for each rollout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from zoo.backend.step import Found, LossSpec, SplitStep, StepNumbers, with_log_old
from zoo.config.components import component_of, name_of
from zoo.config.schedule import Schedule
from zoo.core.data import Columns, Metrics
from zoo.core.ranks import mean_over_
from zoo.core.registry import POLICY_REGISTRY, SURROGATE_REGISTRY
from zoo.policy.actor_critic import ActorCriticPolicy
from zoo.policy.config import ActorCriticLearnConfig, ActorCriticPolicyConfig, OnPolicyCollectConfig, PolicyConfig
from zoo.policy.hooks import gradient_ready
from zoo.policy.metrics import explained_variance, step_summary
from zoo.policy.ppg import value_step
from zoo.policy.ppo import policy_terms
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import FlatOptimizer
from zoo.rl_utils.ppo import loss_mean, zeroed


class TRPOLearnConfig(ActorCriticLearnConfig):
    """Section `policy.learn` of 'trpo'; learning_rate, optimizer, adam_eps, grad_clip and grad_clip_value are the critic's."""

    batch_size: int = Field(
        64, ge=1, description="samples per gradient step of the critic; the policy's step is on all of a rollout"
    )
    max_kl: float = Field(
        0.01, gt=0, description='KL(policy before the update || after) at most (trpo), or about (npg)'
    )
    cg_iter: int = Field(10, ge=1, description='iterations of the conjugate gradient for the direction of the step')
    damping: float = Field(
        0.1, ge=0, description='added to the diagonal of the Fisher matrix; npg needs 1e-3 or more to keep near max_kl'
    )
    line_search: int = Field(
        10, ge=0, description='how often a step that breaks max_kl or does not help is halved; 0: it is taken as it is'
    )
    epoch_per_collect: int = Field(10, ge=1, description='passes of the critic over each rollout')
    surrogate: component_of(SURROGATE_REGISTRY, 'policy.learn.surrogate') = Field(  # type: ignore[valid-type]
        'none',
        description='what is maximised of probability ratio and advantage, by name or as {type: name, its options}',
    )
    learning_rate: Schedule = Field(1e-3, description="the optimiser's step size, of the critic alone")
    adv_norm: Literal['off', 'batch'] = Field('batch', description='normalise advantages over the rollout')
    precision: Literal['fp32'] = Field('fp32', description='number format inside the networks during updates')
    accumulate: Literal[1] = Field(1, description='minibatches whose mean gradient makes one step of the critic')
    critic_learning_rate: None = Field(None, description='null: learning_rate is that of the critic')
    target_kl: None = Field(None, description='null: max_kl bounds the step')

    @model_validator(mode='after')
    def _steps_near_the_old_policy(self) -> TRPOLearnConfig:
        if name_of(self.proximal) == 'ewma':
            raise ValueError(
                "proximal is 'ewma', an average over the steps of an optimiser, which moves the critic alone; use 'behaviour' "
                "or 'recent'."
            )
        if 'value_drift' in map(name_of, self.penalties):
            raise ValueError(
                "penalties has 'value_drift' but the critic has steps of its own here; leave it out, or use policy 'ppo'."
            )
        return self


class TRPOConfig(ActorCriticPolicyConfig):
    """Section `policy` of 'trpo'."""

    type: str = Field('trpo', description='registered name of the policy')
    learn: TRPOLearnConfig = TRPOLearnConfig()
    collect: OnPolicyCollectConfig = OnPolicyCollectConfig()


@POLICY_REGISTRY.register('trpo')
class TRPOPolicy(ActorCriticPolicy):
    """Trust region policy optimisation: a natural gradient step that is halved until KL(old || new) <= max_kl."""

    cfg: TRPOConfig
    config: ClassVar[type[PolicyConfig]] = TRPOConfig
    at_rate_0: ClassVar[str] = 'the critic learns nothing more'
    value_step: ClassVar[Any] = staticmethod(value_step)
    """The gradient step of the critic, see zoo.policy.ppg; a subclass may have its own."""

    def _forward_learn(self, batch: Columns) -> Metrics:
        """One natural gradient step of the policy, then passes of the critic."""
        batch = self._begin_update(batch)
        numbers = self._step_numbers()
        for plan in self.passes.over(batch, 1, batch_size=None):
            self.passes.take(self._step, [self.optimizers['actor']], plan, self.loss, numbers)
        metrics = self._policy_metrics(batch, self.passes.trained(), self._step, numbers)
        critic_numbers = numbers._replace(value_weight=1.0)
        for plan in self.passes.over(batch, self.cfg.learn.epoch_per_collect, self.cfg.learn.batch_size):
            self.passes.take(self.value_step, [self.optimizers['critic']], plan, self.loss, critic_numbers)
        metrics |= self.passes.trained().metrics
        metrics['explained_variance'] = explained_variance(batch)
        return metrics | self._end_update(batch)

    def natural_step(
        self,
        model: nn.Module,
        dist: ActionDist,
        optimizers: Sequence[FlatOptimizer],
        minibatch: Any,
        loss: LossSpec,
        numbers: StepNumbers,
    ) -> Found:
        """Takes one natural gradient step: theta += 2^-k sqrt(2 max_kl / x'Fx) x, with F x = -g.

        g is the gradient of the loss, F the damped Hessian of the KL, k the least number up to line_search with KL <= max_kl
        and a lower loss; if there is none, theta stays. In eval mode, as in acting, two losses of the same theta are equal.
        Args: optimizers: of the actor, whose parameters change; its update rule is not used.
        Returns: the metrics of `policy_step`; step_kl, KL(before || after), and step_halved, k (line_search + 1: no step).
        """
        cfg = self.cfg.learn
        optimizer = optimizers[0]
        names = {*optimizers[0].names}
        parameters = [p for name, p in model.eval().named_parameters() if name in names]

        def losses(old: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Found]:
            output, rows = loss.forward(model, 'compute_actor', minibatch)
            total, metrics = policy_terms(dist, output, rows, loss, numbers)
            logit = output['logit']
            weight = rows.get('weight', None)
            if old is None:
                old = logit.detach()
            return total, loss_mean(zeroed(dist.kl(old, logit), weight), weight), old, metrics

        def over_ranks(x: Tensor) -> Tensor:
            return mean_over_(x.detach().clone(), optimizer.ranks)

        def flat_gradient(x: Tensor, **kwargs: Any) -> Tensor:
            found = torch.autograd.grad(x, parameters, materialize_grads=True, **kwargs)
            return torch.cat([grad.reshape(-1) for grad in found])

        with torch.backends.cudnn.flags(enabled=False):  # cuDNN's recurrent layers have no second derivative
            total, kl, logit, at_first = losses()
        slope = flat_gradient(kl, create_graph=True)
        optimizer.zero_grad()
        optimizer.grad.copy_(flat_gradient(total, retain_graph=True))
        gradient_ready(optimizers, total)
        optimizer.share_gradient()

        def fisher(x: Tensor) -> Tensor:
            return over_ranks(flat_gradient(slope @ x, retain_graph=True)) + cfg.damping * x

        norm = torch.linalg.vector_norm(optimizer.grad)
        direction = conjugate_gradient(fisher, torch.where(norm.isfinite(), -optimizer.grad, 0.0), cfg.cg_iter)
        length = direction @ fisher(direction)
        step = torch.where(length > 0, (2 * cfg.max_kl / length).sqrt(), 0.0) * direction
        optimizer.note_step(torch.where(step.isfinite().all(), norm, torch.nan))
        optimizer.advance()
        step = step.nan_to_num(0.0, 0.0, 0.0)
        theta = optimizer.param.clone()
        before = over_ranks(total)
        for n_halved in range(cfg.line_search + 1):
            with torch.no_grad():
                optimizer.param.copy_(theta + 0.5**n_halved * step)
                total, kl, _, metrics = losses(logit)
            kl = over_ranks(kl)
            if not cfg.line_search or (kl <= cfg.max_kl and over_ranks(total) < before):
                break
        else:
            n_halved = cfg.line_search + 1
            kl = torch.zeros_like(kl)
            metrics = at_first
            optimizer.param.copy_(theta)
        return {**metrics, 'grad_norm': norm, 'step_kl': kl, 'step_halved': norm.new_full((), n_halved)}

    def _init_learn(self) -> None:
        self._step = SplitStep(self.natural_step, with_log_old, step_summary)
        self._step.compiles = False
        super()._init_learn()

    def _monitor_vars_learn(self) -> list[str]:
        return [*super()._monitor_vars_learn(), 'step_kl', 'step_halved', 'value_grad_norm']


def conjugate_gradient(product: Callable[[Tensor], Tensor], b: Tensor, n: int) -> Tensor:
    """Solves A x = b for x [P] in at most n iterations; A is symmetric and positive, given by its products A v.

    Source: Hestenes & Stiefel 1952, doi:10.6028/jres.049.044.
    """
    x = torch.zeros_like(b)
    residual = b.clone()
    direction = b.clone()
    square = first = residual @ residual
    for _ in range(n):
        image = product(direction)
        curvature = direction @ image
        if (square <= 1e-12 * first) | (curvature <= 1e-6 * (direction @ direction)):  # solved, or almost flat
            break
        x = x + square / curvature * direction
        residual = residual - square / curvature * image
        before = square
        square = residual @ residual
        direction = residual + square / before * direction
    return x


TRPOPolicy.with_updates(
    'npg', {'learn': {'line_search': 0}}, __doc__='Natural policy gradient: trpo without line search.'
)
