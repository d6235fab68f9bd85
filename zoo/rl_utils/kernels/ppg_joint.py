# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels of `ppg_joint_error`: value loss, KL(old || new) and the gradients of both in one pass, for categorical and
Gaussian; the backward pass only scales."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.kernels.launch import (
    Tiling,
    add_programs,
    as_rows,
    counter,
    custom_op,
    flat,
    gaussian_rows,
    load_rows,
    load_weight,
    log_softmax,
    on_device_of,
    scalars,
    store_rows,
)
from zoo.rl_utils.kernels.ppo_value import value_terms


def apply(
    dist: ActionDist,
    new: Tensor,
    old: Tensor,
    value_new: Tensor,
    value_old: Tensor,
    return_: Tensor,
    weight: Tensor | None,
    clip_ratio: float | None,
) -> tuple[Tensor, Tensor]:
    """(auxiliary_loss, behavioral_cloning_loss); arguments as those of the reference, logits as `param`.

    clip_ratio None: unclipped.
    """
    clip_ratio = None if clip_ratio is None else float(clip_ratio)
    return _JointKernel.apply(dist.name == 'gaussian', new, old, value_new, value_old, return_, weight, clip_ratio)


class _JointKernel(torch.autograd.Function):
    """Both losses as one node of the graph; their gradients are computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        gaussian: bool,
        new: Tensor,
        old: Tensor,
        value_new: Tensor,
        value_old: Tensor,
        return_: Tensor,
        weight: Tensor | None,
        clip_ratio: float | None,
    ) -> tuple[Tensor, ...]:
        losses, grad_value, grad = _launch(
            as_rows(new),
            as_rows(old),
            flat(value_new),
            flat(value_old),
            flat(return_),
            None if weight is None else flat(weight),
            clip_ratio,
            gaussian,
        )
        ctx.save_for_backward(grad.view(new.shape), grad_value.view(value_new.shape))
        auxiliary_loss, behavioral_cloning_loss = scalars(losses)
        return auxiliary_loss, behavioral_cloning_loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_auxiliary: Tensor, grad_cloning: Tensor) -> tuple[Tensor | None, ...]:
        grad, grad_value = ctx.saved_tensors
        return None, grad * grad_cloning, None, grad_value * grad_auxiliary, None, None, None, None


def _fake(new: Tensor, old: Tensor, value_new: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    losses = value_new.new_empty(2, dtype=torch.float32)
    return losses, value_new.new_empty(value_new.shape), new.new_empty(new.shape)


@custom_op(
    'ppg_joint_error(Tensor new, Tensor old, Tensor value_new, Tensor value_old, Tensor return_, '
    'Tensor? weight, float? clip_ratio, bool gaussian) -> (Tensor, Tensor, Tensor)',
    _fake,
)
def _launch(
    new: Tensor,
    old: Tensor,
    value_new: Tensor,
    value_old: Tensor,
    return_: Tensor,
    weight: Tensor | None,
    clip_ratio: float | None,
    gaussian: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """-> losses [2], gradient of the first in the value [N], of the second in the new logits [N, P]."""
    device, n_row, n_column = value_new.device, new.shape[0], new.shape[1] // (2 if gaussian else 1)
    tiling = Tiling(n_row, n_column, device)
    losses, grad_value = torch.empty(2, device=device), torch.empty_like(value_new)
    grad = torch.empty(new.shape, dtype=new.dtype, device=device)
    partial = torch.empty(2 * tiling.n_program, device=device)
    with on_device_of(value_new):
        _forward[(tiling.n_program,)](
            new,
            old,
            value_new,
            value_old,
            return_,
            weight,
            grad_value,
            grad,
            partial,
            counter(device),
            losses,
            n_row,
            n_column,
            new.stride(0),
            old.stride(0),
            1 / n_row,
            clip_ratio or 0.0,
            GAUSSIAN=gaussian,
            CLIP=clip_ratio is not None,
            HAS_WEIGHT=weight is not None,
            **tiling.constants,
        )
    return losses, grad_value, grad


@triton.jit
def _forward(
    new_ptr,
    old_ptr,
    value_ptr,
    value_old_ptr,
    return_ptr,
    weight_ptr,
    grad_value_ptr,
    grad_ptr,
    partial_ptr,
    counter_ptr,
    loss_ptr,
    n_row,
    n_column,
    stride,
    old_stride,
    per_row,
    clip_ratio,
    GAUSSIAN: tl.constexpr,
    CLIP: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    auxiliary = tl.zeros((ROWS,), tl.float32)
    cloning = tl.zeros((ROWS,), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(n_row, ROWS), tl.num_programs(0)):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        is_row = row < n_row
        weight = load_weight(weight_ptr, row, is_row, HAS_WEIGHT)
        share = (weight * per_row)[:, None]
        square, grad_value = value_terms(value_ptr, value_old_ptr, return_ptr, row, is_row, clip_ratio, CLIP)
        grad_value = (grad_value * weight * per_row).to(grad_value_ptr.dtype.element_ty)
        tl.store(grad_value_ptr + row, grad_value, mask=is_row)
        if GAUSSIAN:
            mu, sigma = gaussian_rows(new_ptr, row, stride, is_row, n_column, COLUMNS)
            mu_old, sigma_old = gaussian_rows(old_ptr, row, old_stride, is_row, n_column, COLUMNS)
            ratio, shift = sigma_old / sigma, (mu_old - mu) / sigma
            kl = tl.sum(0.5 * (ratio * ratio + shift * shift - 1) - tl.log(ratio), 1)
            store_rows(grad_ptr, row, 2 * n_column, is_row, n_column, -shift / sigma * share, COLUMNS)
            slope = (1 - ratio * ratio - shift * shift) / sigma * share
            store_rows(grad_ptr + n_column, row, 2 * n_column, is_row, n_column, slope, COLUMNS)
        else:
            logp = log_softmax(load_rows(new_ptr, row, stride, is_row, n_column, COLUMNS, -float('inf')))
            logp_old = log_softmax(load_rows(old_ptr, row, old_stride, is_row, n_column, COLUMNS, -float('inf')))
            p_old = tl.exp(logp_old)
            is_gone = logp_old == -float('inf')  # 0 * log 0 is 0
            kl = tl.sum(p_old * (tl.where(is_gone, 0.0, logp_old) - tl.where(is_gone, 0.0, logp)), 1)
            store_rows(grad_ptr, row, n_column, is_row, n_column, (tl.exp(logp) - p_old) * share, COLUMNS)
        auxiliary += square * weight
        cloning += kl * weight
    part_ptr = partial_ptr + tl.program_id(0) * 2
    tl.store(part_ptr, 0.5 * tl.sum(auxiliary, 0) * per_row)
    tl.store(part_ptr + 1, tl.sum(cloning, 0) * per_row)
    add_programs(partial_ptr, counter_ptr, loss_ptr, 2)
