# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels of `ppo_policy_error`: surrogate (clip or SPO), entropy and metrics in one pass, for all cases that `find` covers.

The forward launch reads all inputs once. It writes the four sums and, for each row, d policy_loss / d log p_new. The
backward launch reads the new logits again, and writes their gradient from that number and the gradient of the entropy.
There are two launches because the factors of the policy loss and of the entropy loss are known only in the backward pass: a
single launch would have to write two gradients, and move 7 times the size of the logits in all. Two launches move 4 times.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.kernels import columns_of, layout_of, part_name
from zoo.rl_utils.kernels.launch import Tiling, add_programs, as_rows, bounds, counter, custom_op, flat, scalars
from zoo.rl_utils.kernels.tiles import (
    choice_terms,
    choice_terms_grad,
    choices_terms,
    gaussian_terms,
    gaussian_terms_grad,
    group_bounds,
    load_weight,
)

_MAX_LOG_RATIO = tl.constexpr(88.0)  # these two as in zoo.rl_utils.ppo
_MIN_WEIGHT = tl.constexpr(1e-30)


def apply(
    dist: ActionDist,
    new: Tensor,
    old: Tensor,
    action: Tensor,
    adv: Tensor,
    weight: Tensor | None,
    clip_ratio: float,
    dual_clip: float | None,
    surrogate: Any = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns (policy_loss, entropy_loss, approx_kl, clipfrac); arguments as those of the reference, logits as `param`."""
    numbers = float(clip_ratio), None if dual_clip is None else float(dual_clip)
    name = part_name('ppo_policy_error', surrogate)
    return _PolicyKernel.apply(*layout_of(dist), new, old, action, adv, weight, *numbers, name)


class _PolicyKernel(torch.autograd.Function):
    """policy_loss and entropy_loss as one node of the graph, computed by the launches below."""

    @staticmethod
    def forward(
        ctx: Any, kind, nvec, new, old, action, adv, weight, clip_ratio, dual_clip, surrogate
    ) -> tuple[Tensor, ...]:
        rows = as_rows(new)
        if kind == 'categorical':
            action = flat(action)
        else:
            action = as_rows(action)
        if weight is not None:
            weight = flat(weight)
        numbers = clip_ratio, dual_clip, surrogate
        sums, slope = _launch_forward(rows, as_rows(old), action, flat(adv), weight, *numbers, kind, nvec)
        ctx.shape = new.shape
        ctx.layout = (kind, nvec)
        ctx.save_for_backward(rows, action, slope, *(() if weight is None else (weight,)))
        ctx.set_materialize_grads(False)  # for the metrics, backward gets None and not zeros
        policy_loss, entropy_loss, approx_kl, clipfrac = scalars(sums)
        ctx.mark_non_differentiable(approx_kl, clipfrac)
        return policy_loss, entropy_loss, approx_kl, clipfrac

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_policy: Tensor | None, grad_entropy: Tensor | None, *_: Any) -> tuple[Any, ...]:
        rows, action, slope, *weight = ctx.saved_tensors
        if grad_policy is None:
            grad_policy = slope.new_zeros(())
        if grad_entropy is None:
            grad_entropy = slope.new_zeros(())
        only_weight = None
        if weight:
            only_weight = weight[0]
        grad = _launch_backward(rows, action, slope, only_weight, grad_policy, grad_entropy, *ctx.layout)
        return None, None, grad.view(ctx.shape), *(None,) * 7


def _fake_forward(new: Tensor, old: Tensor, action: Tensor, adv: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return adv.new_empty(4, dtype=torch.float32), adv.new_empty(adv.shape, dtype=torch.float32)


@custom_op(
    'ppo_policy_error(Tensor new, Tensor old, Tensor action, Tensor adv, Tensor? weight, float clip_ratio, '
    'float? dual_clip, str surrogate, str kind, int[] nvec) -> (Tensor, Tensor)',
    _fake_forward,
)
def _launch_forward(
    new, old, action, adv, weight, clip_ratio, dual_clip, surrogate, kind, nvec
) -> tuple[Tensor, Tensor]:
    """-> sums [4]: both losses, both metrics; slope [N]: d policy_loss / d log p_new."""
    n_row = new.shape[0]
    n_column = columns_of(kind, nvec, new.shape[1])
    n_group = max(len(nvec), 1)
    tiling = Tiling(n_row, n_column, adv.device, n_group)
    sums = torch.empty(4, device=adv.device)
    slope = torch.empty(n_row, device=adv.device)
    partial = torch.empty(4 * tiling.n_program, device=adv.device)
    weight_sum = None
    if weight is not None:
        weight_sum = weight.sum(dtype=torch.float32)  # the metrics are weighted means
    inputs = new, old, action, adv, weight, weight_sum, bounds(nvec, adv.device)
    outputs = slope, partial, counter(adv.device), sums
    strides = new.stride(0), old.stride(0), action.stride(0)
    numbers = 1 / n_row, 1 - clip_ratio, 1 + clip_ratio, dual_clip or 0.0
    with torch.cuda.device_of(adv):
        _forward[(tiling.n_program,)](
            *(*inputs, *outputs, n_row, n_column, n_group, *strides, *numbers),
            KIND=kind,
            HAS_WEIGHT=weight is not None,
            HAS_DUAL=dual_clip is not None,
            SURROGATE=surrogate,
            GROUPS=tiling.groups,
            **tiling.constants,
        )
    return sums, slope


@custom_op(
    'ppo_policy_error_backward(Tensor new, Tensor action, Tensor slope, Tensor? weight, Tensor grad_policy, '
    'Tensor grad_entropy, str kind, int[] nvec) -> Tensor',
    lambda new, *_: new.new_empty(new.shape),
)
def _launch_backward(new, action, slope, weight, grad_policy, grad_entropy, kind, nvec) -> Tensor:
    """-> the gradient in `new`, [N, P], in the dtype of `new`."""
    n_row = new.shape[0]
    n_column = columns_of(kind, nvec, new.shape[1])
    n_group = max(len(nvec), 1)
    tiling = Tiling(n_row, n_column, slope.device, n_group)
    grad = torch.empty(new.shape, dtype=new.dtype, device=new.device)
    tensors = new, action, slope, weight, bounds(nvec, slope.device), grad_policy, grad_entropy, grad
    strides = new.stride(0), action.stride(0), grad.stride(0)
    with torch.cuda.device_of(slope):
        _backward[(tiling.n_tile,)](
            *(*tensors, n_row, n_column, n_group, *strides, 1 / n_row),
            KIND=kind,
            HAS_WEIGHT=weight is not None,
            GROUPS=tiling.groups,
            **tiling.constants,
        )
    return grad


@triton.jit
def _forward(
    new_ptr,
    old_ptr,
    action_ptr,
    adv_ptr,
    weight_ptr,
    weight_sum_ptr,
    bound_ptr,
    slope_ptr,
    partial_ptr,
    counter_ptr,
    sum_ptr,
    n_row,
    n_column,
    n_group,
    stride,
    old_stride,
    action_stride,
    per_row,
    low,
    high,
    dual_clip,
    KIND: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_DUAL: tl.constexpr,
    SURROGATE: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    policy = tl.zeros((ROWS,), tl.float32)
    entropy = tl.zeros((ROWS,), tl.float32)
    kl = tl.zeros((ROWS,), tl.float32)
    clipped = tl.zeros((ROWS,), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(n_row, ROWS), tl.num_programs(0)):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        is_row = row < n_row
        start = row * stride
        old_start = row * old_stride
        if KIND == 'gaussian':
            log_ratio, row_entropy = gaussian_terms(
                new_ptr, old_ptr, action_ptr, start, old_start, row * action_stride, is_row, n_column, COLUMNS
            )
        elif KIND == 'categorical':
            action = tl.load(action_ptr + row, mask=is_row, other=0)
            size = tl.full((ROWS,), n_column, tl.int32)
            log_ratio, row_entropy = choice_terms(new_ptr, old_ptr, start, old_start, action, is_row, size, COLUMNS)
        else:
            log_ratio, row_entropy = choices_terms(
                new_ptr,
                old_ptr,
                action_ptr,
                bound_ptr,
                tile,
                n_row,
                n_group,
                stride,
                old_stride,
                action_stride,
                ROWS,
                GROUPS,
                COLUMNS,
            )
        adv = tl.load(adv_ptr + row, mask=is_row, other=0.0).to(tl.float32)
        weight = load_weight(weight_ptr, row, is_row, HAS_WEIGHT)
        log_ratio = tl.where(weight == 0.0, 0.0, log_ratio)  # in a row without weight the ratio may overflow
        surrogate, slope, outside = _surrogate(log_ratio, adv, low, high, dual_clip, HAS_DUAL, SURROGATE)
        tl.store(slope_ptr + row, -slope * weight * per_row, mask=is_row)
        policy -= surrogate * weight
        entropy += row_entropy * weight
        kl -= log_ratio * weight
        clipped += outside * weight
    if HAS_WEIGHT:
        per_weight = 1 / tl.maximum(tl.load(weight_sum_ptr), _MIN_WEIGHT)
    else:
        per_weight = per_row
    part_ptr = partial_ptr + tl.program_id(0) * 4
    tl.store(part_ptr, tl.sum(policy, 0) * per_row)
    tl.store(part_ptr + 1, tl.sum(entropy, 0) * per_row)
    tl.store(part_ptr + 2, tl.sum(kl, 0) * per_weight)
    tl.store(part_ptr + 3, tl.sum(clipped, 0) * per_weight)
    add_programs(partial_ptr, counter_ptr, sum_ptr, 4)


@triton.jit
def _backward(
    new_ptr,
    action_ptr,
    slope_ptr,
    weight_ptr,
    bound_ptr,
    grad_policy_ptr,
    grad_entropy_ptr,
    grad_ptr,
    n_row,
    n_column,
    n_group,
    stride,
    action_stride,
    grad_stride,
    per_row,
    KIND: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    slot = tl.arange(0, ROWS * GROUPS)
    row = tl.cast(tl.program_id(0), tl.int64) * ROWS + slot // GROUPS
    is_row = row < n_row
    start = row * stride
    grad_start = row * grad_stride
    weight = load_weight(weight_ptr, row, is_row, HAS_WEIGHT)
    slope = tl.load(slope_ptr + row, mask=is_row, other=0.0) * tl.load(grad_policy_ptr).to(tl.float32)
    rise = weight * per_row * tl.load(grad_entropy_ptr).to(tl.float32)
    if KIND == 'gaussian':
        gaussian_terms_grad(
            new_ptr,
            action_ptr,
            grad_ptr,
            start,
            row * action_stride,
            grad_start,
            is_row,
            n_column,
            slope,
            rise,
            COLUMNS,
        )
    elif KIND == 'categorical':
        action = tl.load(action_ptr + row, mask=is_row, other=0)
        size = tl.full((ROWS,), n_column, tl.int32)
        choice_terms_grad(new_ptr, grad_ptr, start, grad_start, action, is_row, size, slope, rise, COLUMNS)
    else:
        for first in range(0, n_group, GROUPS):
            group = first + slot % GROUPS
            is_group = is_row & (group < n_group)
            offset, size = group_bounds(bound_ptr, group, n_group)
            action = tl.load(action_ptr + row * action_stride + group, mask=is_group, other=0)
            choice_terms_grad(
                new_ptr, grad_ptr, start + offset, grad_start + offset, action, is_group, size, slope, rise, COLUMNS
            )


@triton.jit
def _surrogate(log_ratio, adv, low, high, dual_clip, HAS_DUAL: tl.constexpr, SURROGATE: tl.constexpr):
    """-> surrogate, its slope in log p_new, whether the ratio is outside the clip; subgradients are those of torch, NaN stays."""
    is_capped = log_ratio > _MAX_LOG_RATIO
    ratio = tl.exp(tl.where(is_capped, _MAX_LOG_RATIO, log_ratio))
    bounded = tl.where(ratio < low, low, tl.where(ratio > high, high, ratio))
    unclipped = ratio * adv
    if SURROGATE == 'spo':  # rA - |A| (r - 1)^2 / (2e), where 2e is the width of the range
        pull = tl.abs(adv) * (ratio - 1) / (high - low)
        surrogate = unclipped - pull * (ratio - 1)
        slope = tl.where(is_capped, 0.0, unclipped - 2 * ratio * pull)
    else:
        clipped = bounded * adv
        surrogate = tl.where(unclipped > clipped, clipped, unclipped)
        slope = tl.where(is_capped | (unclipped > clipped), 0.0, unclipped)
    if HAS_DUAL:
        bound = tl.where(adv < 0, dual_clip * adv, -float('inf'))
        slope = tl.where(surrogate < bound, 0.0, tl.where(surrogate == bound, 0.5 * slope, slope))
        surrogate = tl.where(surrogate < bound, bound, surrogate)
    outside = tl.where(ratio == ratio, (bounded != ratio).to(tl.float32), ratio)
    return surrogate, slope, outside
