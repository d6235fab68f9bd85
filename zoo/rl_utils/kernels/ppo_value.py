# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels of `ppo_value_error`: loss and gradient in one pass; the backward pass only scales."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.rl_utils.kernels.launch import Tiling, add_programs, counter, custom_op, flat
from zoo.rl_utils.kernels.tiles import load_weight


def apply(
    value_new: Tensor, value_old: Tensor, return_: Tensor, weight: Tensor | None, clip_ratio: float | None
) -> Tensor:
    """The loss; arguments as those of the reference (clip_ratio None: unclipped)."""
    if clip_ratio is not None:
        clip_ratio = float(clip_ratio)
    return _ValueKernel.apply(value_new, value_old, return_, weight, clip_ratio)


class _ValueKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value_new, value_old, return_, weight, clip_ratio) -> Tensor:
        if weight is not None:
            weight = flat(weight)
        loss, grad = _launch(flat(value_new), flat(value_old), flat(return_), weight, clip_ratio)
        ctx.save_for_backward(grad.view(value_new.shape))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.saved_tensors[0] * grad_loss, None, None, None, None


def _fake(value_new: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return value_new.new_empty((), dtype=torch.float32), value_new.new_empty(value_new.shape)


@custom_op(
    'ppo_value_error(Tensor value_new, Tensor value_old, Tensor return_, Tensor? weight, float? clip_ratio) '
    '-> (Tensor, Tensor)',
    _fake,
)
def _launch(value_new, value_old, return_, weight, clip_ratio) -> tuple[Tensor, Tensor]:
    """-> loss, 0-dim, and its gradient [N]."""
    device = value_new.device
    n_row = value_new.numel()
    tiling = Tiling(n_row, 1, device)
    loss = torch.empty((), device=device)
    grad = torch.empty_like(value_new)
    partial = torch.empty(tiling.n_program, device=device)
    tensors = value_new, value_old, return_, weight, grad, partial, counter(device), loss
    with torch.cuda.device_of(value_new):
        _forward[(tiling.n_program,)](
            *(*tensors, n_row, 1 / n_row, clip_ratio or 0.0),
            CLIP=clip_ratio is not None,
            HAS_WEIGHT=weight is not None,
            **tiling.constants,
        )
    return loss, grad


@triton.jit
def _forward(
    new_ptr,
    old_ptr,
    return_ptr,
    weight_ptr,
    grad_ptr,
    partial_ptr,
    counter_ptr,
    loss_ptr,
    n_row,
    per_row,
    clip_ratio,
    CLIP: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    total = tl.zeros((ROWS,), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(n_row, ROWS), tl.num_programs(0)):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        is_row = row < n_row
        square, grad = value_terms(new_ptr, old_ptr, return_ptr, row, is_row, clip_ratio, CLIP)
        weight = load_weight(weight_ptr, row, is_row, HAS_WEIGHT)
        tl.store(grad_ptr + row, (grad * weight * per_row).to(grad_ptr.dtype.element_ty), mask=is_row)
        total += square * weight
    tl.store(partial_ptr + tl.program_id(0), 0.5 * tl.sum(total, 0) * per_row)
    add_programs(partial_ptr, counter_ptr, loss_ptr, 1)


@triton.jit
def value_terms(new_ptr, old_ptr, return_ptr, row, is_row, clip_ratio, CLIP: tl.constexpr):
    """-> (R - V)^2, or with CLIP the larger of it and its clipped version; and half its derivative in V."""
    value = tl.load(new_ptr + row, mask=is_row, other=0.0).to(tl.float32)
    return_ = tl.load(return_ptr + row, mask=is_row, other=0.0).to(tl.float32)
    error = value - return_
    square = error * error
    grad = error
    if CLIP:
        value_old = tl.load(old_ptr + row, mask=is_row, other=0.0).to(tl.float32)
        change = value - value_old
        bounded = tl.where(change < -clip_ratio, -clip_ratio, tl.where(change > clip_ratio, clip_ratio, change))
        error_clipped = value_old + bounded - return_
        clipped = error_clipped * error_clipped
        # at a tie torch.max gives half to each; inside the range both terms are equal; NaN is neither larger nor smaller
        share = tl.where(square > clipped, 1.0, tl.where(square < clipped, 0.0, 0.5 + 0.0 * change))
        grad = tl.where(tl.abs(change) <= clip_ratio, error, error * share)
        square = tl.where(square > clipped, square, clipped)
    return square, grad
