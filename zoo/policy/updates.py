"""One gradient step each, as functions of model, distribution, optimisers, minibatch and numbers; no state of their own.

PPO and PPG are built of them. They are the reference: an executor (zoo.backend) runs them as written, or does the same
faster. While one traces them, the numbers are 0-dim tensors, so none is asked for its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from zoo.core.data import AuxMinibatch, Metrics, Minibatch
from zoo.policy.sequences import rows_of, run_model
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.ppg import ppg_data, ppg_joint_error
from zoo.rl_utils.ppo import (
    MAX_LOG_RATIO,
    Number,
    ppo_policy_data,
    ppo_policy_error,
    ppo_value_data,
    ppo_value_error,
    weighted_mean,
)

F = TypeVar('F', bound=Callable[..., Any])


class PolicyNumbers(NamedTuple):
    """The numbers of a step on the policy, schedules resolved."""

    clip_ratio: Number = 0.2
    entropy_weight: Number = 0.0
    dual_clip: Number | None = None
    kl_penalty: Number | None = None  # in place of clipping: factor of KL(old || new)
    grad_clip: Number | None = 0.5
    measure_kl: bool = False
    value_weight: Number = 0.5
    value_clip: bool = False


class ValueNumbers(NamedTuple):
    """The numbers of a step on the critic alone."""

    clip_ratio: Number = 0.2
    value_clip: bool = False
    grad_clip: Number | None = None


class AuxNumbers(NamedTuple):
    """The numbers of a step of PPG's auxiliary phase."""

    bc_weight: Number = 1.0  # factor of KL(old || new)
    grad_clip: Number | None = None


def step_kind(kind: str) -> Callable[[F], F]:
    """Marks a step function with the name under which executors other than the eager one know it."""

    def mark(step: F) -> F:
        step.kind, step.kind_of = kind, step  # type: ignore[attr-defined]  # functools.wraps copies the first alone
        return step

    return mark


class Optimizer(Protocol):
    """What a step needs of a `FlatAdam`."""

    def zero_grad(self) -> None:
        """Sets the gradient to zero."""

    def step(self, grad_clip: Any = None) -> Tensor:
        """One step with the accumulated gradient, limited to a norm of grad_clip; returns the norm before that."""


@step_kind('PPO')
def ppo_step(
    model: Any, dist: ActionDist, optimizers: Sequence[Optimizer], minibatch: Minibatch, numbers: PolicyNumbers
) -> Metrics:
    """One step on policy_loss + value_weight * value_loss - entropy_weight * entropy.

    Args:
      minibatch: obs, action, logit, value, adv, return_ and, where the rollout had invalid rows,
        weight; value and return_ in the unit of the critic's output.
      numbers.measure_kl: add 'kl', the weighted mean of r - 1 - log r, r = p_new / p_old.
    Returns: detached 0-dim tensors policy_loss, value_loss, entropy, approx_kl, clipfrac, grad_norm (, kl).
    """
    output, minibatch = run_model(model, 'compute_actor_critic', minibatch), rows_of(minibatch)
    loss, metrics = _policy_loss(dist, output['logit'], minibatch, numbers)
    value_loss = _value_loss(output['value'], minibatch, numbers)
    loss = _add(loss, numbers.value_weight, value_loss)
    return {**metrics, 'value_loss': value_loss.detach(), 'grad_norm': _descend(optimizers, loss, numbers.grad_clip)}


@step_kind('POLICY')
def policy_step(
    model: Any, dist: ActionDist, optimizers: Sequence[Optimizer], minibatch: Minibatch, numbers: PolicyNumbers
) -> Metrics:
    """As `ppo_step`, of the policy alone: neither value nor return_ is read, nothing of the critic moves."""
    output, minibatch = run_model(model, 'compute_actor', minibatch), rows_of(minibatch)
    loss, metrics = _policy_loss(dist, output['logit'], minibatch, numbers)
    return {**metrics, 'grad_norm': _descend(optimizers, loss, numbers.grad_clip)}


@step_kind('VALUE')
def value_step(
    model: Any, dist: ActionDist, optimizers: Sequence[Optimizer], minibatch: Minibatch, numbers: ValueNumbers
) -> Metrics:
    """One step of the critic alone on value_loss; returns value_loss and value_grad_norm."""
    output, minibatch = run_model(model, 'compute_critic', minibatch), rows_of(minibatch)
    loss = _value_loss(output['value'], minibatch, numbers)
    return {'value_loss': loss.detach(), 'value_grad_norm': _descend(optimizers, loss, numbers.grad_clip)}


