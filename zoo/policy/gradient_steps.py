"""Gradient steps, as functions of model, distribution, optimisers, minibatch and numbers; no state of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from zoo.backend.executor import Found, SplitStep
from zoo.backend.precision import UpdatePrecision, in_precision
from zoo.core.data import Columns, Metrics, Minibatch
from zoo.core.registry import Component
from zoo.policy.hooks import gradient_ready as gradient_ready, here
from zoo.rl_utils import kernels
from zoo.rl_utils.check import EACH_SAMPLE, Number, check_returned, check_shape
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import FlatOptimizer, backward
from zoo.rl_utils.ppo import clip, clipfrac, loss_mean, mse, policy_loss, ratio_of, value_loss_of, weighted_mean, zeroed

if TYPE_CHECKING:
    from zoo.rl_utils.losses import ppo_value_data

M = TypeVar('M', bound=Columns)
CLIP = Component('surrogate', 'clip', clip)
MSE = Component('value loss', 'mse', mse)


def forward_rows(model: nn.Module, method: str, minibatch: M) -> tuple[dict[str, Tensor], M]:
    """Runs a method of the model on a minibatch; its output by name ('logit', 'value', ..), and the minibatch."""
    found = getattr(model, method)(minibatch['obs'])
    if isinstance(found, dict):
        return found, minibatch
    return {'logit' if method == 'compute_actor' else 'value': found}, minibatch


class PolicyNumbers(NamedTuple):
    """Numbers of a step on the policy, with schedules resolved, and the components of its loss.

    surrogate, value_loss, penalties: see zoo.core.registry.COMPONENTS; penalty_weights: the factor of each penalty.
    proximal: 'behaviour'; 'recent', with logits in column 'logit_proximal'; 'ewma', the average of the first optimiser.
    rho_max: bound of p_proximal / p_old; forward: `forward_rows`, or the same for sequences.
    """

    clip_ratio: Number = 0.2
    entropy_weight: Number = 0.0
    dual_clip: Number | None = None
    grad_clip: float | None = 0.5
    measure_kl: bool = False
    value_weight: Number = 0.5
    surrogate: Callable[..., Tensor] = CLIP
    value_loss: Callable[..., Tensor] = MSE
    penalties: tuple[Component, ...] = ()
    penalty_weights: tuple[Number, ...] = ()
    proximal: str = 'behaviour'
    precision: UpdatePrecision = 'fp32'
    rho_max: Number | None = None
    forward: Callable[..., Any] = forward_rows


class GradientStep(SplitStep):
    """Gradient step of zoo itself, not a user's own.

    Attributes: kind: its name in executors other than the eager one; kind_of: the step itself. A function that wraps the
      step copies both attributes; its kind_of is then another object, which tells executors that it is a wrapper.
    """

    __name__: str

    def __init__(
        self, take: Callable[..., Found], kind: str, prepare: Callable[[ActionDist, Columns], Columns] | None = None
    ) -> None:
        super().__init__(take, prepare or checked, step_summary)
        update_wrapper(self, take)
        self.kind, self.kind_of = kind, self

    def __reduce__(self) -> str:
        return self.kind_of.__name__  # pickled by its name, as functions are


def checked(dist: ActionDist, columns: Columns) -> Columns:
    """Checks that columns with one number per sample have the same shape: [N, 1] and [N] would broadcast to [N, N]."""
    lead = columns['logit'].shape[:-1] if 'logit' in columns else columns['return_'].shape
    for name in ('adv', 'return_', 'value', 'weight'):
        if name in columns and columns[name].shape != lead:
            check_shape(name, columns[name], 'logit_new without its last dimension', lead)
    return columns


@torch.no_grad()
def with_log_old(dist: ActionDist, columns: Columns) -> Columns:
    """Checks the columns, and adds log p_old(action) of each sample, unless a kernel computes the loss."""
    checked(dist, columns)
    if kernels.ENABLED and kernels.reach(columns['logit']):
        return columns
    return {**columns, 'log_old': dist.log_prob(columns['logit'], columns['action'])}


@torch.no_grad()
def step_summary(found: Found, dist: ActionDist, numbers: PolicyNumbers) -> Metrics:
    """Computes the metrics of one minibatch, or of several at once.

    If a step leaves 'rows', this adds approx_kl and clipfrac, and entropy, kl and ratio_max if they are needed. Rows have
    log_ratio [..., N]; log_old_ratio, if log_ratio is to another policy than the behaviour policy; weight, if there is one;
    logit [..., N, P], if the loss has no entropy.
    """
    rows, metrics = found.get('rows'), {name: x for name, x in found.items() if name != 'rows'}
    if rows is None:
        return metrics
    log_ratio, weight = rows['log_ratio'], rows.get('weight')
    high = dict(getattr(numbers.surrogate, 'options', ())).get('high', numbers.clip_ratio)  # of an asymmetric clip
    old_ratio = rows.get('log_old_ratio', log_ratio)
    if 'logit' in rows:
        entropy = dist.entropy(rows['logit'])
        metrics['entropy'] = (entropy if weight is None else entropy * weight).mean(-1)
    metrics['approx_kl'] = weighted_mean(-old_ratio, weight)
    metrics['clipfrac'] = clipfrac(log_ratio, weight, numbers.clip_ratio, high)
    return metrics | _of_ratios(old_ratio, weight) if numbers.measure_kl else metrics


@partial(GradientStep, kind='PPO', prepare=with_log_old)
def ppo_step(
    model: nn.Module,
    dist: ActionDist,
    optimizers: Sequence[FlatOptimizer],
    minibatch: Minibatch,
    numbers: PolicyNumbers,
) -> Found:
    """One step on policy_loss + value_weight * value_loss - entropy_weight * entropy.

    Args:
      minibatch: obs, action, logit, value, adv, return_ and, where the rollout had invalid rows,
        weight; value and return_ in the unit of the critic's output.
      numbers.measure_kl: add 'kl', the weighted mean of r - 1 - log r, r = p_new / p_old, and 'ratio_max', the largest r.
    Returns: detached 0-dim tensors policy_loss, value_loss, entropy, approx_kl, clipfrac, grad_norm (, kl, ratio_max),
      penalty_<name> of each penalty, and value_clipfrac where the value loss is clipped.
    """
    proximal = _averaged_logit(model, optimizers, minibatch, numbers)
    output, minibatch = forward(model, 'compute_actor_critic', minibatch, numbers)
    loss, metrics = policy_terms(dist, output, minibatch, numbers, proximal)
    value_loss, of_value = value_loss_terms(output, minibatch, numbers.value_loss, numbers.clip_ratio)
    loss = added(loss, numbers.value_weight, value_loss)
    return {**metrics, **of_value, 'grad_norm': descend(optimizers, loss, numbers.grad_clip)}


@partial(GradientStep, kind='POLICY', prepare=with_log_old)
def policy_step(
    model: nn.Module,
    dist: ActionDist,
    optimizers: Sequence[FlatOptimizer],
    minibatch: Minibatch,
    numbers: PolicyNumbers,
) -> Found:
    """Like `ppo_step`, but for the policy alone: value and return_ are not read, and the critic is not trained."""
    proximal = _averaged_logit(model, optimizers, minibatch, numbers)
    output, minibatch = forward(model, 'compute_actor', minibatch, numbers)
    loss, metrics = policy_terms(dist, output, minibatch, numbers, proximal)
    return {**metrics, 'grad_norm': descend(optimizers, loss, numbers.grad_clip)}


def forward(model: nn.Module, method: str, minibatch: Columns, numbers: Any) -> tuple[dict[str, Tensor], Any]:
    """Runs a method of the model on a minibatch; returns its output and the rows. numbers: with `precision` and `forward`."""
    model = model if numbers.precision == 'fp32' else in_precision(model, numbers.precision)
    return numbers.forward(model, method, minibatch)


def _averaged_logit(
    model: nn.Module, optimizers: Sequence[FlatOptimizer], minibatch: Minibatch, numbers: PolicyNumbers
) -> Tensor | None:
    """Logits [N, P] of the averaged policy, as rows, for proximal 'ewma'; None for the other proximal policies."""
    if numbers.proximal in ('behaviour', 'recent'):
        return None
    from zoo.backend.trace import replaced

    with torch.no_grad(), replaced(model, optimizers[0].averaged):
        return forward(model, 'compute_actor', minibatch, numbers)[0]['logit']


def policy_terms(
    dist: ActionDist, output: dict[str, Tensor], minibatch: Minibatch, numbers: PolicyNumbers, proximal: Tensor | None
) -> tuple[Tensor, Found]:
    """Returns the loss, and the metrics policy_loss, penalty_<name>, and 'rows' or, from a kernel, the metrics of the rows."""
    if 'logit_proximal' in minibatch:  # of the policy at the start of the update
        proximal = minibatch['logit_proximal']  # type: ignore[typeddict-item]
    weight = minibatch.get('weight', None)
    terms = _by_kernel if kernels.ENABLED and kernels.reach(output['logit']) else _by_formula
    loss, metrics = terms(dist, output['logit'], minibatch, numbers, proximal)
    for penalty, factor in zip(numbers.penalties, numbers.penalty_weights, strict=True):
        found = penalty(dist, output, minibatch)
        check_returned(f'the penalty {penalty.name!r}', found, minibatch['adv'].shape, EACH_SAMPLE)
        mean = loss_mean(zeroed(found, weight), weight)
        loss = added(loss, factor, mean)
        metrics[f'penalty_{penalty.name}'] = mean.detach()
    return loss, metrics


def _by_formula(
    dist: ActionDist, logit: Tensor, minibatch: Minibatch, numbers: PolicyNumbers, proximal: Tensor | None
) -> tuple[Tensor, Found]:
    """policy_loss - entropy_weight * entropy, and the metrics."""
    action, weight = minibatch['action'], minibatch.get('weight', None)
    log_new, log_old = dist.log_prob(logit, action), minibatch['log_old']
    log_proximal = log_old if proximal is None else dist.log_prob(proximal, action)
    surrogate = _surrogate_of(numbers, log_new, log_old, log_proximal, weight)
    loss, log_ratio = policy_loss(log_new, log_proximal, minibatch['adv'], weight, numbers.clip_ratio, surrogate)
    rows, metrics = {'log_ratio': log_ratio}, {'policy_loss': loss.detach()}
    if proximal is not None:
        rows['log_old_ratio'] = zeroed(log_new.detach() - log_old, weight)
    if weight is not None:
        rows['weight'] = weight
    if isinstance(numbers.entropy_weight, Tensor) or numbers.entropy_weight:
        entropy = loss_mean(dist.entropy(logit), weight)
        loss, metrics['entropy'] = loss - numbers.entropy_weight * entropy, entropy.detach()
    else:
        rows['logit'] = logit.detach()
    return loss, {**metrics, 'rows': rows}


def _surrogate_of(
    numbers: PolicyNumbers, log_new: Tensor, log_old: Tensor, log_proximal: Tensor, weight: Tensor | None
) -> Callable[..., Tensor]:
    """The surrogate with its dual clip, weighed by p_proximal / p_old if the proximal policy is not the behaviour policy."""
    if log_proximal is log_old and numbers.surrogate == CLIP and numbers.dual_clip is None:
        return clip
    from zoo.rl_utils.surrogates import gain_of, importance_of

    importance = (
        None if log_proximal is log_old else importance_of(log_new, log_old, log_proximal, weight, numbers.rho_max)
    )
    return partial(gain_of, numbers.surrogate, numbers.dual_clip, importance)


def _by_kernel(
    dist: ActionDist, logit: Tensor, minibatch: Minibatch, numbers: PolicyNumbers, proximal: Tensor | None
) -> tuple[Tensor, Found]:
    """Like `_by_formula`, by a kernel, if there is one for the case; it returns metrics, but no 'rows'."""
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
    loss = added(losses.policy_loss, -numbers.entropy_weight, losses.entropy_loss)
    metrics = {'policy_loss': losses.policy_loss.detach(), 'entropy': losses.entropy_loss.detach(), **info._asdict()}
    if numbers.measure_kl:
        with torch.no_grad():
            log_ratio = dist.log_prob(logit, action) - dist.log_prob(logit_old, action)
        metrics |= _of_ratios(zeroed(log_ratio, weight), weight)
    return loss, metrics


def value_loss_terms(
    output: dict[str, Tensor], minibatch: Minibatch, loss: Callable[..., Tensor], clip_ratio: Number
) -> tuple[Tensor, Metrics]:
    """Returns the loss, and the metrics value_loss and, for a loss that clips, value_clipfrac."""
    return_, weight = minibatch['return_'], minibatch.get('weight', None)
    if 'value_logit' in output:  # of a critic that predicts a distribution of returns
        error = loss_mean(loss(output['value_logit'], return_, None, None), weight)
        return error, {'value_loss': error.detach()}
    if loss == MSE and not (kernels.ENABLED and kernels.reach(output['value'])):
        error = value_loss_of(output['value'], return_, weight)
        return error, {'value_loss': error.detach()}
    from zoo.rl_utils.losses import ppo_value_data, ppo_value_error

    if loss == MSE:
        error = ppo_value_error(ppo_value_data(output['value'], return_, return_, weight), use_value_clip=False)
        return error, {'value_loss': error.detach()}
    data = ppo_value_data(output['value'], minibatch['value'], return_, weight)
    clips_at_ratio = clips_values(loss) and loss.name == 'clip' and loss.options == (('range', None),)
    error = ppo_value_error(data, clip_ratio, clips_at_ratio, None if clips_at_ratio else loss)
    metrics = {'value_loss': error.detach()}
    if clips_values(loss):
        metrics['value_clipfrac'] = _value_clipfrac(data, loss, clip_ratio)
    return error, metrics


def clips_values(value_loss: Callable[..., Tensor]) -> TypeGuard[Component]:
    """Whether a value loss is one of zoo's own whose gradient is cut beyond a range."""
    return getattr(value_loss, 'name', '') in ('clip', 'error_clip')


