"""Update rules of optimisers: pure functions of flat buffers, which eager steps and compiled programs share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zoo.core.errors import UserError
from zoo.rl_utils.check import Number


class UpdateRule(Protocol):
    """An update rule with its options; frozen and hashable, since a compiled step depends on it."""

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of the buffers that it keeps, each laid out as the parameters; they start at 0."""

    def __call__(self, state: Mapping[str, Tensor], grad: Tensor, lr: Number) -> dict[str, Tensor]:
        """One step down a gradient.

        Args:
          state: 'param' [n], the moments [n], and 'step_count', 0-dim, which counts this step: 1 at the first.
          grad: [n], after all limits. lr: step size, a number or a 0-dim tensor.
        Returns: new tensors 'param' and of all moments; the inputs are unchanged.
        """


@dataclass(frozen=True)
class AdamRule:
    """Adam; with a weight decay AdamW, whose decay does not go through the moments.

    Source: Kingma & Ba 2015, arXiv:1412.6980; Loshchilov & Hutter 2019, arXiv:1711.05101.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-5
    weight_decay: float = 0.0

    @property
    def moments(self) -> tuple[str, ...]:
        return 'exp_avg', 'exp_avg_sq'

    def __call__(self, state: Mapping[str, Tensor], grad: Tensor, lr: Number) -> dict[str, Tensor]:
        beta1, beta2 = self.betas
        correction1, correction2 = (_one_minus_power(beta, state['step_count']) for beta in self.betas)
        exp_avg = state['exp_avg'] + (grad - state['exp_avg']) * (1 - beta1)
        exp_avg_sq = state['exp_avg_sq'] * beta2 + grad * grad * (1 - beta2)
        step_size = lr / correction1
        denominator = exp_avg_sq.sqrt() / correction2.sqrt() + self.eps
        param = decayed(state['param'], lr, self.weight_decay) - step_size * (exp_avg / denominator)
        return {'param': param, 'exp_avg': exp_avg, 'exp_avg_sq': exp_avg_sq}


@dataclass(frozen=True)
class RMSpropRule:
    """RMSprop with an epsilon outside the root, as in torch; the weight decay is added to the gradient.

    Source: Hinton 2012, lecture 6e of "Neural networks for machine learning".
    """

    alpha: float = 0.99
    eps: float = 1e-5
    momentum: float = 0.0
    weight_decay: float = 0.0

    @property
    def moments(self) -> tuple[str, ...]:
        if self.momentum:
            return ('square_avg', 'momentum_buffer')
        return ('square_avg',)

    def __call__(self, state: Mapping[str, Tensor], grad: Tensor, lr: Number) -> dict[str, Tensor]:
        if self.weight_decay:
            grad = grad + self.weight_decay * state['param']
        square_avg = state['square_avg'] * self.alpha + grad * grad * (1 - self.alpha)
        direction = grad / (square_avg.sqrt() + self.eps)
        if not self.momentum:
            return {'param': state['param'] - lr * direction, 'square_avg': square_avg}
        buffer = state['momentum_buffer'] * self.momentum + direction
        return {'param': state['param'] - lr * buffer, 'square_avg': square_avg, 'momentum_buffer': buffer}


@dataclass(frozen=True)
class SGDRule:
    """Gradient descent, with momentum if that is not 0; the weight decay is added to the gradient.

    Raises: UserError if nesterov is asked for without momentum.
    Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning".
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise UserError(
                'policy.learn.optimizer sgd got nesterov without momentum, which it looks ahead along; set momentum, e.g. 0.9'
            )

    @property
    def moments(self) -> tuple[str, ...]:
        if self.momentum:
            return ('momentum_buffer',)
        return ()

    def __call__(self, state: Mapping[str, Tensor], grad: Tensor, lr: Number) -> dict[str, Tensor]:
        if self.weight_decay:
            grad = grad + self.weight_decay * state['param']
        if not self.momentum:
            return {'param': state['param'] - lr * grad}
        buffer = state['momentum_buffer'] * self.momentum + grad
        if self.nesterov:
            direction = grad + self.momentum * buffer
        else:
            direction = buffer
        return {'param': state['param'] - lr * direction, 'momentum_buffer': buffer}


def decayed(param: Tensor, lr: Number, weight_decay: float) -> Tensor:
    """Parameters after a decoupled weight decay: param * (1 - lr * weight_decay)."""
    if weight_decay:
        return param * (1 - lr * weight_decay)
    return param


def _one_minus_power(beta: float, count: Tensor) -> Tensor:
    """1 - beta ** count, 0-dim float64, since float32 would keep few digits of e.g. 1 - 0.999."""
    # by exp, since inductor keeps exp, but not pow, out of the loop over the parameters
    log = -math.inf
    if beta:
        log = math.log(beta)
    return 1 - torch.exp(count.double() * log)
