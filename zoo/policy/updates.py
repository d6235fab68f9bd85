"""One gradient step each, as functions of model, optimiser, minibatch and numbers; PPO and PPG are built of them."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from zoo.rl_utils.distribution import distribution_of
from zoo.rl_utils.normalizer import normalize_advantage
from zoo.rl_utils.optimizer import FlatAdam
from zoo.rl_utils.ppo import ppo_data, ppo_error


class PPOStep(NamedTuple):
    """The numbers of a `ppo_step`, schedules resolved."""

    clip_ratio: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.0
    use_value_clip: bool = False
    dual_clip: float | None = None
    grad_clip: float | None = 0.5
    measure_kl: bool = False


def ppo_step(model: Any, optimizer: FlatAdam, minibatch: TensorDict, config: PPOStep) -> dict[str, Tensor]:
    """One step on policy_loss + value_weight * value_loss - entropy_weight * entropy.

    Args:
      minibatch: [N] with obs, action, logit, value, adv, return_ and, where the rollout had invalid rows, weight;
        value and return_ in the unit of the critic's output.
      config.measure_kl: add 'kl', mean(r - 1 - log r), r = p_new / p_old.
    Returns: detached 0-dim tensors policy_loss, value_loss, entropy, approx_kl, clipfrac, grad_norm (, kl).
    """
    weight, logit_old = minibatch.get('weight', None), minibatch['logit']
    output = model.compute_actor_critic(minibatch['obs'])
    data = ppo_data(output['logit'], logit_old, minibatch['action'], output['value'], minibatch['value'],
                    minibatch['adv'], minibatch['return_'], weight)
    loss, info = ppo_error(data, config.clip_ratio, config.use_value_clip, config.dual_clip)
    optimizer.zero_grad()
    # the gradient of policy_loss + value_weight * value_loss - entropy_weight * entropy_loss, without making the sum
    one = loss.policy_loss.new_ones(())
    torch.autograd.backward([loss.policy_loss, loss.value_loss, loss.entropy_loss],
                            [one, one * config.value_weight, one * -config.entropy_weight])
    grad_norm = optimizer.step(config.grad_clip)
    metrics = {'policy_loss': loss.policy_loss.detach(), 'value_loss': loss.value_loss.detach(),
               'entropy': loss.entropy_loss.detach(), 'approx_kl': info.approx_kl,
               'clipfrac': info.clipfrac, 'grad_norm': grad_norm}
    if config.measure_kl:
        metrics['kl'] = _kl_k3(output['logit'], logit_old, minibatch['action'], weight)
    return metrics


def minibatches(
    batch: TensorDict, batch_size: int, generator: torch.Generator, normalize_adv: bool = False,
) -> Iterator[TensorDict]:
    """Each row once, in random order, in blocks of batch_size, which divides N.

    With normalize_adv, adv is normalised by its block's own moments. The rows are gathered once for all blocks, and
    the moments of all blocks are taken together: what is left per block are views.
    """
    order = torch.randperm(batch.shape[0], generator=generator).to(device=batch.device)
    blocks = batch[order].view(-1, batch_size)  # [N] -> [n_block, batch_size]
    if normalize_adv:
        blocks['adv'] = normalize_advantage(blocks['adv'], blocks.get('weight', None))
    yield from blocks.unbind(0)


@torch.no_grad()
def _kl_k3(logit_new: Any, logit_old: Any, action: Tensor, weight: Tensor | None) -> Tensor:
    dist = distribution_of(logit_new)
    log_ratio = dist.log_prob(logit_new, action) - dist.log_prob(logit_old, action)
    k3 = log_ratio.exp() - 1 - log_ratio
    return k3.mean() if weight is None else (k3 * weight).mean()
