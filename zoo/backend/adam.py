"""One step of Adam written out, for a compiler to fuse with what comes before; `FlatAdam` has torch's fused one."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.rl_utils.optimizer import AdamRates, FlatState


def adam_step(
    state: FlatState, norm: Tensor, grad_clip: float | Tensor | None, rates: AdamRates, finite: Tensor
) -> FlatState:
    """What `FlatAdam.step` does, pure and in elementwise operations, which a compiler makes one loop of.

    Args: norm: of the gradient; finite: 0-dim bool: whether to take the step, else all stays as it is.
    Returns: new values for all buffers.
    """
    scale = 1.0 if grad_clip is None else (norm / grad_clip).clamp(min=1.0)
    grad = state.grad / scale
    count = state.step_count + 1
    # in float64: of 1 - 0.999 few digits would be left; by exp, which inductor keeps out of the loop, as it does no pow
    correction1, correction2 = (
        1 - torch.exp(count * torch.as_tensor(beta, dtype=torch.float64, device=norm.device).log())
        for beta in (rates.beta1, rates.beta2)
    )
    exp_avg = state.exp_avg + (grad - state.exp_avg) * (1 - rates.beta1)
    exp_avg_sq = state.exp_avg_sq * rates.beta2 + grad * grad * (1 - rates.beta2)
    step_size = rates.lr / correction1
    denominator = exp_avg_sq.sqrt() / correction2.sqrt() + rates.eps
    param = state.param - step_size * (exp_avg / denominator)
    new = FlatState(param, grad, exp_avg, exp_avg_sq, count)
    return FlatState(*(torch.where(finite, b, a) for a, b in zip(state, new, strict=True)))
