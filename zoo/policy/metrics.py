"""Metrics of a gradient step, and of a whole update, from its batch and its steps; docs/metrics.md lists them all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.backend.step import Found, LossSpec, StepNumbers
from zoo.core.data import Columns, Metrics
from zoo.core.errors import shown
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.ppo import clipfrac, ratio_metrics, weighted_mean

OF_UPDATES = (
    'policy_loss value_loss entropy approx_kl clipfrac grad_norm explained_variance n_epoch skipped_step'.split()
)
"""Metrics that every update gives, except for those of losses that a policy does not have."""
MAXIMA = ('ratio_max', 'adv_abs_max')
"""Metrics that are reduced by their maximum over the steps of an update or a round; all others by their mean."""


def summary(name: str, values: Tensor) -> Tensor:
    """A metric of several steps or batches [n] as one number."""
    if name in MAXIMA:
        return values.max()
    return values.mean()


MOST_ENTRIES = 64
"""The longest list that a metric may be: each of its entries is a metric of the log."""


def scalar_metrics(metrics: Mapping[str, Any]) -> Metrics:
    """Metrics as 0-dim tensors: a list, array or tensor of K numbers named 'x' becomes 'x/0' to 'x/K-1'.

    Raises: ValueError for what is no number and no list of at most MOST_ENTRIES of them.
    """
    found: Metrics = {}
    for name, value in metrics.items():
        if isinstance(value, Tensor) and value.dim() == 0:
            found[name] = value
        else:
            found |= _entries(name, value)
    return found


def _entries(name: str, value: Any) -> Metrics:
    """The metric of a number, or those of the entries of a list."""
    x: Tensor | None = None
    if isinstance(value, Tensor):
        x = value.detach()
    elif isinstance(value, int | float | list | tuple | np.ndarray | np.generic):
        with suppress(ValueError, TypeError, RuntimeError):  # texts, lists of several lengths
            x = torch.as_tensor(value, dtype=torch.float32)
    if x is None or x.dim() > 1 or x.numel() > MOST_ENTRIES:
        raise ValueError(
            f'metric {shown(name)} is {shown(value)} but must be a number, or a list of at most {MOST_ENTRIES} numbers; give '
            "its mean, or job.log(name, values, reduce='histogram')"
        )
    if x.dim() == 0:
        return {name: x}
    return {f'{name}/{i}': entry for i, entry in enumerate(x.unbind())}


def summaries(metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Applies `summary` to each metric [n]; takes all means in one operation."""
    means = [name for name in metrics if name not in MAXIMA]
    if len({(x.device, x.dtype, x.shape) for x in map(metrics.__getitem__, means)}) != 1:  # from a user's own step
        return {name: summary(name, x) for name, x in metrics.items()}
    found = torch.stack([metrics[name] for name in means]).mean(1).unbind()
    by_name = dict(zip(means, found, strict=True))
    return {name: by_name[name] if name in by_name else summary(name, x) for name, x in metrics.items()}


@torch.no_grad()
def step_summary(results: Found, dist: ActionDist, loss: LossSpec, numbers: StepNumbers) -> Metrics:
    """Computes the metrics of one minibatch, or of several at once, from what `zoo.policy.ppo.policy_terms` left.

    If a step leaves 'rows', this adds approx_kl and clipfrac, and entropy, kl and ratio_max if they are needed. Rows have
    log_ratio [..., N]; log_old_ratio, if log_ratio is to another policy than the behaviour policy; weight, if there is one;
    logit [..., N, P], if the loss has no entropy.
    """
    rows = results.get('rows')
    metrics = {name: x for name, x in results.items() if name != 'rows'}
    if rows is None:
        return metrics
    log_ratio = rows['log_ratio']
    old_ratio = rows.get('log_old_ratio', log_ratio)
    weight = rows.get('weight')
    high = dict(getattr(loss.surrogate, 'options', ())).get('high', numbers.clip_ratio)  # of an asymmetric clip
    if 'logit' in rows:
        entropy = dist.entropy(rows['logit'])
        if weight is not None:
            entropy = entropy * weight
        metrics['entropy'] = entropy.mean(-1)
    metrics['approx_kl'] = weighted_mean(-old_ratio, weight)
    metrics['clipfrac'] = clipfrac(log_ratio, weight, numbers.clip_ratio, high)
    if loss.measure_kl:
        metrics |= ratio_metrics(old_ratio, weight)
    return metrics


def over_ranks(name: str, values: Sequence[float]) -> float:
    """A metric of several ranks as one number: the largest of maxima, the least of minima, else the mean; NaN if one is NaN."""
    total = sum(values)
    if math.isnan(total):
        return total
    if name in MAXIMA or name.endswith('_max'):
        return max(values)
    if name.endswith('_min'):
        return min(values)
    return total / len(values)


def total_loss(metrics: Metrics, loss: LossSpec, numbers: StepNumbers) -> Tensor:
    """The loss that the steps of an update minimised: policy_loss, value_loss, entropy and penalties with their weights.

    total_loss = policy_loss + value_weight * value_loss - entropy_weight * entropy + sum of weight * penalty

    Args: metrics: means over the steps; a loss that is missing, or has the weight 0, is left out.
    """
    terms = [('value_loss', numbers.value_weight), ('entropy', -numbers.entropy_weight)]
    for term, weight in zip(loss.terms, numbers.term_weights, strict=True):
        terms.append((f'penalty_{term.name}', weight))
    total = metrics['policy_loss']
    for name, weight in terms:
        if weight and name in metrics:  # 0 * inf is NaN
            total = total + weight * metrics[name]
    return total


def adv_abs_max(batch: Columns) -> Tensor:
    """The largest |advantage| of the rows with a weight above 0, before any normalisation."""
    adv = batch['adv']
    weight = batch.get('weight', None)
    return (adv if weight is None else torch.where(weight > 0, adv, 0.0)).abs().max()


def explained_variance(batch: Columns) -> Tensor:
    """1 - Var(return - value) / Var(return): 1 is a perfect critic, 0 as good as a constant."""
    return_ = batch['return_']
    value = batch['value']
    weight = batch.get('weight', None)
    if weight is None:
        valid = None
    else:
        valid = weight > 0
    return 1 - _variance(return_ - value, valid) / _variance(return_, valid).clamp(min=1e-12)


def _variance(x: Tensor, valid: Tensor | None) -> Tensor:
    """Variance over the valid rows; indexing them would make the host wait for the device."""
    if valid is None:
        return x.var(correction=0)
    n = valid.sum().clamp(min=1)
    mean = x.where(valid, 0.0).sum() / n
    return (x - mean).square().where(valid, 0.0).sum() / n
