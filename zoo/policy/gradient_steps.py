"""Gradient steps, as functions of model, distribution, optimisers, minibatch and numbers; no state of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from zoo.backend.executor import Found, SplitStep
from zoo.backend.precision import UpdatePrecision, in_precision
from zoo.core.data import Columns, Metrics, Minibatch
from zoo.core.registry import Part
from zoo.policy import hooks
from zoo.rl_utils import kernels
from zoo.rl_utils.check import Number, check_shape
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import backward
from zoo.rl_utils.ppo import clip, clipfrac, mean_of, mse, policy_loss, ratio_of, valid, value_loss_of, weighted_mean

if TYPE_CHECKING:
    from zoo.rl_utils.losses import ppo_value_data
    from zoo.rl_utils.ppg import ppg_joint_loss

M = TypeVar('M', bound=Columns)
CLIP = Part('surrogate', 'clip', clip)
MSE = Part('value loss', 'mse', mse)


def forward_rows(model: nn.Module, method: str, minibatch: M) -> tuple[dict[str, Tensor], M]:
    """Runs a method of the model on a minibatch; its output by name ('logit', 'value', ..), and the minibatch."""
    found = getattr(model, method)(minibatch['obs'])
    if isinstance(found, dict):
        return found, minibatch
    return {'logit' if method == 'compute_actor' else 'value': found}, minibatch


class PolicyNumbers(NamedTuple):
    """The numbers of a step on the policy, schedules resolved, and the parts that its loss is made of.

    surrogate, value_loss, penalties: see zoo.core.registry.PARTS; penalty_weights: the factor of each penalty.
    proximal: 'behaviour'; 'recent': column 'logit_proximal' has its logits; 'ewma': it is the first optimiser's average.
    rho_max: bound of p_proximal / p_old; forward: as `forward_rows`, or of sequences.
    """

    clip_ratio: Number = 0.2
    entropy_weight: Number = 0.0
    dual_clip: Number | None = None
    grad_clip: Number | None = 0.5
    measure_kl: bool = False
    value_weight: Number = 0.5
    surrogate: Callable[..., Tensor] = CLIP
    value_loss: Callable[..., Tensor] = MSE
    penalties: tuple[Part, ...] = ()
    penalty_weights: tuple[Number, ...] = ()
    proximal: str = 'behaviour'
    precision: UpdatePrecision = 'fp32'
    rho_max: Number | None = None
    forward: Callable[..., Any] = forward_rows


class ValueNumbers(NamedTuple):
    """The numbers of a step on the critic alone."""

    clip_ratio: Number = 0.2
    grad_clip: Number | None = None
    value_loss: Callable[..., Tensor] = MSE
    value_weight: Number = 1.0
    precision: UpdatePrecision = 'fp32'
    forward: Callable[..., Any] = forward_rows


class AuxNumbers(NamedTuple):
    """The numbers of a step of PPG's auxiliary phase."""

    bc_weight: Number = 1.0  # factor of KL(old || new)
    grad_clip: Number | None = None
    value_loss: Callable[..., Tensor] = MSE  # of a critic that predicts a distribution; else it is the squared error
    value_weight: Number = 1.0  # factor of aux_value_loss
    precision: UpdatePrecision = 'fp32'
    forward: Callable[..., Any] = forward_rows


StepNumbers = PolicyNumbers | ValueNumbers | AuxNumbers


class GradientStep(SplitStep):
    """A step of zoo's own.

    Attributes: kind: the name under which executors other than the eager one know it; kind_of: the step itself, which of
      a function that wraps it is another.
    """

    __name__: str

    def __init__(
        self, take: Callable[..., Found], kind: str, prepare: Callable[[ActionDist, Columns], Columns]
    ) -> None:
        super().__init__(take, prepare, _summary)
        update_wrapper(self, take)
        self.kind, self.kind_of = kind, self

    def __reduce__(self) -> str:
        return self.kind_of.__name__  # pickled by its name, as functions are


def checked(dist: ActionDist, columns: Columns) -> Columns:
    """Columns of one number for each sample, which have one shape: a [N, 1] against [N] would broadcast to [N, N]."""
    lead = columns['logit'].shape[:-1] if 'logit' in columns else columns['return_'].shape
    given = [name for name in ('adv', 'return_', 'value', 'weight') if name in columns]
    for name in given:
        if columns[name].shape != lead:
            check_shape(name, columns[name], 'logit_new without its last dimension', lead)
    return columns


