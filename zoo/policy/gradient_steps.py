"""Gradient steps, as functions of model, distribution, optimisers, minibatch and numbers; and passes of steps over a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.backend.executor import Found, Numbers, SplitStep, Step, StepPlan, forward_rows
from zoo.core.data import Columns, Metrics, Minibatch, first_leaf, send
from zoo.core.ranks import ALONE, Ranks
from zoo.core.registry import DRAW_REGISTRY, Component
from zoo.core.seeding import reseed, torch_generator
from zoo.policy.execution import Execution
from zoo.policy.hooks import gradient_ready as gradient_ready, here
from zoo.policy.metrics import summaries
from zoo.rl_utils import kernels
from zoo.rl_utils.check import EACH_SAMPLE, Number, check_returned, check_shape
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import FlatOptimizer, backward
from zoo.rl_utils.ppo import (
    added,
    clip,
    clipfrac,
    loss_mean,
    mse,
    of_ratios,
    policy_loss,
    value_loss_of,
    weighted_mean,
    zeroed,
)

if TYPE_CHECKING:
    from zoo.policy.config import ActorCriticLearnConfig  # which names the draws that are registered here
    from zoo.policy.samples import Samples

CLIP = Component('surrogate', 'clip', clip)
MSE = Component('value loss', 'mse', mse)


class PolicyNumbers(NamedTuple):
    """Numbers of a step on the policy, with schedules resolved, and the components of its loss.

    surrogate, value_loss: see zoo.core.registry.COMPONENTS. terms: further terms of the loss, (distribution, output, minibatch)
      -> [N], each with its factor in term_weights.
    policy_loss: in place of `surrogate_loss`, where samples need more than a ratio; called on GPUs, too, unless it has_kernel.
    forward: `zoo.backend.executor.forward_rows`, or another function of its form.
    columns: (model, optimisers, minibatch, numbers) -> columns of rows that policy_loss reads too; None: it reads no others.
    """

    clip_ratio: Number = 0.2
    entropy_weight: Number = 0.0
    dual_clip: Number | None = None
    grad_clip: float | None = 0.5
    measure_kl: bool = False
    value_weight: Number = 0.5
    surrogate: Callable[..., Tensor] = CLIP
    value_loss: Callable[..., Tensor] = MSE
    terms: tuple[Component, ...] = ()
    term_weights: tuple[Number, ...] = ()
    policy_loss: Callable[..., tuple[Tensor, dict[str, Tensor]]] | None = None
    forward: Callable[..., Any] = forward_rows
    columns: Callable[..., dict[str, Tensor]] | None = None


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
    """Checks the columns, and adds log p_old(action) of each sample."""
    checked(dist, columns)
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
    return metrics | of_ratios(old_ratio, weight) if numbers.measure_kl else metrics


@partial(GradientStep, kind='PPO', prepare=with_log_old)
def ppo_step(
    model: nn.Module,
    dist: ActionDist,
    optimizers: Sequence[FlatOptimizer],
    minibatch: Minibatch,
    numbers: PolicyNumbers,
) -> Found:
    """One step on policy_loss + value_weight * value_loss - entropy_weight * entropy + the further terms of `numbers`.

    Args:
      minibatch: obs, action, logit, value, adv, return_ and, where the rollout had invalid rows,
        weight; value and return_ in the unit of the critic's output.
      numbers.measure_kl: add 'kl', the weighted mean of r - 1 - log r, r = p_new / p_old, and 'ratio_max', the largest r.
    Returns: detached 0-dim tensors policy_loss, value_loss, entropy, approx_kl, clipfrac, grad_norm (, kl, ratio_max),
      penalty_<name> of each penalty, and value_clipfrac where the value loss is clipped.
    """
    more = {} if numbers.columns is None else numbers.columns(model, optimizers, minibatch, numbers)
    output, minibatch = numbers.forward(model, 'compute_actor_critic', minibatch)
    loss, metrics = policy_terms(dist, output, minibatch | more, numbers)
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
    more = {} if numbers.columns is None else numbers.columns(model, optimizers, minibatch, numbers)
    output, minibatch = numbers.forward(model, 'compute_actor', minibatch)
    loss, metrics = policy_terms(dist, output, minibatch | more, numbers)
    return {**metrics, 'grad_norm': descend(optimizers, loss, numbers.grad_clip)}


def policy_terms(
    dist: ActionDist, output: dict[str, Tensor], minibatch: Mapping[str, Any], numbers: PolicyNumbers
) -> tuple[Tensor, Found]:
    """policy_loss - entropy_weight * entropy + the further terms.

    Returns: the loss; the metrics policy_loss and penalty_<name> of each further term, and 'rows', of which `step_summary`
      computes the others (a kernel computes them itself).
    """
    logit, weight = output['logit'], minibatch.get('weight', None)
    has_kernel = numbers.policy_loss is None or getattr(numbers.policy_loss, 'has_kernel', False)
    if kernels.ENABLED and has_kernel and kernels.reach(logit):
        from zoo.rl_utils.losses import policy_terms_by_kernel

        loss, metrics = policy_terms_by_kernel(dist, logit, minibatch, numbers)
    else:
        loss, rows = (numbers.policy_loss or surrogate_loss)(dist, logit, minibatch, numbers)
        metrics = {'policy_loss': loss.detach(), 'rows': rows}
        if weight is not None:
            rows['weight'] = weight
        if isinstance(numbers.entropy_weight, Tensor) or numbers.entropy_weight:
            entropy = loss_mean(dist.entropy(logit), weight)
            loss, metrics['entropy'] = loss - numbers.entropy_weight * entropy, entropy.detach()
        else:
            rows['logit'] = logit.detach()
    for term, factor in zip(numbers.terms, numbers.term_weights, strict=True):
        found = term(dist, output, minibatch)
        check_returned(f'the penalty {term.name!r}', found, minibatch['adv'].shape, EACH_SAMPLE)
        mean = loss_mean(zeroed(found, weight), weight)
        loss = added(loss, factor, mean)
        metrics[f'penalty_{term.name}'] = mean.detach()
    return loss, metrics


def surrogate_loss(
    dist: ActionDist, logit: Tensor, minibatch: Mapping[str, Any], numbers: PolicyNumbers
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the loss -mean(gain(r, A)), r = p_new / p_old; and the rows for `step_summary`, here {'log_ratio': log r}."""
    log_new, weight = dist.log_prob(logit, minibatch['action']), minibatch.get('weight', None)
    gain = clip
    if numbers.surrogate != CLIP or numbers.dual_clip is not None:
        from zoo.rl_utils.surrogates import gain_of

        gain = partial(gain_of, numbers.surrogate, numbers.dual_clip, None)
    loss, log_ratio = policy_loss(log_new, minibatch['log_old'], minibatch['adv'], weight, numbers.clip_ratio, gain)
    return loss, {'log_ratio': log_ratio}


