# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernel of `ppg_joint_error`: value loss, KL(old || new) and the gradients of both in one pass, for all cases that
`kernels.find` covers; the backward pass only scales the gradients."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.kernels import columns_of, layout_of
from zoo.rl_utils.kernels.launch import Tiling, add_programs, as_rows, bounds, counter, custom_op, flat, scalars
from zoo.rl_utils.kernels.ppo_value import value_terms
from zoo.rl_utils.kernels.tiles import choice_kl, gaussian_kl, group_bounds, load_weight


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
    """Returns (auxiliary_loss, behavioral_cloning_loss); arguments as those of the reference, logits as `param`.

    clip_ratio None: unclipped.
    """
    if clip_ratio is not None:
        clip_ratio = float(clip_ratio)
    return _JointKernel.apply(*layout_of(dist), new, old, value_new, value_old, return_, weight, clip_ratio)


class _JointKernel(torch.autograd.Function):
    """Both losses as one node of the graph; their gradients are computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, kind, nvec, new, old, value_new, value_old, return_, weight, clip_ratio
    ) -> tuple[Tensor, ...]:
        values = flat(value_new), flat(value_old), flat(return_), None if weight is None else flat(weight)
        losses, grad_value, grad = _launch(as_rows(new), as_rows(old), *values, clip_ratio, kind, nvec)
        ctx.save_for_backward(grad.view(new.shape), grad_value.view(value_new.shape))
        return tuple(scalars(losses))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_auxiliary: Tensor, grad_cloning: Tensor) -> tuple[Tensor | None, ...]:
        grad, grad_value = ctx.saved_tensors
        return None, None, grad * grad_cloning, None, grad_value * grad_auxiliary, None, None, None, None


def _fake(new: Tensor, old: Tensor, value_new: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    losses = value_new.new_empty(2, dtype=torch.float32)
    return losses, value_new.new_empty(value_new.shape), new.new_empty(new.shape)


@custom_op(
    'ppg_joint_error(Tensor new, Tensor old, Tensor value_new, Tensor value_old, Tensor return_, '
    'Tensor? weight, float? clip_ratio, str kind, int[] nvec) -> (Tensor, Tensor, Tensor)',
    _fake,
)
def _launch(new, old, value_new, value_old, return_, weight, clip_ratio, kind, nvec) -> tuple[Tensor, Tensor, Tensor]:
    """-> losses [2], gradient of the value loss in the value [N], gradient of the KL in the new logits [N, P]."""
    device = value_new.device
    n_row = new.shape[0]
    n_group = max(len(nvec), 1)
    n_column = columns_of(kind, nvec, new.shape[1])
    tiling = Tiling(n_row, n_column, device, n_group)
    losses = torch.empty(2, device=device)
    grad_value = torch.empty_like(value_new)
    grad = torch.empty(new.shape, dtype=new.dtype, device=device)
    partial = torch.empty(2 * tiling.n_program, device=device)
    inputs = new, old, value_new, value_old, return_, weight, bounds(nvec, device)
    outputs = grad_value, grad, partial, counter(device), losses
    strides = new.stride(0), old.stride(0), grad.stride(0)
    with torch.cuda.device_of(value_new):
        _forward[(tiling.n_program,)](
            *(*inputs, *outputs, n_row, n_column, n_group, *strides, 1 / n_row, clip_ratio or 0.0),
            KIND=kind,
            CLIP=clip_ratio is not None,
            HAS_WEIGHT=weight is not None,
            GROUPS=tiling.groups,
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
    bound_ptr,
    grad_value_ptr,
    grad_ptr,
    partial_ptr,
    counter_ptr,
    loss_ptr,
    n_row,
    n_column,
    n_group,
    stride,
    old_stride,
    grad_stride,
    per_row,
    clip_ratio,
    KIND: tl.constexpr,
    CLIP: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    slot = tl.arange(0, ROWS * GROUPS)
    auxiliary = tl.zeros((ROWS * GROUPS,), tl.float32)
    cloning = tl.zeros((ROWS * GROUPS,), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(n_row, ROWS), tl.num_programs(0)):
        row = tl.cast(tile, tl.int64) * ROWS + slot // GROUPS
        is_row = row < n_row
        weight = load_weight(weight_ptr, row, is_row, HAS_WEIGHT)
        share = weight * per_row
        is_value = is_row & (slot % GROUPS == 0)  # one slot of each row
        square, grad_value = value_terms(value_ptr, value_old_ptr, return_ptr, row, is_value, clip_ratio, CLIP)
        tl.store(
            grad_value_ptr + row, (grad_value * weight * per_row).to(grad_value_ptr.dtype.element_ty), mask=is_value
        )
        auxiliary += square * weight
        start = row * stride
        old_start = row * old_stride
        grad_start = row * grad_stride
        if KIND == 'gaussian':
            cloning += weight * gaussian_kl(
                new_ptr, old_ptr, grad_ptr, start, old_start, grad_start, is_row, n_column, share, COLUMNS
            )
        elif KIND == 'categorical':
            size = tl.full((ROWS,), n_column, tl.int32)
            cloning += weight * choice_kl(
                new_ptr, old_ptr, grad_ptr, start, old_start, grad_start, is_row, size, share, COLUMNS
            )
        else:
            for first in range(0, n_group, GROUPS):
                group = first + slot % GROUPS
                offset, size = group_bounds(bound_ptr, group, n_group)
                cloning += weight * choice_kl(
                    new_ptr,
                    old_ptr,
                    grad_ptr,
                    start + offset,
                    old_start + offset,
                    grad_start + offset,
                    is_row & (group < n_group),
                    size,
                    share,
                    COLUMNS,
                )
    part_ptr = partial_ptr + tl.program_id(0) * 2
    tl.store(part_ptr, 0.5 * tl.sum(auxiliary, 0) * per_row)
    tl.store(part_ptr + 1, tl.sum(cloning, 0) * per_row)
    add_programs(partial_ptr, counter_ptr, loss_ptr, 2)