@torch.no_grad()
def with_log_old(dist: ActionDist, columns: Columns) -> Columns:
    """`checked` columns, and where formulas read it log p_old(action) of each sample."""
    checked(dist, columns)
    if kernels.ENABLED and kernels.reach(columns['logit']):
        return columns
    return {**columns, 'log_old': dist.log_prob(columns['logit'], columns['action'])}


@torch.no_grad()
def _summary(found: Found, dist: ActionDist, numbers: PolicyNumbers) -> Metrics:
    rows = found.pop('rows', None)
    return found if rows is None else found | _of_rows(rows, dist, numbers)


def _of_rows(rows: Mapping[str, Tensor], dist: ActionDist, numbers: PolicyNumbers) -> Metrics:
    """Metrics of one minibatch, or of several at once: approx_kl, clipfrac, and what is asked for of entropy, kl, ratio_max.

    Args: rows: log_ratio [..., N], and where they are needed log_old_ratio, if the ratio is to another policy than that
      of the samples; weight; and logit [..., N, P], if the loss has no entropy.
    """
    log_ratio, weight = rows['log_ratio'], rows.get('weight')
    high = dict(getattr(numbers.surrogate, 'options', ())).get('high', numbers.clip_ratio)  # of an asymmetric clip
    old_ratio, metrics = rows.get('log_old_ratio', log_ratio), {}
    if 'logit' in rows:
        entropy = dist.entropy(rows['logit'])
        metrics['entropy'] = (entropy if weight is None else entropy * weight).mean(-1)
    metrics['approx_kl'] = weighted_mean(-old_ratio, weight)
    metrics['clipfrac'] = clipfrac(log_ratio, weight, numbers.clip_ratio, high)
    return metrics | _of_ratios(old_ratio, weight) if numbers.measure_kl else metrics


def step_kind(
    kind: str, prepare: Callable[[ActionDist, Columns], Columns] = checked
) -> Callable[[Callable[..., Found]], GradientStep]:
    """Makes a step of a function, with the name under which executors other than the eager one know it.

    The function returns 0-dim tensors, and where the metrics of rows are still to be found 'rows', see `_of_rows`.
    """
    return lambda take: GradientStep(take, kind, prepare)


class Optimizer(Protocol):
    """What a step needs of a `FlatOptimizer`."""

    @property
    def averaged(self) -> dict[str, Tensor]:
        """The average of its parameters by name, where it keeps one."""

    def zero_grad(self) -> None:
        """Sets the gradient to zero."""

    def step(self, grad_clip: Number | None = None) -> Tensor:
        """One step with the accumulated gradient, limited to a norm of grad_clip; returns the norm before that."""


@step_kind('PPO', with_log_old)
def ppo_step(
    model: nn.Module, dist: ActionDist, optimizers: Sequence[Optimizer], minibatch: Minibatch, numbers: PolicyNumbers
) -> Found:
    """One step on policy_loss + value_weight * value_loss - entropy_weight * entropy.

    Args:
      minibatch: obs, action, logit, value, adv, return_ and, where the rollout had invalid rows,
        weight; value and return_ in the unit of the critic's output.
      numbers.measure_kl: add 'kl', the weighted mean of r - 1 - log r, r = p_new / p_old, and 'ratio_max', the largest r.
    Returns: detached 0-dim tensors policy_loss, value_loss, entropy, approx_kl, clipfrac, grad_norm (, kl, ratio_max),
      penalty_<name> of each penalty, and value_clipfrac where the value loss is clipped.
    """
    proximal = _proximal_logit(model, optimizers, minibatch, numbers)
    output, minibatch = _forward(model, 'compute_actor_critic', minibatch, numbers)
    loss, metrics = _policy_loss(dist, output, minibatch, numbers, proximal)
    value_loss, of_value = _value_loss(output, minibatch, numbers)
    loss = _add(loss, numbers.value_weight, value_loss)
    return {**metrics, **of_value, 'grad_norm': _descend(optimizers, loss, numbers.grad_clip)}


@step_kind('POLICY', with_log_old)
def policy_step(
    model: nn.Module, dist: ActionDist, optimizers: Sequence[Optimizer], minibatch: Minibatch, numbers: PolicyNumbers
) -> Found:
    """As `ppo_step`, of the policy alone: neither value nor return_ is read, nothing of the critic moves."""
    proximal = _proximal_logit(model, optimizers, minibatch, numbers)
    output, minibatch = _forward(model, 'compute_actor', minibatch, numbers)
    loss, metrics = _policy_loss(dist, output, minibatch, numbers, proximal)
    return {**metrics, 'grad_norm': _descend(optimizers, loss, numbers.grad_clip)}


