"""Convolutional encoders, images -> features: one of sizes that you choose, and two published ones."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, relu

from zoo.config.section import LEFT_OUT, Filled, Section
from zoo.core.errors import UserError
from zoo.core.registry import ENCODER_REGISTRY
from zoo.core.spaces import Box, Space
from zoo.model.images import ImageForm, Precision, convolve, has_bf16, holds_images, image_shape
from zoo.model.layers import ACTIVATIONS, Activation, Width
from zoo.model.shortcut import may_skip_call, may_skip_calls
from zoo.rl_utils.init import normed, orthogonal


class CNNConfig(Section):
    """Fields that the sections of the encoders for images have in common."""

    precision: Filled[Precision] = Field(
        LEFT_OUT,
        description='compute in float32, or in bfloat16 with float32 parameters; auto: bfloat16 where the processor or '
        'GPU has it; null: policy.model.precision',
    )


class CNN(nn.Module, ABC):
    """Images -> features: convolutions (`maps`, of a subclass), then a dense layer and its activation.

    Any leading dimensions. Bytes mean numbers from 0 to 1; floats are used unmodified.
    Args: min_size: least height and width of an image.
      precision: 'bf16' computes in bfloat16 (parameters, their gradients and the features stay float32), about
      twice as fast where the processor supports it; 'auto' uses it there only.
    Raises: UserError if the images are smaller; names both sizes.
    """

    name: ClassVar[str]
    dense: nn.Linear

    def __init__(self, space: Box, min_size: int, precision: Precision) -> None:
        super().__init__()
        image = image_shape(space)
        size = min(image.height, image.width)
        if size < min_size:
            fitting = [f'policy.model.encoder={cnn.name!r}' for cnn in (NatureCNN, ImpalaCNN) if cnn.min_size <= size]
            fitting.append("policy.model.encoder='mlp'")
            if image.channels_first:
                layout = '[C, H, W]'
            else:
                layout = '[H, W, C]'
            raise UserError(
                f'the encoder {self.name!r} takes images of {min_size}x{min_size} or more but these are '
                f'{image.height}x{image.width} (shape {space.shape} read as {layout}); use '
                f'{" or ".join(fitting)} or larger images'
            )
        self.precision = precision
        self._activation = 'relu'

    @classmethod
    def fits(cls, space: Space) -> bool:
        return holds_images(space)

    @abstractmethod
    def maps(self, x: Tensor) -> Tensor:
        """[N, C, H, W], numbers or bytes -> [N, C', H', W']."""

    def forward(self, x: Tensor) -> Tensor:
        if self.precision == 'fp32' or not has_bf16(x.device.type, self.precision):
            return self._features(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            return self._features(x).to(torch.float32)

    def _features(self, x: Tensor) -> Tensor:
        maps = self.maps(x.reshape(-1, *x.shape[-3:]))  # [..., C, H, W] -> [N, C, H, W]
        return self._activate(self.dense(self._flat(maps))).view(*x.shape[:-3], self.dense.out_features)

    def _flat(self, maps: Tensor) -> Tensor:
        # in the order of memory, channels innermost: no copy
        return maps.permute(0, 2, 3, 1).flatten(1)  # [N, C, H, W] -> [N, H*W*C]

    def _activate(self, x: Tensor) -> Tensor:
        if self._activation == 'relu':
            return relu(x, inplace=True)
        return ACTIVATIONS[self._activation](x)


class ConvConfig(CNNConfig):
    """Encoder 'cnn': convolutions without padding, then one dense layer. The defaults are those of 'nature'."""

    channels: list[Width] = Field([32, 64, 64], min_length=1, description='output channels of each convolution')
    kernels: list[Width] = Field([8, 4, 3], min_length=1, description='side of the filters of each')
    strides: list[Width] = Field([4, 2, 1], min_length=1, description='stride of each')
    hidden_size: Annotated[int, Field(ge=1)] = Field(512, description='width of the dense layer: the features')
    activation: Activation = Field('relu', description='after each layer')

    @model_validator(mode='after')
    def _lengths_agree(self) -> ConvConfig:
        n = {name: len(getattr(self, name)) for name in ('channels', 'kernels', 'strides')}
        if len(set(n.values())) > 1:
            lengths = ', '.join(f'{name} has {length}' for name, length in n.items())
            raise ValueError(f'{lengths} but each needs one number for every convolution; give lists of one length')
        return self


@ENCODER_REGISTRY.register('cnn')
class ConvNet(CNN):
    """For images: convolutions whose channels, kernels and strides you choose, then a dense layer.

    Sizes are those of `ConvConfig`; the activation follows each layer.

    Weights start orthogonal with gain sqrt(2), as in PPO's Atari results.
    """

    name: ClassVar[str] = 'cnn'
    config: ClassVar[type[Section]] = ConvConfig
    value_gain: ClassVar[float] = 1.0
    kept: KeptWeights | None = None  # see `ActingWeights`

    def __init__(self, cfg: ConvConfig, space: Box) -> None:
        sizes = list(zip(cfg.channels, cfg.kernels, cfg.strides, strict=True))
        side = 1  # of the smallest image, which leaves a map of 1x1
        for _, kernel, stride in reversed(sizes):
            side = (side - 1) * stride + kernel
        super().__init__(space, side, cfg.precision)
        self.convs = nn.ModuleList()
        height, width, n_in, _ = image_shape(space)
        for n_out, kernel, stride in sizes:
            self.convs.append(orthogonal(nn.Conv2d(n_in, n_out, kernel, stride), math.sqrt(2)))
            n_in = n_out
            height = (height - kernel) // stride + 1
            width = (width - kernel) // stride + 1
        self.n_feature: int = cfg.hidden_size
        self.dense = orthogonal(nn.Linear(n_in * height * width, self.n_feature), math.sqrt(2))
        self._activation = cfg.activation

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None or torch.is_grad_enabled() or not self.kept.serve(x):
            return super().forward(x)
        return self.kept.features(x)

    def maps(self, x: Tensor) -> Tensor:
        conv: Any
        for conv in self.convs:
            x = self._activate(convolve(x, conv))
        return x


class KeptWeights:
    """The weights of a `ConvNet` as its passes in bfloat16 on a CPU use them, kept from one pass to the next; without gradient.

    The features have the bits of `ConvNet.forward`. A pass converts all weights if there are none, or if those of a layer changed
    in place or were replaced. Changes of an optimiser's buffer, of which weights may be views, are not seen: see `renew`.
    """

    def __init__(self, net: ConvNet) -> None:
        self._net = net
        self._layers: list[tuple[ImageForm, Tensor, Tensor | None]] = []
        self._dense: tuple[Tensor, Tensor | None]
        self._made_from: Any = None
        self._parts: list[Any] = []

    def renew(self) -> None:
        """Drops the weights: the next pass converts them."""
        self._made_from = None

    def serve(self, x: Tensor) -> bool:
        """Whether the network computes images x in bfloat16 on a CPU, and no layer has a hook or was replaced."""
        net = self._net
        if not x.is_cpu or net.precision == 'fp32' or not has_bf16('cpu', net.precision):
            return False
        *convs, dense = self._parts = [*net.convs, net.dense]
        return may_skip_call(dense, nn.Linear) and may_skip_calls(convs, nn.Conv2d)

    def features(self, x: Tensor) -> Tensor:
        """Images [..., C, H, W] -> features [..., n_feature] f32."""
        net = self._net
        maps = x.reshape(-1, *x.shape[-3:])
        own = [p for layer in self._parts for p in layer._parameters.values()]
        made_from = (maps.dtype, maps.stride(1) == 1, [(p.data_ptr(), p._version) for p in own])
        if made_from != self._made_from:
            self._convert(maps)
            self._made_from = made_from
        for form, weight, bias in self._layers:
            maps = form.pixels(maps).to(torch.bfloat16, memory_format=torch.channels_last)
            maps = net._activate(conv2d(maps, weight, bias, form.stride))
        features = net._activate(linear(net._flat(maps), *self._dense))
        return features.view(*x.shape[:-3], net.n_feature).to(torch.float32)

    def _convert(self, x: Tensor) -> None:
        self._layers = []
        conv: Any
        for conv in self._net.convs:
            form = ImageForm.of(x, conv, True)
            weight = form.filters(conv).to(torch.bfloat16, memory_format=torch.channels_last)
            bias = conv.bias.to(torch.bfloat16)
            self._layers.append((form, weight, bias))
            # the images of the next layer, in memory
            x = weight.new_empty((1, conv.out_channels, 2, 2)).to(memory_format=torch.channels_last)
        dense = self._net.dense
        self._dense = (dense.weight.to(torch.bfloat16), dense.bias.to(torch.bfloat16))


class ActingWeights:
    """A function of a model for acting, whose calls keep the converted weights of convolutional networks, see `KeptWeights`.

    Of few images, a call in bfloat16 would spend a third of its time on conversions. The outputs have the same bits.
    Args: function: computes with the model without gradient, on a CPU.
    """

    def __init__(self, function: Callable[..., Any], nets: Sequence[ConvNet]) -> None:
        self._function = function
        self._nets = [(net, KeptWeights(net)) for net in nets]

    @staticmethod
    def nets_of(model: nn.Module) -> list[ConvNet]:
        """The networks of a model that gain from it: those that compute in bfloat16 on a CPU."""
        nets = [net for net in model.modules() if isinstance(net, ConvNet) and net.dense.weight.is_cpu]
        return [net for net in nets if net.precision != 'fp32' and has_bf16('cpu', net.precision)]

    def renew(self) -> None:
        """Drops the converted weights; called before each rollout, since an update may have changed the weights."""
        for _, kept in self._nets:
            kept.renew()

    def __call__(self, *args: Any) -> Any:
        for net, kept in self._nets:
            net.kept = kept
        try:
            return self._function(*args)
        finally:
            for net, _ in self._nets:
                net.kept = None


@ENCODER_REGISTRY.register('nature')
class NatureCNN(ConvNet):
    """For images of about 84 x 84, as in Atari: three convolutions and a layer of 512.

    [..., C, H, W] -> [..., 512]: convolutions 32 8x8/4, 64 4x4/2, 64 3x3/1, then relu.

    Source: Mnih et al. 2015 (Nature 518, 529).
    """

    name: ClassVar[str] = 'nature'
    config: ClassVar[type[Section]] = CNNConfig
    min_size: ClassVar[int] = 36  # gives maps of 8, 3 and 1

    def __init__(self, cfg: CNNConfig, space: Box) -> None:
        super().__init__(ConvConfig(precision=cfg.precision), space)


class ImpalaConfig(CNNConfig):
    """Encoder 'impala'."""

    global_pool: bool = Field(
        False,
        description='features are the means of the last maps, not all their pixels: 64 times fewer weights at 64x64',
    )


@ENCODER_REGISTRY.register('impala')
class ImpalaCNN(CNN):
    """For images of about 64 x 64, as in Procgen: a residual network and a layer of 256.

    [..., C, H, W] -> [..., 256]: three stages of 16, 32, 32 channels, relu.

    A stage is a 3x3 convolution, a 3x3 maximum of stride 2 and two residual blocks.
    Source: Espeholt et al. 2018, arXiv:1802.01561, fig. 3 (right), without its LSTM. Weights start small as for PPG
    (arXiv:2009.04416): filters have norm 1; in each of n = 6 residual blocks the norms of the two convolutions multiply to
    1 / sqrt(n), so that the sum of all blocks has the scale of their input; value heads have gain .1.
    With global_pool: Trumpp et al. 2025, arXiv:2503.05546.
    """

    name: ClassVar[str] = 'impala'
    config: ClassVar[type[Section]] = ImpalaConfig
    n_feature: ClassVar[int] = 256
    value_gain: ClassVar[float] = 0.1
    min_size: ClassVar[int] = 8  # three halvings

    def __init__(self, cfg: ImpalaConfig, space: Box) -> None:
        super().__init__(space, self.min_size, cfg.precision)
        channels = (16, 32, 32)
        n_block = 2
        block_gain = 1 / math.sqrt(len(channels) * n_block)
        self.stages = nn.Sequential()
        height, width, n_in, _ = image_shape(space)
        for n_out in channels:
            self.stages.append(
                nn.Sequential(
                    normed(nn.Conv2d(n_in, n_out, 3, padding=1), 1.0),
                    nn.MaxPool2d(3, 2, padding=1),
                    *(ResidualBlock(n_out, block_gain) for _ in range(n_block)),
                )
            )
            n_in = n_out
            height = (height + 1) // 2
            width = (width + 1) // 2
        self._global_pool = cfg.global_pool
        if cfg.global_pool:
            n_cell = 1
        else:
            n_cell = height * width
        self.dense = normed(nn.Linear(n_in * n_cell, self.n_feature), math.sqrt(2))

    def maps(self, x: Tensor) -> Tensor:
        layers: list[Any] = []
        for stage in self.stages.children():
            if may_skip_call(stage, nn.Sequential):
                layers += stage.children()
            else:
                layers += [stage]
        first, *others = layers
        x = convolve(x, first)
        for layer in others:
            x = layer(x)
        return relu(x)

    def _flat(self, maps: Tensor) -> Tensor:
        if self._global_pool:
            return maps.mean((2, 3))
        return super()._flat(maps)


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3x3; the gains of the two convolutions multiply to `gain`."""

    def __init__(self, n_channel: int, gain: float) -> None:
        super().__init__()
        self.first, self.second = (
            normed(nn.Conv2d(n_channel, n_channel, 3, padding=1), math.sqrt(gain)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(relu(self.first(relu(x)), inplace=True))


def computes_in_bf16(model: nn.Module) -> bool:
    """Whether a model's encoders for images compute in bfloat16 on this processor."""
    return any(m.precision != 'fp32' and has_bf16('cpu', m.precision) for m in model.modules() if isinstance(m, CNN))


def in_float32(model: nn.Module) -> None:
    """Makes all encoders for images in a model compute in float32, also where the processor has bfloat16."""
    for module in model.modules():
        if isinstance(module, CNN):
            module.precision = 'fp32'
