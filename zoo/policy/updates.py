"""One gradient step each, as functions of model, optimiser, minibatch and numbers; PPO and PPG are built of them.

They run as they stand, or traced and compiled (zoo.backend.graph): then numbers of the config are 0-dim tensors, so
what depends on one is written without asking for its value, and optimisers are stand-ins for `FlatAdam`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from zoo.core.transfer import send
from zoo.model.pullback import with_pullback
from zoo.policy.base import Metrics
from zoo.rl_utils.distribution import Logit, distribution_of
from zoo.rl_utils.normalizer import normalize_advantage
from zoo.rl_utils.ppg import ppg_data, ppg_joint_error
from zoo.rl_utils.ppo import (
    Number,
    Slopes,
    is_zero,
    ppo_policy_data,
    ppo_policy_slopes,
    ppo_value_data,
    ppo_value_error,
    ppo_value_slopes,
)

Minibatch = Mapping[str, Any]  # tensors [N, ...], or as 'logit' a mapping of such; a TensorDict will do


class StepConfig(NamedTuple):
    """The numbers of a step, schedules resolved; a step reads those that it has a use for."""

    clip_ratio: Number = 0.2
    value_weight: Number = 0.5
    entropy_weight: Number = 0.0
    use_value_clip: bool = False
    dual_clip: Number | None = None
    grad_clip: Number | None = 0.5
    measure_kl: bool = False
    kl_penalty: Number | None = None  # in place of clipping: factor of KL(old || new)
    bc_weight: Number = 1.0  # auxiliary phase: factor of KL(old || new)


class Optimizer(Protocol):
    """What a step needs of a `FlatAdam`."""

    def zero_grad(self) -> None:
        """Sets the gradient to zero."""

    def step(self, grad_clip: Any = None) -> Tensor:
        """One step with the accumulated gradient, limited to a norm of grad_clip; returns the norm before that."""


def ppo_step(model: Any, optimizer: Optimizer, minibatch: Minibatch, config: StepConfig) -> Metrics:
    """One step on policy_loss + value_weight * value_loss - entropy_weight * entropy.

    Args:
      minibatch: [N] with obs, action, logit, value, adv, return_ and, where the rollout had invalid rows, weight;
        value and return_ in the unit of the critic's output.
      config.measure_kl: add 'kl', mean(r - 1 - log r), r = p_new / p_old.
    Returns: detached 0-dim tensors policy_loss, value_loss, entropy, approx_kl, clipfrac, grad_norm (, kl).
    """
    output, pull = with_pullback(model, 'compute_actor_critic', minibatch['obs'])
    slopes, metrics = _policy_slopes(output['logit'], minibatch, config)
    value_slopes, value_metrics = _value_slopes(output['value'], minibatch, config, config.value_weight)
    grad_norm = _descend([optimizer], pull, [*slopes, *value_slopes], config.grad_clip)
    return {**metrics, **value_metrics, 'grad_norm': grad_norm}


def policy_step(model: Any, optimizer: Optimizer, minibatch: Minibatch, config: StepConfig) -> Metrics:
    """As `ppo_step`, of the policy alone: neither value nor return_ is read, nothing of the critic moves."""
    logit, pull = with_pullback(model, 'compute_actor', minibatch['obs'])
    slopes, metrics = _policy_slopes(logit, minibatch, config)
    return {**metrics, 'grad_norm': _descend([optimizer], pull, slopes, config.grad_clip)}


def value_step(model: Any, optimizer: Optimizer, minibatch: Minibatch, config: StepConfig) -> Metrics:
    """One step of the critic alone on value_loss; returns value_loss and value_grad_norm."""
    value, pull = with_pullback(model, 'compute_critic', minibatch['obs'])
    slopes, metrics = _value_slopes(value, minibatch, config, 1.0)
    return {**metrics, 'value_grad_norm': _descend([optimizer], pull, slopes, config.grad_clip)}


def aux_step(model: Any, optimizers: Sequence[Optimizer], minibatch: Minibatch, config: StepConfig) -> Metrics:
    """One step of PPG's auxiliary phase, on auxiliary_loss + bc_weight * behavioral_cloning_loss + aux_value_loss.

    auxiliary_loss is that of the value head on the policy's trunk, aux_value_loss that of the critic, both
    0.5 * mean((R - V)^2); the cloning loss is mean(KL(old || new)).

    Args: minibatch: [N] with obs, return_ (in the unit of the critic's output), logit (of the policy as the phase
      began) and, where there were invalid rows, weight; optimizers: one for each buffer of parameters.
    Returns: detached 0-dim tensors auxiliary_loss, behavioral_cloning_loss, aux_value_loss, aux_grad_norm.
    Source: Cobbe et al. 2020, arXiv:2009.04416, algorithm 1.
    """
    return_, weight = minibatch['return_'], minibatch.get('weight', None)
    output, pull = with_pullback(model, 'compute_aux', minibatch['obs'])
    joint = ppg_joint_error(
        ppg_data(output['logit'], minibatch['logit'], None, output['aux_value'], return_, return_, weight),
        use_value_clip=False,
    )
    value_loss = ppo_value_error(ppo_value_data(output['value'], return_, return_, weight), use_value_clip=False)
    slopes: Slopes = [(joint.auxiliary_loss, 1.0), (joint.behavioral_cloning_loss, config.bc_weight), (value_loss, 1.0)]
    grad_norm = _descend(optimizers, pull, slopes, config.grad_clip)
    return {
        'auxiliary_loss': joint.auxiliary_loss.detach(),
        'aux_value_loss': value_loss.detach(),
        'behavioral_cloning_loss': joint.behavioral_cloning_loss.detach(),
        'aux_grad_norm': grad_norm,
    }


def minibatches(
    batch: TensorDict,
    batch_size: int,
    generator: torch.Generator,
    normalize_adv: bool = False,
) -> Iterator[dict[str, Any]]:
    """Each row once, in random order, in blocks of batch_size, which divides N.

    With normalize_adv, adv is normalised by its block's own moments. The rows are gathered once for all blocks, and
    the moments of all blocks are taken together: what is left per block are views, in plain dicts.
    """
    order = torch.randperm(batch.shape[0], generator=generator, device=generator.device)
    if batch.device is not None:
        order = send(order, batch.device)

    def gather(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.index_select(0, order).view(-1, batch_size, *x.shape[1:])  # [N, ...] -> [n_block, batch_size, ...]
        return {name: gather(part) for name, part in x.items()}

    blocks = gather(batch)
    if normalize_adv:
        blocks['adv'] = normalize_advantage(blocks['adv'], blocks.get('weight'))
    yield from _each_block(blocks)


def _each_block(blocks: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """{name: [n_block, ...], or a dict of such} -> n_block dicts of views."""
    columns = [x.unbind() if isinstance(x, Tensor) else _each_block(x) for x in blocks.values()]
    for parts in zip(*columns, strict=True):
        yield dict(zip(blocks, parts, strict=True))


def _policy_slopes(logit: Logit, minibatch: Minibatch, config: StepConfig) -> tuple[Slopes, Metrics]:
    logit_old, weight = minibatch['logit'], minibatch.get('weight', None)
    data = ppo_policy_data(logit, logit_old, minibatch['action'], minibatch['adv'], weight)
    clip_ratio = config.clip_ratio if config.kl_penalty is None else math.inf
    slopes, policy_loss, entropy, info = ppo_policy_slopes(data, clip_ratio, config.dual_clip, config.entropy_weight)
    metrics = {'policy_loss': policy_loss, 'entropy': entropy, 'approx_kl': info.approx_kl, 'clipfrac': info.clipfrac}
    if config.kl_penalty is not None:
        kl = distribution_of(logit).kl(logit_old, logit)
        slopes.append(((kl if weight is None else kl * weight).mean(), config.kl_penalty))
    if config.measure_kl:
        metrics['kl'] = _kl_k3(logit, logit_old, minibatch['action'], weight)
    return slopes, metrics


def _value_slopes(value: Tensor, minibatch: Minibatch, config: StepConfig, factor: Number) -> tuple[Slopes, Metrics]:
    data = ppo_value_data(value, minibatch['value'], minibatch['return_'], minibatch.get('weight', None))
    slopes, loss = ppo_value_slopes(data, config.clip_ratio, config.use_value_clip, factor)
    return slopes, {'value_loss': loss}


def _descend(
    optimizers: Sequence[Optimizer], pull: Callable[[Slopes], None], slopes: Slopes, grad_clip: Number | None
) -> Tensor:
    """One step with the gradient that a backward pass from there finds; returns the norm of the gradient."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    pull([(x, slope) for x, slope in slopes if not is_zero(slope)])  # 0 times an infinite one would be NaN
    norms = [optimizer.step(grad_clip) for optimizer in optimizers]
    return norms[0] if len(norms) == 1 else torch.stack(norms).norm()


@torch.no_grad()
def _kl_k3(logit_new: Any, logit_old: Any, action: Tensor, weight: Tensor | None) -> Tensor:
    dist = distribution_of(logit_new)
    log_ratio = dist.log_prob(logit_new, action) - dist.log_prob(logit_old, action)
    k3 = log_ratio.exp() - 1 - log_ratio
    return k3.mean() if weight is None else (k3 * weight).mean()