@step_kind('VALUE')
def value_step(
    model: nn.Module, dist: ActionDist, optimizers: Sequence[Optimizer], minibatch: Minibatch, numbers: ValueNumbers
) -> Found:
    """One step of the critic alone on value_loss; returns value_loss (, value_clipfrac) and value_grad_norm."""
    method = 'compute_critic' if n_output_of(numbers.value_loss) == 1 else 'compute_critic_output'
    output, minibatch = _forward(model, method, minibatch, numbers)
    value_loss, metrics = _value_loss(output, minibatch, numbers)
    loss = value_loss * numbers.value_weight
    return {**metrics, 'value_grad_norm': _descend(optimizers, loss, numbers.grad_clip)}


@step_kind('AUX')
def aux_step(
    model: nn.Module, dist: ActionDist, optimizers: Sequence[Optimizer], minibatch: Minibatch, numbers: AuxNumbers
) -> Metrics:
    """One step of PPG's auxiliary phase.

    loss = auxiliary_loss + bc_weight * behavioral_cloning_loss + value_weight * aux_value_loss

    auxiliary_loss is that of the value head on the policy's trunk, aux_value_loss that of the critic, both
    0.5 * mean((R - V)^2); the cloning loss is mean(KL(old || new)).

    Args: minibatch: its return_ in the unit of the critic's output; optimizers: one for each buffer
      of parameters.
    Returns: detached 0-dim tensors auxiliary_loss, behavioral_cloning_loss, aux_value_loss, aux_grad_norm.
    Source: Cobbe et al. 2021, arXiv:2009.04416, algorithm 1.
    """
    output, minibatch, joint = _joint_output(model, dist, minibatch, numbers)
    return_, weight = minibatch['return_'], minibatch.get('weight', None)
    if 'value_logit' in output:
        value_loss = _distribution_error(output['value_logit'], minibatch, numbers)
    else:
        value_loss = _squared_error(output['value'], return_, weight)
    loss = joint.auxiliary_loss + value_loss * numbers.value_weight
    loss = _add(loss, numbers.bc_weight, joint.behavioral_cloning_loss)
    return {
        'auxiliary_loss': joint.auxiliary_loss.detach(),
        'aux_value_loss': value_loss.detach(),
        'behavioral_cloning_loss': joint.behavioral_cloning_loss.detach(),
        'aux_grad_norm': _descend(optimizers, loss, numbers.grad_clip),
    }


def distill_step(
    model: nn.Module, dist: ActionDist, optimizers: Sequence[Optimizer], minibatch: Minibatch, numbers: AuxNumbers
) -> Metrics:
    """One step of an auxiliary phase that leaves the critic alone: auxiliary_loss + bc_weight * behavioral_cloning_loss.

    Args: minibatch: its return_ is what the auxiliary head learns, for DNA the critic's values. Returns: as `aux_step`.
    Source: Aitchison & Sweetser 2022, arXiv:2206.10027, sec. 3.3 (distil phase).
    """
    _, _, joint = _joint_output(model, dist, minibatch, numbers)
    loss = _add(joint.auxiliary_loss, numbers.bc_weight, joint.behavioral_cloning_loss)
    return {
        'auxiliary_loss': joint.auxiliary_loss.detach(),
        'behavioral_cloning_loss': joint.behavioral_cloning_loss.detach(),
        'aux_grad_norm': _descend(optimizers, loss, numbers.grad_clip),
    }


def _joint_output(
    model: nn.Module, dist: ActionDist, minibatch: Minibatch, numbers: AuxNumbers
) -> tuple[dict[str, Tensor], Minibatch, ppg_joint_loss]:
    """What `compute_aux` gives, the minibatch as rows, and the losses that all auxiliary phases have."""
    from zoo.rl_utils.ppg import joint_loss, ppg_data, ppg_joint_error

    output, minibatch = _forward(model, 'compute_aux', minibatch, numbers)
    return_, weight = minibatch['return_'], minibatch.get('weight', None)
    if kernels.ENABLED and kernels.reach(output['logit']):
        data = ppg_data(output['logit'], minibatch['logit'], None, output['aux_value'], return_, return_, weight)
        return output, minibatch, ppg_joint_error(data, use_value_clip=False, dist=dist)
    losses = joint_loss(dist, output['logit'], minibatch['logit'], output['aux_value'], return_, weight)
    return output, minibatch, losses