@torch.no_grad()
def _value_clipfrac(data: ppo_value_data, loss: Component, clip_ratio: Number) -> Tensor:
    """Share of rows outside the range: |V - V_old| > range for loss 'clip', (R - V)^2 > range for 'error_clip'."""
    limit = dict(loss.options).get('range')
    limit = clip_ratio if limit is None else limit
    value = data.value_new
    distance = (value - data.value_old).abs() if loss.name == 'clip' else (value - data.return_).square()
    return weighted_mean((distance > limit).to(value.dtype), data.weight)


def n_output_of(value_loss: Callable[..., Tensor]) -> int:
    """Width of the critic's output for this loss: more than 1 for a distribution of returns."""
    return getattr(value_loss, 'n_output', 1)


def added(loss: Tensor, factor: Number, term: Tensor) -> Tensor:
    """loss + factor * term; a factor of exactly 0 drops the term, which may be infinite."""
    return loss if not isinstance(factor, Tensor) and factor == 0 else loss + factor * term


def descend(optimizers: Sequence[FlatOptimizer], loss: Tensor, grad_clip: float | None) -> Tensor:
    """One step of each optimiser down the gradient of the loss; returns the norm of the whole gradient."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    backward(loss, optimizers)
    if here.listener is not None:
        gradient_ready(optimizers, loss)
    norms = [optimizer.step(grad_clip) for optimizer in optimizers]
    return norms[0] if len(norms) == 1 else torch.stack(norms).norm()


@torch.no_grad()
def _of_ratios(log_ratio: Tensor, weight: Tensor | None) -> Metrics:
    """The metrics kl and ratio_max of the rows with a weight."""
    ratio = ratio_of(log_ratio)
    kl = weighted_mean(ratio - 1 - log_ratio, weight)
    return {'kl': kl, 'ratio_max': zeroed(ratio, weight).amax(-1)}
