"""Images: their shapes, the input stage that puts their channels first, and convolution in fast number formats."""

from __future__ import annotations

import logging
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from zoo.core.errors import UserError
from zoo.core.spaces import Box, Space, is_image
from zoo.core.streams import LoadWarning
from zoo.model.shortcut import may_skip_call

logger = logging.getLogger(__name__)
LARGEST_BYTE = 255
LISTED_IMAGES = 256  # most images whose words are taken by a list of places, of 7 MB for 84x84x4
OLDER_SCALE = LoadWarning(
    logger,
    'the weights were trained on images divided by 255 by an older version of zoo, and continue so; new runs divide by the '
    'upper bounds of the observation space',
)
Precision = Literal['fp32', 'bf16', 'auto']


class ImageShape(NamedTuple):
    """The size of the images of a space, and whether they are [C, H, W] or [H, W, C]."""

    height: int
    width: int
    channel: int
    channels_first: bool


def holds_images(space: Space) -> bool:
    """Whether observations are images, or windows of images: a Box with four dimensions of bytes or floats, frames first."""
    if isinstance(space, Box) and len(space.shape) == 4:
        return space.dtype == 'uint8' or space.dtype[0] == 'f'
    return is_image(space)


def image_shape(space: Box) -> ImageShape:
    """The shape of images; channels are the smaller of the first and the last dimension, the last one if they are equal.

    For a window of n images it is the shape of one image with n times the channels.
    """
    *frames, a, b, c = space.shape
    n_frame = 1
    if frames:
        n_frame = frames[0]
    if a < c:
        return ImageShape(b, c, n_frame * a, True)
    return ImageShape(a, b, n_frame * c, False)


