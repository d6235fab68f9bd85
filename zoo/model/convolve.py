"""Convolution of bytes or numbers, in bfloat16 where the processor has it."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from zoo.core.errors import UserError

Precision = Literal['fp32', 'bf16', 'auto']


def convolve(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """conv(x) for x [N, C, H, W] of numbers, or of bytes: those times 1 / 255; without padding if it has a stride.

    In bfloat16 on a CPU a stride s is taken out: blocks of s x s pixels are one of s * s times the channels. With 256
    images of 84x84 the gradients of the Nature network's first two layers take 6 + 9 ms in place of 16 + 15.
    """
    weight, stride, is_half = conv.weight, conv.stride[0], torch.is_autocast_enabled(x.device.type)
    if x.dtype == torch.uint8:
        weight = weight / 255  # not the bytes, which are many, and exact in bfloat16
    if is_half and x.is_cpu and stride > 1 and conv.kernel_size[0] % stride == 0:
        x, weight, stride = *_as_blocks(x, weight, stride), 1
    x = x.to(torch.bfloat16 if is_half else weight.dtype, memory_format=torch.channels_last)
    return conv2d(x, weight, conv.bias, stride, conv.padding)


def _as_blocks(x: Tensor, weight: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Image and filters of a convolution of stride `size`, for one of stride 1, in any memory order."""
    (n, n_channel, height, width), (n_out, _, kernel, _) = x.shape, weight.shape
    side = kernel // size
    rows, columns = ((length - kernel) // size + side for length in (height, width))  # of blocks; a rest is never seen
    x = x[..., : rows * size, : columns * size]
    filters = weight.reshape(n_out, n_channel, side, size, side, size)
    if x.stride(1) == 1:  # channels innermost: y, x, channel of a block
        lines = x.permute(0, 2, 3, 1).reshape(n, rows, size, columns, size * n_channel)
        blocks, filters = lines.transpose(2, 3), filters.permute(0, 3, 5, 1, 2, 4)
    else:  # channel, y, x; four bytes are moved as one number
        is_word = (
            x.dtype == torch.uint8
            and size == 4
            and x.stride(3) == 1
            and all(step % 4 == 0 for step in (*x.stride()[:3], x.storage_offset()))
        )
        lines = x.view(torch.int32).unsqueeze(-1) if is_word else x.unflatten(-1, (columns, size))
        blocks = lines.unflatten(2, (rows, size)).permute(0, 2, 4, 1, 3, 5).contiguous()
        if is_word:
            blocks = blocks.view(torch.uint8)
        filters = filters.permute(0, 1, 3, 5, 2, 4)
    x = blocks.reshape(n, rows, columns, n_channel * size * size)
    return x.permute(0, 3, 1, 2), filters.reshape(n_out, n_channel * size * size, side, side)


@cache
def has_bf16(device: str, precision: Precision) -> bool:
    """Whether this machine computes in bfloat16 at full speed.

    Raises: UserError if it does not but precision is 'bf16'.
    """
    cpu = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    found = cpu if device == 'cpu' else device == 'cuda' and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == 'bf16' and not found:
        raise UserError(
            f"policy.model.precision is 'bf16' but this {device} only emulates bfloat16, slowly; use 'auto' or 'fp32'"
        )
    return found
