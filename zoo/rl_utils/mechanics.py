"""What an optimiser does around its update rule: limits, accumulation, average, loss scale. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.rl_utils.update_rules import Rule

FIRST_SCALE, MIN_SCALE = 2.0**16, 1.0
N_GOOD_STEPS = 2000
"""So many steps without an overflow double the loss scale."""


class Mechanics(NamedTuple):
    """What an optimiser does around its rule; with the defaults, nothing.

    grad_clip_value: every element of the gradient is limited to -value .. value, before the limit of the norm.
    accumulate: it moves at every so many-th gradient, by their mean.
    average_decay: it keeps an average of the parameters; after t steps, one that is s steps old weighs decay ** s.
    loss_scale: the loss is multiplied by a number that adapts, so that fp16 gradients do not underflow,
      see `zoo.rl_utils.optimizer.backward`.
    """

    grad_clip_value: float | None = None
    accumulate: int = 1
    average_decay: float | None = None
    loss_scale: bool = False

    def problem(self) -> str:
        """What is out of range, in a sentence; empty if nothing is."""
        if self.grad_clip_value is not None and not self.grad_clip_value > 0:
            return f'grad_clip_value is {self.grad_clip_value} but must be > 0; leave it out for no limit'
        if self.accumulate < 1:
            return f'accumulate is {self.accumulate} but must be 1 or more gradients a step; use 1 for no accumulation'
        if self.average_decay is not None and not 0 <= self.average_decay < 1:
            return f'average_decay is {self.average_decay} but must be in [0, 1); leave it out for no average'
        return ''


def first_values(mechanics: Mechanics, param: Tensor) -> dict[str, Tensor]:
    """The tensors that an optimiser keeps for its mechanics, as they begin."""
    found: dict[str, Tensor] = {}
    if mechanics.average_decay is not None:
        found |= {'average': param.clone(), 'average_weight': torch.ones((), device=param.device)}
    if mechanics.loss_scale:
        found['loss_scale'] = torch.full((), FIRST_SCALE, device=param.device)
        found['n_good_step'] = torch.zeros((), device=param.device)
    return found


def limited(grad: Tensor, grad_clip: Any, mechanics: Mechanics, divisor: Any = None) -> tuple[Tensor, Tensor]:
    """A gradient divided by `divisor` and within the limits of its elements and of its norm; and the norm before both.

    Args: grad: [n]; grad_clip: largest norm, a number, 0-dim or None for no limit; divisor: a number, 0-dim or None.
    """
    grad = grad if divisor is None else grad / divisor
    norm = size = torch.linalg.vector_norm(grad)
    if mechanics.grad_clip_value is not None:
        grad = grad.clamp(-mechanics.grad_clip_value, mechanics.grad_clip_value)
        size = torch.linalg.vector_norm(grad)
    return (grad if grad_clip is None else grad / (size / grad_clip).clamp(min=1.0)), norm


def moved(
    rule: Rule,
    mechanics: Mechanics,
    state: Mapping[str, Tensor],
    grad: Tensor,
    lr: Any,
    finite: Tensor,
    scale: Tensor | None,
) -> dict[str, Tensor]:
    """All buffers of an optimiser after a step; as they were, but for the loss scale, where the gradient is not finite.

    Args:
      state: param, grad, the moments of the rule, step_count, and what `first_values` has.
      grad: [n], after all limits; finite: 0-dim bool.
      scale: what the loss was multiplied by, 0-dim; None: by nothing, then the loss scale stays.
    """
    new = {**state, 'grad': grad, 'step_count': state['step_count'] + 1}
    new |= rule(new, grad, lr)
    if mechanics.average_decay is not None:
        weight = mechanics.average_decay * state['average_weight']
        new['average_weight'] = weight + 1
        new['average'] = state['average'] * (weight / (weight + 1)) + new['param'] / (weight + 1)
    new = {name: torch.where(finite, x, state[name]) for name, x in new.items()}
    if scale is not None and mechanics.loss_scale:
        new['loss_scale'], new['n_good_step'] = _next_scale(scale, state['n_good_step'], finite)
    return new


def _next_scale(scale: Tensor, n_good_step: Tensor, finite: Tensor) -> tuple[Tensor, Tensor]:
    """The loss scale after a step: halved by an overflow, doubled after N_GOOD_STEPS steps without one.

    Source: Micikevicius et al. 2018, arXiv:1710.03740, sec. 3.2; torch.amp.GradScaler.
    """
    n_good_step = torch.where(finite, n_good_step + 1, 0.0)
    grows = n_good_step >= N_GOOD_STEPS
    scale = torch.where(finite, torch.where(grows, scale * 2, scale), (scale / 2).clamp(min=MIN_SCALE))
    return scale, torch.where(grows, 0.0, n_good_step)