def _squared_error(value: Tensor, return_: Tensor, weight: Tensor | None) -> Tensor:
    if kernels.ENABLED and kernels.reach(value):
        from zoo.rl_utils.losses import ppo_value_data, ppo_value_error

        return ppo_value_error(ppo_value_data(value, return_, return_, weight), use_value_clip=False)
    return value_loss_of(value, return_, weight)


def _forward(model: nn.Module, method: str, minibatch: Columns, numbers: StepNumbers) -> tuple[dict[str, Tensor], Any]:
    """What a method of the model computes from a minibatch, in the precision of the numbers; and the rows of it."""
    model = model if numbers.precision == 'fp32' else in_precision(model, numbers.precision)
    return numbers.forward(model, method, minibatch)


def _proximal_logit(
    model: nn.Module, optimizers: Sequence[Optimizer], minibatch: Minibatch, numbers: PolicyNumbers
) -> Tensor | None:
    """Logits [N, P] of the average of the policy, as rows; None: the loss keeps near another one."""
    if numbers.proximal in ('behaviour', 'recent'):
        return None
    from zoo.backend.trace import replaced

    with torch.no_grad(), replaced(model, optimizers[0].averaged):
        return _forward(model, 'compute_actor', minibatch, numbers)[0]['logit']


def _policy_loss(
    dist: ActionDist, output: dict[str, Tensor], minibatch: Minibatch, numbers: PolicyNumbers, proximal: Tensor | None
) -> tuple[Tensor, Found]:
    """The loss, the metrics policy_loss, penalty_<name>, and 'rows' or what a kernel finds of them."""
    if 'logit_proximal' in minibatch:  # of the policy as the update began
        proximal = minibatch['logit_proximal']  # type: ignore[typeddict-item]
    weight = minibatch.get('weight', None)
    terms = _by_kernel if kernels.ENABLED and kernels.reach(output['logit']) else _by_formula
    loss, metrics = terms(dist, output['logit'], minibatch, numbers, proximal)
    for penalty, factor in zip(numbers.penalties, numbers.penalty_weights, strict=True):
        found = penalty(dist, output, minibatch)
        check_shape(f'what the penalty {penalty.name!r} returned', found, 'adv', minibatch['adv'].shape)
        mean = mean_of(valid(found, weight), weight)
        loss = _add(loss, factor, mean)
        metrics[f'penalty_{penalty.name}'] = mean.detach()
    return loss, metrics


def _by_formula(
    dist: ActionDist, logit: Tensor, minibatch: Minibatch, numbers: PolicyNumbers, proximal: Tensor | None
) -> tuple[Tensor, Found]:
    """policy_loss - entropy_weight * entropy, and the metrics."""
    action, weight = minibatch['action'], minibatch.get('weight', None)
    log_new, log_old = dist.log_prob(logit, action), minibatch['log_old']
    log_near, importance, surrogate = log_old, None, numbers.surrogate
    if proximal is not None:
        from zoo.rl_utils.surrogates import importance_of

        log_near = dist.log_prob(proximal, action)
        importance = importance_of(log_new, log_old, log_near, weight, numbers.rho_max)
    if surrogate != CLIP or numbers.dual_clip is not None or importance is not None:
        from zoo.rl_utils.surrogates import with_options

        surrogate = with_options(surrogate, numbers.dual_clip, importance)
    else:
        surrogate = clip
    loss, log_ratio = policy_loss(log_new, log_near, minibatch['adv'], weight, numbers.clip_ratio, surrogate)
    rows, metrics = {'log_ratio': log_ratio}, {'policy_loss': loss.detach()}
    if proximal is not None:
        rows['log_old_ratio'] = valid(log_new.detach() - log_old, weight)
    if weight is not None:
        rows['weight'] = weight
    if isinstance(numbers.entropy_weight, Tensor) or numbers.entropy_weight:
        entropy = mean_of(dist.entropy(logit), weight)
        loss, metrics['entropy'] = loss - numbers.entropy_weight * entropy, entropy.detach()
    else:
        rows['logit'] = logit.detach()
    return loss, {**metrics, 'rows': rows}