@step_kind('AUX')
def aux_step(
    model: Any, dist: ActionDist, optimizers: Sequence[Optimizer], minibatch: AuxMinibatch, numbers: AuxNumbers
) -> Metrics:
    """One step of PPG's auxiliary phase, on auxiliary_loss + bc_weight * behavioral_cloning_loss + aux_value_loss.

    auxiliary_loss is that of the value head on the policy's trunk, aux_value_loss that of the critic, both
    0.5 * mean((R - V)^2); the cloning loss is mean(KL(old || new)).

    Args: minibatch: its return_ in the unit of the critic's output; optimizers: one for each buffer
      of parameters.
    Returns: detached 0-dim tensors auxiliary_loss, behavioral_cloning_loss, aux_value_loss, aux_grad_norm.
    Source: Cobbe et al. 2021, arXiv:2009.04416, algorithm 1.
    """
    output, minibatch = run_model(model, 'compute_aux', minibatch), rows_of(minibatch)
    return_, weight = minibatch['return_'], minibatch.get('weight', None)
    data = ppg_data(output['logit'], minibatch['logit'], None, output['aux_value'], return_, return_, weight)
    joint = ppg_joint_error(data, use_value_clip=False, dist=dist)
    value_loss = ppo_value_error(ppo_value_data(output['value'], return_, return_, weight), use_value_clip=False)
    loss = _add(joint.auxiliary_loss + value_loss, numbers.bc_weight, joint.behavioral_cloning_loss)
    return {
        'auxiliary_loss': joint.auxiliary_loss.detach(),
        'aux_value_loss': value_loss.detach(),
        'behavioral_cloning_loss': joint.behavioral_cloning_loss.detach(),
        'aux_grad_norm': _descend(optimizers, loss, numbers.grad_clip),
    }


def _policy_loss(
    dist: ActionDist, logit: Tensor, minibatch: Minibatch, numbers: PolicyNumbers
) -> tuple[Tensor, Metrics]:
    logit_old, action, weight = minibatch['logit'], minibatch['action'], minibatch.get('weight', None)
    clip_ratio = numbers.clip_ratio if numbers.kl_penalty is None else math.inf
    data = ppo_policy_data(logit, logit_old, action, minibatch['adv'], weight)
    losses, info = ppo_policy_error(data, clip_ratio, numbers.dual_clip, dist=dist)
    loss = _add(losses.policy_loss, -numbers.entropy_weight, losses.entropy_loss)
    metrics = {'policy_loss': losses.policy_loss.detach(), 'entropy': losses.entropy_loss.detach(), **info._asdict()}
    if numbers.kl_penalty is not None:
        kl = dist.kl(logit_old, logit)
        loss = _add(loss, numbers.kl_penalty, (kl if weight is None else kl * weight).mean())
    if numbers.measure_kl:
        metrics['kl'] = _kl_k3(dist, logit, logit_old, action, weight)
    return loss, metrics


def _value_loss(value: Tensor, minibatch: Minibatch, numbers: PolicyNumbers | ValueNumbers) -> Tensor:
    data = ppo_value_data(value, minibatch['value'], minibatch['return_'], minibatch.get('weight', None))
    return ppo_value_error(data, numbers.clip_ratio, numbers.value_clip)


def _add(loss: Tensor, factor: Number, term: Tensor) -> Tensor:
    """loss + factor * term; a factor of exactly 0 drops the term, which may be infinite."""
    return loss if not isinstance(factor, Tensor) and factor == 0 else loss + factor * term


def _descend(optimizers: Sequence[Optimizer], loss: Tensor, grad_clip: Number | None) -> Tensor:
    """One step of each optimiser down the gradient of the loss; returns the norm of the whole gradient."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    norms = [optimizer.step(grad_clip) for optimizer in optimizers]
    return norms[0] if len(norms) == 1 else torch.stack(norms).norm()


@torch.no_grad()
def _kl_k3(dist: ActionDist, new: Tensor, old: Tensor, action: Tensor, weight: Tensor | None) -> Tensor:
    log_ratio = dist.log_prob(new, action) - dist.log_prob(old, action)
    if weight is not None:
        log_ratio = torch.where(weight != 0, log_ratio, 0.0)  # in a row without weight the ratio may overflow
    return weighted_mean(log_ratio.clamp(max=MAX_LOG_RATIO).exp() - 1 - log_ratio, weight)
