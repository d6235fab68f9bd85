"""Kernels of `ppo_policy_error`: clipped surrogate, entropy and metrics in one pass, for logits and {'mu', 'sigma'}.

The forward launch reads everything once and writes, beside the four sums, d policy_loss / d log p_new of each row; the
backward launch reads the new head's output again and spreads that number, and the entropy's gradient, over the row.
The factors of the policy and of the entropy loss are known only then, so a forward launch would have to write two
gradients: 7 times the size of the logits would move in all, this way it is 4 times.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.rl_utils.distribution import Distribution, Logit, logit_parts
from zoo.rl_utils.kernels.launch import (
    Tiling,
    add_programs,
    as_rows,
    at,
    counter,
    custom_op,
    flat,
    load_rows,
    load_weight,
    log_softmax,
    on_device_of,
    scalars,
    store_rows,
)


def apply(
    dist: Distribution,
    logit_old: Logit,
    action: Tensor,
    adv: Tensor,
    weight: Tensor | None,
    clip_ratio: float,
    dual_clip: float | None,
    *parts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(policy_loss, entropy_loss, approx_kl, clipfrac); arguments as those of the reference."""
    return _PolicyKernel.apply(
        logit_parts(logit_old),
        action,
        adv,
        weight,
        float(clip_ratio),
        None if dual_clip is None else float(dual_clip),
        *parts,
    )


class _PolicyKernel(torch.autograd.Function):
    """policy_loss and entropy_loss as one node of the graph, over the launches below."""

    @staticmethod
    def forward(
        ctx: Any,
        old: tuple[Tensor, ...],
        action: Tensor,
        adv: Tensor,
        weight: Tensor | None,
        clip_ratio: float,
        dual_clip: float | None,
        *new: Tensor,
    ) -> tuple[Tensor, ...]:
        rows = [as_rows(part) for part in new]
        action = flat(action) if len(new) == 1 else as_rows(action)
        weight = None if weight is None else flat(weight)
        sums, slope = _launch_forward(
            rows, [as_rows(part) for part in old], action, flat(adv), weight, clip_ratio, dual_clip
        )
        ctx.shape, ctx.has_weight = new[0].shape, weight is not None
        ctx.save_for_backward(action, slope, *rows, *(() if weight is None else (weight,)))
        ctx.set_materialize_grads(False)  # no zeros for the metrics
        policy_loss, entropy_loss, approx_kl, clipfrac = scalars(sums)
        ctx.mark_non_differentiable(approx_kl, clipfrac)
        return policy_loss, entropy_loss, approx_kl, clipfrac

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_policy: Tensor | None, grad_entropy: Tensor | None, *_: Any) -> tuple[Any, ...]:
        action, slope, *rows = ctx.saved_tensors
        weight = rows.pop() if ctx.has_weight else None
        grad_policy = slope.new_zeros(()) if grad_policy is None else grad_policy
        grad_entropy = slope.new_zeros(()) if grad_entropy is None else grad_entropy
        grads = _launch_backward(rows, action, slope, weight, grad_policy, grad_entropy)
        return None, None, None, None, None, None, *(grad.view(ctx.shape) for grad in grads)