def _by_kernel(
    dist: ActionDist, logit: Tensor, minibatch: Minibatch, numbers: PolicyNumbers, proximal: Tensor | None
) -> tuple[Tensor, Found]:
    """As `_by_formula`, by a kernel where there is one for the case; that leaves no numbers of single rows."""
    from zoo.rl_utils.losses import ppo_policy_data, ppo_policy_error

    logit_old, action, weight = minibatch['logit'], minibatch['action'], minibatch.get('weight', None)
    losses, info = ppo_policy_error(
        ppo_policy_data(logit, logit_old, action, minibatch['adv'], weight),
        numbers.clip_ratio,
        numbers.dual_clip,
        dist=dist,
        surrogate=numbers.surrogate,
        logit_proximal=proximal,
        rho_max=numbers.rho_max,
    )
    loss = _add(losses.policy_loss, -numbers.entropy_weight, losses.entropy_loss)
    metrics = {'policy_loss': losses.policy_loss.detach(), 'entropy': losses.entropy_loss.detach(), **info._asdict()}
    if numbers.measure_kl:
        metrics |= _of_ratios(_log_ratio(dist, logit, logit_old, action, weight), weight)
    return loss, metrics


def _value_loss(
    output: dict[str, Tensor], minibatch: Minibatch, numbers: PolicyNumbers | ValueNumbers
) -> tuple[Tensor, Metrics]:
    """The loss, and the metrics value_loss and, where it is one that clips, value_clipfrac."""
    if 'value_logit' in output:
        error = _distribution_error(output['value_logit'], minibatch, numbers)
        return error, {'value_loss': error.detach()}
    loss, return_, weight = numbers.value_loss, minibatch['return_'], minibatch.get('weight', None)
    if loss == MSE:
        error = _squared_error(output['value'], return_, weight)
        return error, {'value_loss': error.detach()}
    from zoo.rl_utils import value_losses
    from zoo.rl_utils.losses import ppo_value_data, ppo_value_error

    data = ppo_value_data(output['value'], minibatch['value'], return_, weight)
    is_clip = loss == Part('value loss', 'clip', value_losses.clip, (('range', None),))
    error = ppo_value_error(data, numbers.clip_ratio, is_clip, None if is_clip else loss)
    metrics = {'value_loss': error.detach()}
    if clips_values(loss):
        metrics['value_clipfrac'] = _value_clipfrac(data, loss, numbers.clip_ratio)
    return error, metrics


def clips_values(value_loss: Callable[..., Tensor]) -> TypeGuard[Part]:
    """Whether a value loss is one of zoo's own whose gradient is cut beyond a range."""
    return getattr(value_loss, 'name', '') in ('clip', 'error_clip')


@torch.no_grad()
def _value_clipfrac(data: ppo_value_data, loss: Part, clip_ratio: Number) -> Tensor:
    """Share of rows beyond the range of the loss: V further than it from V_old, or (R - V)^2 larger."""
    limit = dict(loss.options).get('range')
    limit = clip_ratio if limit is None else limit
    value = data.value_new
    distance = (value - data.value_old).abs() if loss.name == 'clip' else (value - data.return_).square()
    return weighted_mean((distance > limit).to(value.dtype), data.weight)


def _distribution_error(logit: Tensor, minibatch: Columns, numbers: StepNumbers) -> Tensor:
    """Of a critic that predicts a distribution of returns."""
    error, weight = numbers.value_loss(logit, minibatch['return_'], None, None), minibatch.get('weight', None)
    return (error if weight is None else error * weight).mean()


def n_output_of(value_loss: Callable[..., Tensor]) -> int:
    """Width of the critic's output for this loss: more than 1 for a distribution of returns."""
    return getattr(value_loss, 'n_output', 1)


def _add(loss: Tensor, factor: Number, term: Tensor) -> Tensor:
    """loss + factor * term; a factor of exactly 0 drops the term, which may be infinite."""
    return loss if not isinstance(factor, Tensor) and factor == 0 else loss + factor * term


def _descend(optimizers: Sequence[Optimizer], loss: Tensor, grad_clip: Number | None) -> Tensor:
    """One step of each optimiser down the gradient of the loss; returns the norm of the whole gradient."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    backward(loss, optimizers)
    if hooks.listener is not None:
        hooks.gradient_ready(optimizers, loss)
    norms = [optimizer.step(grad_clip) for optimizer in optimizers]
    return norms[0] if len(norms) == 1 else torch.stack(norms).norm()


@torch.no_grad()
def _log_ratio(dist: ActionDist, new: Tensor, old: Tensor, action: Tensor, weight: Tensor | None) -> Tensor:
    return valid(dist.log_prob(new, action) - dist.log_prob(old, action), weight)


@torch.no_grad()
def _of_ratios(log_ratio: Tensor, weight: Tensor | None) -> Metrics:
    """The metrics kl and ratio_max of the rows with a weight."""
    ratio = ratio_of(log_ratio)
    kl = weighted_mean(ratio - 1 - log_ratio, weight)
    return {'kl': kl, 'ratio_max': valid(ratio, weight).amax(-1)}
