"""Images -> features: what pixels go through before a network, and the two published networks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, relu

from zoo.core.errors import UserError
from zoo.core.spaces import Box
from zoo.rl_utils.init import normed, orthogonal

Precision = Literal['fp32', 'bf16', 'auto']


class ImageShape(NamedTuple):
    """What an image space holds, and whether as [C, H, W] or as [H, W, C]."""

    height: int
    width: int
    channel: int
    channels_first: bool


def image_shape(space: Box) -> ImageShape:
    """Channels are the smaller of the first and the last dimension; of two equal ones the last."""
    a, b, c = space.shape
    return ImageShape(b, c, a, True) if a < c else ImageShape(a, b, c, False)


class Pixels(nn.Module):
    """Images of either layout, any leading dimensions -> [..., C, H, W], a view: what is in them is left to `CNN`."""

    def __init__(self, space: Box) -> None:
        super().__init__()
        self._channels_first = image_shape(space).channels_first

    def forward(self, obs: Tensor) -> Tensor:
        return obs if self._channels_first else obs.movedim(-1, -3)


class CNN(nn.Module, ABC):
    """Images -> features: convolutions (`maps`, of a subclass), then a dense layer and relu, all leading shapes.

    Bytes stand for numbers from 0 to 1, float images for what is in them.
    Args: precision: 'bf16' computes in bfloat16 (parameters, their gradients and the features stay float32), about
      twice as fast where the processor can; 'auto' does so there.
    """

    dense: nn.Linear

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self._precision = precision

    @abstractmethod
    def maps(self, x: Tensor) -> Tensor:
        """[N, C, H, W], numbers or bytes -> [N, C', H', W']."""

    def forward(self, x: Tensor) -> Tensor:
        if self._precision == 'fp32' or not has_bf16(x.device.type, self._precision):
            return self._features(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            return self._features(x).to(torch.float32)

    def _features(self, x: Tensor) -> Tensor:
        maps = self.maps(x.reshape(-1, *x.shape[-3:]))  # [..., C, H, W] -> [N, C, H, W]
        # in the order of memory, channels innermost: no copy
        flat = maps.permute(0, 2, 3, 1).flatten(1)  # [N, C, H, W] -> [N, H*W*C]
        return relu(self.dense(flat), inplace=True).view(*x.shape[:-3], self.dense.out_features)


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


class NatureCNN(CNN):
    """Three convolutions (32 8x8/4, 64 4x4/2, 64 3x3/1) and a layer of 512, relu: [..., C, H, W] -> [..., 512].

    Source: Mnih et al. 2015 (Nature 518, 529); started orthogonal with gain sqrt(2), as PPO's Atari results are.
    """

    n_feature: ClassVar[int] = 512
    value_gain: ClassVar[float] = 1.0
    min_size: ClassVar[int] = 36  # gives maps of 8, 3 and 1

    def __init__(self, image: ImageShape, precision: Precision = 'fp32') -> None:
        super().__init__(precision)
        self.convs = nn.ModuleList()
        n_in, height, width = image.channel, image.height, image.width
        for n_out, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            self.convs.append(orthogonal(nn.Conv2d(n_in, n_out, kernel, stride), math.sqrt(2)))
            n_in, height, width = n_out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.dense = orthogonal(nn.Linear(n_in * height * width, self.n_feature), math.sqrt(2))

    def maps(self, x: Tensor) -> Tensor:
        conv: Any
        for conv in self.convs:
            x = relu(convolve(x, conv), inplace=True)
        return x


class ImpalaCNN(CNN):
    """Three stages of 16, 32, 32 channels and a layer of 256, relu: [..., C, H, W] -> [..., 256].

    A stage is a 3x3 convolution, a 3x3 maximum of stride 2 and two residual blocks.
    Source: Espeholt et al. 2018, arXiv:1802.01561, fig. 3 (right), without its LSTM. Started small as for PPG
    (arXiv:2009.04416): filters have norm 1; in each of n = 6 residual blocks the norms of the two multiply to
    1 / sqrt(n), so that what all blocks add up to is of the scale of their input; value heads have gain .1.
    """

    n_feature: ClassVar[int] = 256
    value_gain: ClassVar[float] = 0.1
    min_size: ClassVar[int] = 8  # three halvings

    def __init__(self, image: ImageShape, precision: Precision = 'fp32') -> None:
        super().__init__(precision)
        channels, n_block = (16, 32, 32), 2
        block_gain = 1 / math.sqrt(len(channels) * n_block)
        self.stages = nn.Sequential()
        n_in, height, width = image.channel, image.height, image.width
        for n_out in channels:
            self.stages.append(
                nn.Sequential(
                    normed(nn.Conv2d(n_in, n_out, 3, padding=1), 1.0),
                    nn.MaxPool2d(3, 2, padding=1),
                    *(ResidualBlock(n_out, block_gain) for _ in range(n_block)),
                )
            )
            n_in, height, width = n_out, (height + 1) // 2, (width + 1) // 2
        self.dense = normed(nn.Linear(n_in * height * width, self.n_feature), math.sqrt(2))

    def maps(self, x: Tensor) -> Tensor:
        layers: list[Any] = [layer for stage in self.stages.children() for layer in stage.children()]
        x = convolve(x, layers[0])
        for layer in layers[1:]:
            x = layer(x)
        return relu(x)


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3x3; the gains of the two multiply to `gain`."""

    def __init__(self, n_channel: int, gain: float) -> None:
        super().__init__()
        self.first, self.second = (
            normed(nn.Conv2d(n_channel, n_channel, 3, padding=1), math.sqrt(gain)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(relu(self.first(relu(x)), inplace=True))


CNNS: dict[str, type[NatureCNN] | type[ImpalaCNN]] = {'nature': NatureCNN, 'impala': ImpalaCNN}
_NATURE_SIZE = 80  # made for 84x84; the strides of its first two layers lose what smaller images show


def make_cnn(
    space: Box, name: Literal['auto', 'nature', 'impala'] = 'auto', precision: Precision = 'fp32'
) -> NatureCNN | ImpalaCNN:
    """The named network; auto: 'nature' for images of 80x80 or more (Atari), else 'impala' (Procgen).

    Raises: UserError if the image is too small for it; names both sizes.
    """
    image = image_shape(space)
    size = min(image.height, image.width)
    if name == 'auto':
        name = 'nature' if size >= _NATURE_SIZE else 'impala'
    cnn = CNNS[name]
    if size < cnn.min_size:
        smaller = [f"policy.model.encoder='{k}'" for k, other in CNNS.items() if other.min_size <= size]
        layout = '[C, H, W]' if image.channels_first else '[H, W, C]'
        raise UserError(
            f'the encoder {name!r} takes images of {cnn.min_size}x{cnn.min_size} or more but these are '
            f'{image.height}x{image.width} (shape {space.shape} read as {layout}); '
            f'use {" or ".join([*smaller, "larger images, or flatten them in the env"])}'
        )
    return cnn(image, precision)