def _fake_forward(new: list[Tensor], old: list[Tensor], action: Tensor, adv: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return adv.new_empty(4, dtype=torch.float32), adv.new_empty(adv.shape, dtype=torch.float32)


def _fake_backward(new: list[Tensor], *_: Any) -> list[Tensor]:
    return [part.new_empty(part.shape) for part in new]


@custom_op(
    'ppo_policy_error(Tensor[] new, Tensor[] old, Tensor action, Tensor adv, Tensor? weight, float clip_ratio, '
    'float? dual_clip) -> (Tensor, Tensor)',
    _fake_forward,
)
def _launch_forward(
    new: list[Tensor],
    old: list[Tensor],
    action: Tensor,
    adv: Tensor,
    weight: Tensor | None,
    clip_ratio: float,
    dual_clip: float | None,
) -> tuple[Tensor, Tensor]:
    """-> sums [4], slope [N]: d policy_loss / d log p_new."""
    n_row, n_column = new[0].shape
    tiling = Tiling(n_row, n_column, adv.device)
    sums, slope = torch.empty(4, device=adv.device), torch.empty(n_row, device=adv.device)
    partial = torch.empty(4 * tiling.n_program, device=adv.device)
    with on_device_of(adv):
        _forward[(tiling.n_program,)](
            new[0],
            new[-1],
            old[0],
            old[-1],
            action,
            adv,
            weight,
            slope,
            partial,
            counter(adv.device),
            sums,
            n_row,
            n_column,
            new[0].stride(0),
            new[-1].stride(0),
            old[0].stride(0),
            old[-1].stride(0),
            action.stride(0),
            1 / n_row,
            1 - clip_ratio,
            1 + clip_ratio,
            dual_clip or 0.0,
            GAUSSIAN=len(new) == 2,
            HAS_WEIGHT=weight is not None,
            HAS_DUAL=dual_clip is not None,
            **tiling.constants,
        )
    return sums, slope


@custom_op(
    'ppo_policy_error_backward(Tensor[] new, Tensor action, Tensor slope, Tensor? weight, Tensor grad_policy, '
    'Tensor grad_entropy) -> Tensor[]',
    _fake_backward,
)
def _launch_backward(
    new: list[Tensor], action: Tensor, slope: Tensor, weight: Tensor | None, grad_policy: Tensor, grad_entropy: Tensor
) -> list[Tensor]:
    """-> the gradient of each part, [N, C] in its dtype."""
    n_row, n_column = new[0].shape
    tiling = Tiling(n_row, n_column, slope.device)
    grads = [torch.empty((n_row, n_column), dtype=part.dtype, device=part.device) for part in new]
    with on_device_of(slope):
        _backward[(tiling.n_tile,)](
            new[0],
            new[-1],
            action,
            slope,
            weight,
            grad_policy,
            grad_entropy,
            grads[0],
            grads[-1],
            n_row,
            n_column,
            new[0].stride(0),
            new[-1].stride(0),
            action.stride(0),
            1 / n_row,
            GAUSSIAN=len(new) == 2,
            HAS_WEIGHT=weight is not None,
            **tiling.constants,
        )
    return grads


@triton.jit
def _forward(
    new_ptr,
    sigma_ptr,
    old_ptr,
    sigma_old_ptr,
    action_ptr,
    adv_ptr,
    weight_ptr,
    slope_ptr,
    partial_ptr,
    counter_ptr,
    sum_ptr,
    n_row,
    n_column,
    stride,
    sigma_stride,
    old_stride,
    sigma_old_stride,
    action_stride,
    per_row,
    low,
    high,
    dual_clip,
    GAUSSIAN: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_DUAL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    policy = tl.zeros((ROWS,), tl.float32)
    entropy = tl.zeros((ROWS,), tl.float32)
    kl = tl.zeros((ROWS,), tl.float32)
    clipped = tl.zeros((ROWS,), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(n_row, ROWS), tl.num_programs(0)):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        is_row = row < n_row
        if GAUSSIAN:
            action = load_rows(action_ptr, row, action_stride, is_row, n_column, COLUMNS, 0.0)
            mu = load_rows(new_ptr, row, stride, is_row, n_column, COLUMNS, 0.0)
            sigma = load_rows(sigma_ptr, row, sigma_stride, is_row, n_column, COLUMNS, 1.0)
            mu_old = load_rows(old_ptr, row, old_stride, is_row, n_column, COLUMNS, 0.0)
            sigma_old = load_rows(sigma_old_ptr, row, sigma_old_stride, is_row, n_column, COLUMNS, 1.0)
            logp, row_entropy = _gaussian_terms(mu, sigma, action, is_row, n_column)
            logp_old, _ = _gaussian_terms(mu_old, sigma_old, action, is_row, n_column)
        else:
            action = tl.load(action_ptr + row, mask=is_row, other=0)
            all_logp = log_softmax(load_rows(new_ptr, row, stride, is_row, n_column, COLUMNS, -float('inf')))
            all_logp_old = log_softmax(load_rows(old_ptr, row, old_stride, is_row, n_column, COLUMNS, -float('inf')))
            logp, row_entropy = at(all_logp, action, n_column, COLUMNS), _entropy(all_logp)
            logp_old = at(all_logp_old, action, n_column, COLUMNS)
        adv = tl.load(adv_ptr + row, mask=is_row, other=0.0).to(tl.float32)
        weight = load_weight(weight_ptr, row, is_row, HAS_WEIGHT)
        log_ratio = tl.where(weight == 0.0, 0.0, logp - logp_old)  # in a row without weight the ratio may overflow
        surrogate, slope, outside = _surrogate(log_ratio, adv, low, high, dual_clip, HAS_DUAL)
        tl.store(slope_ptr + row, -slope * weight * per_row, mask=is_row)
        policy -= surrogate * weight
        entropy += row_entropy * weight
        kl -= log_ratio * weight
        clipped += outside * weight
    part_ptr = partial_ptr + tl.program_id(0) * 4
    tl.store(part_ptr, tl.sum(policy, 0) * per_row)
    tl.store(part_ptr + 1, tl.sum(entropy, 0) * per_row)
    tl.store(part_ptr + 2, tl.sum(kl, 0) * per_row)
    tl.store(part_ptr + 3, tl.sum(clipped, 0) * per_row)
    add_programs(partial_ptr, counter_ptr, sum_ptr, 4)


@triton.jit
def _backward(
    new_ptr,
    sigma_ptr,
    action_ptr,
    slope_ptr,
    weight_ptr,
    grad_policy_ptr,
    grad_entropy_ptr,
    grad_ptr,
    grad_sigma_ptr,
    n_row,
    n_column,
    stride,
    sigma_stride,
    action_stride,
    per_row,
    GAUSSIAN: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.cast(tl.program_id(0), tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < n_row
    weight = load_weight(weight_ptr, row, is_row, HAS_WEIGHT)
    slope = tl.load(slope_ptr + row, mask=is_row, other=0.0) * tl.load(grad_policy_ptr).to(tl.float32)
    rise = weight * per_row * tl.load(grad_entropy_ptr).to(tl.float32)
    if GAUSSIAN:  # d logp / d mu = z / sigma, d logp / d sigma = (z^2 - 1) / sigma, d H / d sigma = 1 / sigma
        action = load_rows(action_ptr, row, action_stride, is_row, n_column, COLUMNS, 0.0)
        mu = load_rows(new_ptr, row, stride, is_row, n_column, COLUMNS, 0.0)
        sigma = tl.where(is_row[:, None], load_rows(sigma_ptr, row, sigma_stride, is_row, n_column, COLUMNS, 1.0), 1.0)
        z = (action - mu) / sigma
        grad_mu = z * slope[:, None] / sigma
        grad_sigma = grad_mu * z + (rise - slope)[:, None] / sigma
        store_rows(grad_ptr, row, is_row, n_column, grad_mu, COLUMNS)
        store_rows(grad_sigma_ptr, row, is_row, n_column, grad_sigma, COLUMNS)
    else:  # d logp(a) / d logit_j = 1[a = j] - p_j, d H / d logit_j = -p_j (log p_j + H)
        action = tl.load(action_ptr + row, mask=is_row, other=0)
        logp = log_softmax(load_rows(new_ptr, row, stride, is_row, n_column, COLUMNS, -float('inf')))
        level = slope[:, None] + rise[:, None] * (_finite(logp) + _entropy(logp)[:, None])
        is_taken = tl.arange(0, COLUMNS)[None, :] == action[:, None]
        grad = tl.where(is_taken, slope[:, None], 0.0) - tl.exp(logp) * level
        store_rows(grad_ptr, row, is_row, n_column, grad, COLUMNS)


@triton.jit
def _surrogate(log_ratio, adv, low, high, dual_clip, HAS_DUAL: tl.constexpr):
    """-> surrogate, its slope in log p_new, whether the ratio is outside; subgradients as torch has them, NaN stays."""
    ratio = tl.exp(log_ratio)
    bounded = tl.where(ratio < low, low, tl.where(ratio > high, high, ratio))
    unclipped, clipped = ratio * adv, bounded * adv
    surrogate = tl.where(unclipped > clipped, clipped, unclipped)
    slope = tl.where(unclipped > clipped, 0.0, unclipped)
    if HAS_DUAL:
        bound = tl.where(adv < 0, dual_clip * adv, -float('inf'))
        slope = tl.where(surrogate < bound, 0.0, tl.where(surrogate == bound, 0.5 * slope, slope))
        surrogate = tl.where(surrogate < bound, bound, surrogate)
    outside = tl.where(ratio == ratio, (bounded != ratio).to(tl.float32), ratio)
    return surrogate, slope, outside


@triton.jit
def _gaussian_terms(mu, sigma, action, is_row, n_column):
    """-> log-density and entropy of each row; columns and rows of padding hold mu = action and count for nothing."""
    sigma = tl.where(is_row[:, None], sigma, 1.0)
    z = (action - mu) / sigma
    log_sigma = tl.sum(tl.log(sigma), 1)
    half_log_2pi = 0.9189385332046727
    logp = -0.5 * tl.sum(z * z, 1) - log_sigma - half_log_2pi * n_column
    return logp, log_sigma + (half_log_2pi + 0.5) * n_column


@triton.jit
def _entropy(logp):
    return -tl.sum(tl.exp(logp) * _finite(logp), 1)


@triton.jit
def _finite(logp):
    """-inf -> -1e4, whose exp is 0: then p * logp is 0."""
    return tl.where(logp < -1e4, -1e4, logp)