class Pixels(nn.Module):
    """Images of either layout, any leading dimensions -> [..., C, H, W]; the frames of a window become channels.

    Args: normalize: True: bytes mean numbers from 0 to 1, which is 1 at the upper bound of the space. `CNN` and `flat_pixels`
      divide tensors of bytes by 255, so bytes are scaled here only if they come as floats, or if another number is the upper
      bound of a channel. False: bytes mean themselves, 0 to 255, and are passed on as floats.
    Attributes: byte_scale: [C, 1, 1], the number by which bytes of each channel are divided; None if it is 255 for all, also after
      a state without it was loaded.
    """

    byte_scale: Tensor | None

    def __init__(self, space: Box, normalize: bool = True) -> None:
        super().__init__()
        self._channels_first = image_shape(space).channels_first
        self._is_window = len(space.shape) == 4
        self._normalize = normalize
        self._n_channel = 1  # of one frame
        if self._is_window:
            self._n_channel = space.shape[1 if self._channels_first else -1]
        self._is_bytes = space.dtype == 'uint8'
        highest = self._channels_to_front(torch.from_numpy(np.asarray(space.high, np.float32))).amax(
            (-2, -1), keepdim=True
        )
        self._is_scaled = self._is_bytes and normalize and bool((highest != LARGEST_BYTE).any())
        # a channel without any number above 0 has nothing to scale
        self.register_buffer('byte_scale', torch.where(highest > 0, highest, 1.0) if self._is_scaled else None)

    def forward(self, obs: Tensor) -> Tensor:
        x = self._channels_to_front(obs)
        if not self._is_bytes:
            return x
        if not self._normalize:
            if x.is_floating_point():
                return x
            return x.to(torch.float32)
        if self.byte_scale is not None:
            return x / self.byte_scale
        if x.dtype == torch.uint8:
            return x
        return x / LARGEST_BYTE

    def real_places(self, marks: Tensor) -> Tensor:
        """The numbers of a window of images that hold an observation, bool that broadcasts to the output [..., C, H, W].

        Args: marks: [..., n], the same of the n frames. Frames of two dimensions are channels, or rows, of one image.
        """
        frames = (marks != 0)[..., None, None]
        if not self._is_window:
            return self._channels_to_front(frames)
        if self._channels_first:
            shape = (self._n_channel, 1, 1)
        else:
            shape = (1, 1, self._n_channel)
        return self._channels_to_front(frames.unsqueeze(-1).expand(*marks.shape, *shape))

    def _channels_to_front(self, obs: Tensor) -> Tensor:
        if self._channels_first:
            x = obs
        else:
            x = obs.movedim(-1, -3)
        if self._is_window:
            return x.flatten(-4, -3)  # [..., n, C, H, W] -> [..., n*C, H, W]
        return x

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Loads a state; one from before the scale was saved belongs to weights that were trained on bytes / 255."""
        saved_scale = state_dict.get(f'{prefix}byte_scale')
        if self._is_scaled and saved_scale is not None and self.byte_scale is None:
            self.byte_scale = torch.zeros_like(saved_scale)
        elif saved_scale is None and self.byte_scale is not None:
            OLDER_SCALE.log(args[-1])
            self.byte_scale = None
        super()._load_from_state_dict(state_dict, prefix, *args)


def flat_pixels(x: Tensor) -> Tensor:
    """[..., C, H, W], numbers or bytes -> [..., C*H*W] of numbers; bytes are divided by 255."""
    flat = x.flatten(-3)
    if flat.dtype == torch.uint8:
        return flat / LARGEST_BYTE
    return flat


def convolve(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """conv(x) for x [N, C, H, W] of numbers, or of bytes, which are scaled by 1 / 255; conv has no padding if it has a stride.

    In bfloat16 on a CPU a stride s is removed: blocks of s x s pixels become one pixel with s * s times the channels. With
    256 images of 84x84 the gradients of the Nature network's first two layers take 6 + 9 ms instead of 16 + 15.
    """
    if not may_skip_call(conv, nn.Conv2d):  # a hook, or another layer in its place
        output: Tensor = conv(x / 255 if x.dtype == torch.uint8 else x)
        return output
    is_half = torch.is_autocast_enabled(x.device.type)
    form = ImageForm.of(x, conv, is_half)
    weight = form.filters(conv)
    number = torch.bfloat16 if is_half else weight.dtype
    x = form.pixels(x).to(number, memory_format=torch.channels_last)
    return conv2d(x, weight, conv.bias, form.stride, conv.padding)


class ImageForm(NamedTuple):
    """The form of the images that a convolution takes, which decides the form of its filters.

    block: side of the blocks of pixels that become one pixel; 1: none. stride: that of the convolution of such pixels.
    """

    is_bytes: bool
    channels_first: bool
    kernel: int
    block: int
    stride: int

    @classmethod
    def of(cls, x: Tensor, conv: nn.Conv2d, is_half: bool) -> ImageForm:
        """The form of images [N, C, H, W] for a convolution. is_half: it computes in bfloat16."""
        stride = conv.stride[0]
        kernel = conv.kernel_size[0]
        block = 1
        if is_half and x.is_cpu and stride > 1 and kernel % stride == 0:
            block = stride
        return cls(x.dtype == torch.uint8, x.stride(1) != 1, kernel, block, stride // block)

    def filters(self, conv: nn.Conv2d) -> Tensor:
        """The filters of a convolution, in float32, for images of this form."""
        weight = conv.weight
        if self.is_bytes:
            weight = weight / LARGEST_BYTE  # the weights, not the bytes, which are many, and exact in bfloat16
        if self.block == 1:
            return weight
        n_out, n_channel, kernel, _ = weight.shape
        size = self.block
        side = kernel // size
        filters = weight.reshape(n_out, n_channel, side, size, side, size)
        if self.channels_first:
            filters = filters.permute(0, 1, 3, 5, 2, 4)
        else:
            filters = filters.permute(0, 3, 5, 1, 2, 4)
        return filters.reshape(n_out, n_channel * size * size, side, side)

    def pixels(self, x: Tensor) -> Tensor:
        """Images [N, C, H, W] -> [N, C * block * block, H', W']: each block of pixels becomes one pixel."""
        size = self.block
        if size == 1:
            return x
        n, n_channel, height, width = x.shape
        side = self.kernel // size
        rows, columns = ((length - self.kernel) // size + side for length in (height, width))  # the rest is unused
        x = x[..., : rows * size, : columns * size]
        if not self.channels_first:  # y, x, channel of a block
            lines = x.permute(0, 2, 3, 1).reshape(n, rows, size, columns, size * n_channel)
            blocks = lines.transpose(2, 3)
        else:  # channel, y, x; four bytes are moved as one number
            is_word = (
                x.dtype == torch.uint8
                and size == 4
                and x.stride(3) == 1
                and all(step % 4 == 0 for step in (*x.stride()[:3], x.storage_offset()))
            )
            if is_word and n <= LISTED_IMAGES and x.is_contiguous() and not torch.compiler.is_compiling():
                words = x.view(torch.int32).flatten()
                blocks = words.index_select(0, _places_of_words(n, n_channel, rows, columns)).view(torch.uint8)
            else:
                if is_word:
                    lines = x.view(torch.int32).unsqueeze(-1)
                else:
                    lines = x.unflatten(-1, (columns, size))
                blocks = lines.unflatten(2, (rows, size)).permute(0, 2, 4, 1, 3, 5).contiguous()
                if is_word:
                    blocks = blocks.view(torch.uint8)
        return blocks.reshape(n, rows, columns, n_channel * size * size).permute(0, 3, 1, 2)


@lru_cache(maxsize=4)
def _places_of_words(n: int, n_channel: int, rows: int, columns: int) -> Tensor:
    """Where the words of n images [C, 4 * rows, columns] are, in the order image, row and column of a block, channel, y.

    To take words by a list is twice as fast as a copy with permuted dimensions, whose innermost loop has four of them.
    """
    places = torch.arange(n * n_channel * rows * 4 * columns, dtype=torch.int32)
    return places.view(n, n_channel, rows, 4, columns).permute(0, 2, 4, 1, 3).flatten()


@cache
def has_bf16(device: str, precision: Precision) -> bool:
    """Whether this machine computes in bfloat16 at full speed.

    Raises: UserError if it does not but precision is 'bf16'.
    """
    cpu = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if device == 'cpu':
        has_units = cpu
    else:
        has_units = device == 'cuda' and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == 'bf16' and not has_units:
        raise UserError(
            f"policy.model.precision is 'bf16' but this {device} only emulates bfloat16, slowly; use 'auto' or 'fp32'"
        )
    return has_units
