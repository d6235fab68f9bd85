# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernel of `gae`: one pass over memory; each block scans its columns, and composes the carries of its threads.

The recursion y_t = x_t + d_t * y_{t+1} is a composition of affine maps, which is associative: Triton's scan composes
the maps of the steps that a thread holds, then those of a warp, then those of the block. Rollouts longer than a tile
take several tiles, from the last to the first. Each continues from the first row of the tile processed before it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from zoo.rl_utils.kernels.launch import add_programs, counter, custom_op

_TILE = 4096  # cells of a tile: 16 for each of 256 threads


def apply(
    value: Tensor,
    next_value: Tensor,
    reward: Tensor,
    done: Tensor | None,
    traj_flag: Tensor | None,
    gamma: float,
    lambda_: float,
    with_return: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """(adv, return_, mean, std), the last three None without with_return; arguments as those of the reference."""
    if traj_flag is None:
        traj_flag = done
    adv, return_, sums = _launch(value, next_value, reward, done, traj_flag, float(gamma), float(lambda_), with_return)
    if not with_return:
        return adv, None, None, None
    mean, mean_square = (sums / adv.numel()).unbind(0)
    std = (mean_square - mean * mean).clamp(min=0).sqrt()
    return adv, return_, mean.to(adv.dtype), std.to(adv.dtype)


def _fake(value: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    *_, with_return = others
    shape: tuple[int, ...] = (0,)
    if with_return:
        shape = value.shape
    return value.new_empty(value.shape), value.new_empty(shape), value.new_empty(2, dtype=torch.float64)


@custom_op(
    'gae(Tensor value, Tensor next_value, Tensor reward, Tensor? done, Tensor? traj_flag, float gamma, '
    'float lambda_, bool with_return) -> (Tensor, Tensor, Tensor)',
    _fake,
)
def _launch(value, next_value, reward, done, traj_flag, gamma, lambda_, with_return) -> tuple[Tensor, Tensor, Tensor]:
    """-> adv; if with_return, also adv + value and the float64 sums of adv and of its squares."""
    shape = value.shape
    device = value.device
    n_step = shape[0]
    n_agent = 1
    if len(shape) > reward.dim():
        n_agent = shape[2]
    value = value.contiguous()
    next_value = next_value.contiguous()
    reward = reward.contiguous()
    n_column = value.numel() // n_step
    adv = torch.empty(shape, dtype=value.dtype, device=device)
    return_ = torch.empty(shape if with_return else (0,), dtype=value.dtype, device=device)
    steps, columns = _tile(n_step, n_column)
    n_program = triton.cdiv(n_column, columns)
    sums = torch.empty(2, dtype=torch.float64, device=device)
    partial = torch.empty(2 * n_program if with_return else 0, dtype=torch.float64, device=device)
    inputs = value, next_value, reward, _flag(done), _flag(traj_flag)
    outputs = adv, return_, partial, counter(device) if with_return else None, sums
    with torch.cuda.device_of(value):
        _scan[(n_program,)](
            *(*inputs, *outputs, n_step, n_column, n_agent, gamma, gamma * lambda_),
            HAS_DONE=done is not None,
            HAS_FLAG=traj_flag is not None,
            WITH_RETURN=with_return,
            STEPS=steps,
            COLUMNS=columns,
            num_warps=min(max(steps * columns // 512, 1), 8),
        )
    return adv, return_, sums


def _tile(n_step: int, n_column: int) -> tuple[int, int]:
    """Steps and columns of a tile: whole rollouts if they fit; for long rollouts few columns, unless there are very many.

    Memory is read in pieces of 32 bytes, 8 columns; but with few columns, more blocks and fewer tiles matter more.
    """
    steps = triton.next_power_of_2(n_step)
    columns = triton.next_power_of_2(n_column)
    columns = min(columns, max(_TILE // steps, 32 if n_column >= 4096 else 4), 128)
    return min(steps, _TILE // columns), columns


def _flag(flag: Tensor | None) -> Tensor | None:
    """The flag made contiguous, bools as bytes."""
    if flag is None:
        return None
    flag = flag.contiguous()
    if flag.dtype == torch.bool:
        return flag.view(torch.uint8)
    return flag


@triton.jit
def _compose(decay_late, x_late, decay_early, x_early):
    """Composes two affine maps: that of the later steps applies first, then that of the earlier steps."""
    return decay_early * decay_late, x_early + decay_early * x_late


@triton.jit
def _scan(
    value_ptr,
    next_value_ptr,
    reward_ptr,
    done_ptr,
    flag_ptr,
    adv_ptr,
    return_ptr,
    partial_ptr,
    counter_ptr,
    sum_ptr,
    n_step,
    n_column,
    n_agent,
    gamma,
    decay,
    HAS_DONE: tl.constexpr,
    HAS_FLAG: tl.constexpr,
    WITH_RETURN: tl.constexpr,
    STEPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    step_in_tile = tl.arange(0, STEPS)[:, None]
    carry = tl.zeros((COLUMNS,), tl.float32)
    total = tl.zeros((COLUMNS,), tl.float64)
    total_square = tl.zeros((COLUMNS,), tl.float64)
    n_tile = tl.cdiv(n_step, STEPS)
    for tile in range(0, n_tile):
        step = tl.cast((n_tile - 1 - tile) * STEPS + step_in_tile, tl.int64)
        is_cell = (step < n_step) & (column < n_column)
        cell = step * n_column + column
        shared = step * (n_column // n_agent) + column // n_agent  # agents share reward and ends
        value = tl.load(value_ptr + cell, mask=is_cell, other=0.0).to(tl.float32)
        bootstrap = tl.load(next_value_ptr + cell, mask=is_cell, other=0.0).to(tl.float32)
        reward = tl.load(reward_ptr + shared, mask=is_cell, other=0.0).to(tl.float32)
        if HAS_DONE:
            bootstrap *= 1.0 - tl.load(done_ptr + shared, mask=is_cell, other=0).to(tl.float32)
        delta = reward - value + gamma * bootstrap
        keep = tl.full((STEPS, COLUMNS), 1.0, tl.float32)
        if HAS_FLAG:
            keep = 1.0 - tl.load(flag_ptr + shared, mask=is_cell, other=0).to(tl.float32)
        gain, adv = tl.associative_scan((keep * decay, delta), 0, _compose, reverse=True)
        adv += gain * carry[None, :]
        carry = tl.sum(tl.where(step_in_tile == 0, adv, 0.0), 0)
        tl.store(adv_ptr + cell, adv.to(adv_ptr.dtype.element_ty), mask=is_cell)
        if WITH_RETURN:
            tl.store(return_ptr + cell, (adv + value).to(return_ptr.dtype.element_ty), mask=is_cell)
            wide = tl.where(is_cell, adv, 0.0).to(tl.float64)
            total += tl.sum(wide, 0)
            total_square += tl.sum(wide * wide, 0)
    if WITH_RETURN:
        part_ptr = partial_ptr + tl.program_id(0) * 2
        tl.store(part_ptr, tl.sum(total, 0))
        tl.store(part_ptr + 1, tl.sum(total_square, 0))
        add_programs(partial_ptr, counter_ptr, sum_ptr, 2)
