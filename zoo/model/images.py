"""What an image observation holds, and the stage that puts its channels first."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.core.spaces import Box, Space, is_image


class ImageShape(NamedTuple):
    """What an image space holds, and whether as [C, H, W] or as [H, W, C]."""

    height: int
    width: int
    channel: int
    channels_first: bool


def holds_images(space: Space) -> bool:
    """Whether observations are images, or windows of them: a Box of four dimensions of bytes or floats, frames first."""
    if isinstance(space, Box) and len(space.shape) == 4:
        return space.dtype == 'uint8' or space.dtype[0] == 'f'
    return is_image(space)


def image_shape(space: Box) -> ImageShape:
    """Channels are the smaller of the first and the last dimension; of two equal ones the last.

    Of a window of n images it is the shape of one image with n times the channels.
    """
    *frames, a, b, c = space.shape
    n_frame = frames[0] if frames else 1
    return ImageShape(b, c, n_frame * a, True) if a < c else ImageShape(a, b, n_frame * c, False)


class Pixels(nn.Module):
    """Images of either layout, any leading dimensions -> [..., C, H, W]; the frames of a window become channels.

    Args: normalize: bytes stand for numbers from 0 to 1. `CNN` and `flat_pixels` divide by 255 what comes as bytes, so
      here only bytes that come as floats are scaled. False: they stand for 0 to 255, and go on as floats.
    """

    def __init__(self, space: Box, normalize: bool = True) -> None:
        super().__init__()
        self._channels_first = image_shape(space).channels_first
        self._is_window, self._normalize = len(space.shape) == 4, normalize
        self._is_bytes = space.dtype == 'uint8'

    def forward(self, obs: Tensor) -> Tensor:
        x = obs if self._channels_first else obs.movedim(-1, -3)
        if self._is_window:
            x = x.flatten(-4, -3)  # [..., n, C, H, W] -> [..., n*C, H, W]
        if not self._is_bytes or (x.dtype == torch.uint8) == self._normalize:
            return x
        return x / 255 if self._normalize else x.to(torch.float32)


def flat_pixels(x: Tensor) -> Tensor:
    """[..., C, H, W], numbers or bytes -> [..., C*H*W] of numbers; bytes are divided by 255."""
    flat = x.flatten(-3)
    return flat / 255 if flat.dtype == torch.uint8 else flat
