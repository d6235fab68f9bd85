"""Images -> features: what pixels go through before a network, and the two published networks."""
from __future__ import annotations

import math
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from zoo.errors import UserError
from zoo.model.init import normed, orthogonal
from zoo.spaces import Box, Space


class ImageShape(NamedTuple):
    """What an image space holds, and whether as [C, H, W] or as [H, W, C]."""

    height: int
    width: int
    channel: int
    channels_first: bool


def is_image(space: Space) -> bool:
    """Whether observations are images: a Box of three dimensions."""
    return isinstance(space, Box) and len(space.shape) == 3


def obs_dtype(space: Space) -> torch.dtype:
    """What an env's observations are when they reach a model: pixels keep their byte, an index is int64."""
    if not isinstance(space, Box):
        return torch.int64
    return torch.uint8 if is_image(space) and space.dtype == 'uint8' else torch.float32


def image_shape(space: Box) -> ImageShape:
    """Channels are the smaller of the first and the last dimension; of two equal ones the last."""
    a, b, c = space.shape
    return ImageShape(b, c, a, True) if a < c else ImageShape(a, b, c, False)


class Pixels(nn.Module):
    """Images of either layout, any leading dimensions -> [..., C, H, W] f32, channels innermost in memory.

    Bytes become numbers from 0 to 1; float images are taken as they are.
    """

    def __init__(self, space: Box) -> None:
        super().__init__()
        self._channels_first = image_shape(space).channels_first
        self._is_byte = space.dtype == 'uint8'

    def forward(self, obs: Tensor) -> Tensor:
        image = obs if self._channels_first else obs.movedim(-1, -3)
        flat = image.reshape(-1, *image.shape[-3:])  # [..., C, H, W] -> [N, C, H, W]
        x = flat.to(torch.float32, memory_format=torch.channels_last)
        if self._is_byte:
            x = x / 255
        return x.view(image.shape)


class NatureCNN(nn.Module):
    """Three convolutions (32 8x8/4, 64 4x4/2, 64 3x3/1) and a layer of 512, relu: [..., C, H, W] -> [..., 512].

    Source: Mnih et al. 2015 (Nature 518, 529); started orthogonal with gain sqrt(2), as PPO's Atari results are.
    """

    n_feature: ClassVar[int] = 512
    value_gain: ClassVar[float] = 1.0
    min_size: ClassVar[int] = 36  # gives maps of 8, 3 and 1

    def __init__(self, image: ImageShape) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        n_in, height, width = image.channel, image.height, image.width
        for n_out, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            self.convs.append(orthogonal(nn.Conv2d(n_in, n_out, kernel, stride), math.sqrt(2)))
            n_in, height, width = n_out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.dense = orthogonal(nn.Linear(n_in * height * width, self.n_feature), math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        maps = x.reshape(-1, *x.shape[-3:])  # [..., C, H, W] -> [N, C, H, W]
        for conv in self.convs:
            maps = relu(conv(maps), inplace=True)
        return _features(self.dense, maps, x.shape[:-3])


class ImpalaCNN(nn.Module):
    """Three stages of 16, 32, 32 channels and a layer of 256, relu: [..., C, H, W] -> [..., 256].

    A stage is a 3x3 convolution, a 3x3 maximum of stride 2 and two residual blocks.
    Source: Espeholt et al. 2018, arXiv:1802.01561, fig. 3 (right), without its LSTM. Started small as for PPG
    (arXiv:2009.04416): filters have norm 1; in each of n = 6 residual blocks the norms of the two multiply to
    1 / sqrt(n), so that what all blocks add up to is of the scale of their input; value heads have gain .1.
    """

    n_feature: ClassVar[int] = 256
    value_gain: ClassVar[float] = 0.1
    min_size: ClassVar[int] = 8  # three halvings

    def __init__(self, image: ImageShape) -> None:
        super().__init__()
        channels, n_block = (16, 32, 32), 2
        block_gain = 1 / math.sqrt(len(channels) * n_block)
        self.stages = nn.Sequential()
        n_in, height, width = image.channel, image.height, image.width
        for n_out in channels:
            self.stages.append(nn.Sequential(
                normed(nn.Conv2d(n_in, n_out, 3, padding=1), 1.0), nn.MaxPool2d(3, 2, padding=1),
                *(ResidualBlock(n_out, block_gain) for _ in range(n_block))))
            n_in, height, width = n_out, (height + 1) // 2, (width + 1) // 2
        self.dense = normed(nn.Linear(n_in * height * width, self.n_feature), math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        maps = self.stages(x.reshape(-1, *x.shape[-3:]))  # [..., C, H, W] -> [N, C, H, W]
        return _features(self.dense, relu(maps), x.shape[:-3])


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3x3; the gains of the two multiply to `gain`."""

    def __init__(self, n_channel: int, gain: float) -> None:
        super().__init__()
        self.first, self.second = (
            normed(nn.Conv2d(n_channel, n_channel, 3, padding=1), math.sqrt(gain)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(relu(self.first(relu(x)), inplace=True))


CNNS: dict[str, type[NatureCNN] | type[ImpalaCNN]] = {'nature': NatureCNN, 'impala': ImpalaCNN}
_NATURE_SIZE = 80  # made for 84x84; the strides of its first two layers lose what smaller images show


def make_cnn(space: Box, name: Literal['auto', 'nature', 'impala'] = 'auto') -> NatureCNN | ImpalaCNN:
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
        raise UserError(f'the encoder {name!r} takes images of {cnn.min_size}x{cnn.min_size} or more but these are '
                        f'{image.height}x{image.width} (shape {space.shape} read as {layout}); '
                        f'use {" or ".join([*smaller, "larger images, or flatten them in the env"])}')
    return cnn(image)


def _features(dense: nn.Linear, maps: Tensor, lead: tuple[int, ...]) -> Tensor:
    # in the order of memory, channels innermost: no copy
    flat = maps.permute(0, 2, 3, 1).flatten(1)  # [N, C, H, W] -> [N, H*W*C]
    return relu(dense(flat), inplace=True).view(*lead, dense.out_features)