def value_loss_terms(
    output: dict[str, Tensor], minibatch: Minibatch, loss: Callable[..., Tensor], clip_ratio: Number
) -> tuple[Tensor, Metrics]:
    """Returns the loss, and the metrics value_loss and, for a loss that clips, value_clipfrac."""
    metrics: Metrics = {}
    if loss == MSE and not (kernels.ENABLED and kernels.reach(output['value'])):
        error = value_loss_of(output['value'], minibatch['return_'], minibatch.get('weight', None))
    else:
        from zoo.rl_utils.losses import error_of_component

        error, metrics = error_of_component(output, minibatch, loss, clip_ratio)
    return error, {'value_loss': error.detach(), **metrics}


def n_output_of(value_loss: Callable[..., Tensor]) -> int:
    """Width of the critic's output for this loss: more than 1 for a distribution of returns."""
    return getattr(value_loss, 'n_output', 1)


def descend(optimizers: Sequence[FlatOptimizer], loss: Tensor, grad_clip: float | None) -> Tensor:
    """One step of each optimiser down the gradient of the loss; returns the norm of the whole gradient."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    backward(loss, optimizers)
    if here.listener is not None:
        gradient_ready(optimizers, loss)
    norms = [optimizer.step(grad_clip) for optimizer in optimizers]
    return norms[0] if len(norms) == 1 else torch.stack(norms).norm()


@DRAW_REGISTRY.register('shuffle')
def shuffle(columns: Columns, n_pass: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
    """Every entry once in each pass, in a random order."""
    n, device = len(first_leaf(columns)), generator.device
    return torch.stack([torch.randperm(n, generator=generator, device=device) for _ in range(n_pass)]), None


class Trained(NamedTuple):
    """Metrics and counts of passes over a batch.

    metrics: means over all steps, maxima for ratio_max; n_pass: number of passes, of which the last may be incomplete.
    steps: each metric for all steps, [n]; n_last: number of steps in the last pass.
    """

    metrics: Metrics
    n_pass: int
    steps: Metrics
    n_last: int

    def last(self) -> Metrics:
        """Means over the steps of the last pass."""
        return {name: x[-self.n_last :].mean() for name, x in self.steps.items()}


class Passes:
    """Runs passes of gradient steps over a batch, in minibatches.

    The order of samples in an update depends only on the seed, the rank and the number of steps before it.
    Args: cfg: the resolved section `policy.learn`; samples: gives the columns that steps read; execution: runs the steps;
      ranks: take the steps together, each on its own minibatches; training: train_iter -> context for steps.
    Attributes: train_iter: gradient steps so far; order_entries: (columns, n_pass, generator) -> rows of each pass,
      [n_pass, n], and the columns, perhaps with other weights.
    """

    def __init__(
        self,
        cfg: ActorCriticLearnConfig,
        samples: Samples,
        execution: Execution,
        seed: int,
        device: torch.device,
        ranks: Ranks = ALONE,
        training: Callable[[int], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._cfg, self._samples, self._execution, self._training = cfg, samples, execution, training
        self._seed, self._device, self._ranks = seed, device, ranks
        self.order_entries: Callable[..., tuple[Tensor, Columns]] = _shuffled
        self._generator = torch_generator(seed, 'learn', device)
        self.train_iter = 0

    def run(
        self,
        step: Step,
        optimizers: Sequence[FlatOptimizer],
        numbers: Numbers,
        n_pass: int,
        batch: Columns,
        batch_size: int | None = None,
    ) -> Trained:
        """n_pass passes over a batch [N], in minibatches of batch_size samples (None: all); `InterruptedPasses` may stop early."""
        plan = self._plan(self._samples.read_by_steps(batch), n_pass, batch_size, self._order_stream())
        found = self.steps(step, optimizers, plan, numbers)
        return Trained(summaries(found), n_pass, found, len(next(iter(found.values()))) // n_pass)

    def steps(self, step: Step, optimizers: Sequence[FlatOptimizer], plan: StepPlan, numbers: Numbers) -> Metrics:
        """Takes gradient steps, with the model in training mode; everything else uses it in eval mode."""
        with self._training(self.train_iter):
            found = self._execution.executor.run(step, optimizers, plan, numbers)
        self.train_iter += len(next(iter(found.values())))
        return found

    def permutations(self, n_pass: int, columns: Columns, device: torch.device) -> Tensor:
        """Draws a permutation of the n entries of the columns for each pass, [n_pass, n], on a device."""
        return send(shuffle(columns, n_pass, self._order_stream())[0], device)

    def _order_stream(self) -> torch.Generator:
        """The random stream of the order of samples, from the steps so far."""
        return reseed(self._generator, self._seed, 'learn', self._ranks.rank, self.train_iter)

    def _plan(self, columns: Columns, n_pass: int, batch_size: int | None, stream: torch.Generator) -> StepPlan:
        order, columns = self.order_entries(columns, n_pass, stream)
        length = self._samples.entry_len
        n_row = len(first_leaf(columns)) if batch_size is None else max(batch_size // length, 1)  # or sequences
        normalize = self._cfg.adv_norm == 'minibatch'
        return StepPlan(columns, send(order, self._device), n_row, self._device, normalize, ranks=self._ranks)


def _shuffled(columns: Columns, n_pass: int, generator: torch.Generator) -> tuple[Tensor, Columns]:
    return shuffle(columns, n_pass, generator)[0], columns
