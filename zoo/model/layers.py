"""Fully connected layers over vectors and indices, and the heads: features -> parameters of the action distribution, or value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import elu, gelu, layer_norm, linear, one_hot, silu

from zoo.config.section import LEFT_OUT, Filled, Section
from zoo.core.action_map import action_width
from zoo.core.errors import UserError
from zoo.core.registry import ENCODER_REGISTRY
from zoo.core.spaces import ACTION_MASK, Discrete, Leaf, MultiDiscrete, Space, mask_space
from zoo.model.images import flat_pixels, holds_images
from zoo.rl_utils.distribution import ActionDist, make_dist
from zoo.rl_utils.init import orthogonal

Activation = Literal['tanh', 'relu', 'elu', 'gelu', 'silu']
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    'tanh': torch.tanh,
    'relu': torch.relu,
    'elu': elu,
    'gelu': gelu,
    'silu': silu,
}
Width = Annotated[int, Field(ge=1, le=1_000_000)]


class OneHot(nn.Module):
    """[...] int64 index below n -> [..., n] f32."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, obs: Tensor) -> Tensor:
        return one_hot(obs, self.n).to(torch.float32)


class Layers(nn.Module):
    """Fully connected layers, each followed by the activation: [..., n_in] -> [..., hidden_sizes[-1]].

    One module with a loop, since at 8 rows a nested module call costs as much as the activation it wraps.
    Args: layer_norm: normalises the outputs of each layer before the activation.
    """

    value_gain: ClassVar[float] = 1.0
    _of_pixels = False

    def __init__(
        self, n_in: int, hidden_sizes: Sequence[int], activation: Activation, layer_norm: bool = False
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f'activation is {activation!r}; use {" or ".join(map(repr, ACTIVATIONS))}')
        sizes = pairwise([n_in, *hidden_sizes])
        self.layers = nn.ModuleList([orthogonal(nn.Linear(a, b), math.sqrt(2)) for a, b in sizes])
        self.norms = nn.ModuleList([nn.LayerNorm(n) for n in hidden_sizes]) if layer_norm else None
        self.n_feature = hidden_sizes[-1]
        self.activation: Activation = activation

    def forward(self, x: Tensor) -> Tensor:
        activate = ACTIVATIONS[self.activation]
        layer: Any
        norm: Any
        if self._of_pixels:
            x = flat_pixels(x)
        if self.norms is None:
            for layer in self.layers:
                x = activate(linear(x, layer.weight, layer.bias))
            return x
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = linear(x, layer.weight, layer.bias)
            x = activate(layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps))
        return x


class MLPConfig(Section):
    """Encoder 'mlp': fully connected layers over vectors, indices, or the pixels of images."""

    hidden_sizes: Filled[list[Width]] = Field(
        LEFT_OUT, min_length=1, description='widths of the layers; null: policy.model.hidden_sizes'
    )
    activation: Filled[Activation] = Field(LEFT_OUT, description='after each layer; null: policy.model.activation')
    layer_norm: Filled[bool] = Field(
        LEFT_OUT, description='layer normalisation before each activation; null: policy.model.layer_norm'
    )


@ENCODER_REGISTRY.register('mlp')
class MLP(Layers):
    """For vectors and indices: fully connected layers of the widths policy.model.hidden_sizes.

    The output of `make_input` for any leaf -> [..., hidden_sizes[-1]].
    """

    config: ClassVar[type[Section]] = MLPConfig

    def __init__(self, cfg: MLPConfig, space: Leaf) -> None:
        super().__init__(input_width(space), cfg.hidden_sizes, cfg.activation, cfg.layer_norm)
        self._of_pixels = holds_images(space)

    @classmethod
    def fits(cls, space: Space) -> bool:
        return isinstance(space, Leaf)


class FlatConfig(Section):
    """Encoder 'flat': no network, the observations themselves."""


@ENCODER_REGISTRY.register('flat')
class Flat(nn.Module):
    """No layers: the observations as one vector, so that the policy is linear in them.

    The output of `make_input` for any leaf -> [..., n].
    """

    config: ClassVar[type[Section]] = FlatConfig
    value_gain: ClassVar[float] = 1.0

    def __init__(self, cfg: FlatConfig, space: Leaf) -> None:
        super().__init__()
        self.n_feature = input_width(space)
        self._of_pixels = holds_images(space)

    @classmethod
    def fits(cls, space: Space) -> bool:
        return isinstance(space, Leaf)

    def forward(self, x: Tensor) -> Tensor:
        return flat_pixels(x) if self._of_pixels else x


def input_width(space: Leaf) -> int:
    """The number of values that `make_input` makes of one observation of a leaf."""
    if isinstance(space, Discrete):
        return space.n
    return sum(space.nvec) if isinstance(space, MultiDiscrete) else action_width(space)


class WideValueHead(nn.Module):
    """Features [..., F] -> logits [..., K] of a distribution of returns, zero at the start: all bins are equally likely."""

    def __init__(self, n_in: int, n_output: int) -> None:
        super().__init__()
        self.layer = nn.Linear(n_in, n_output)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, feature: Tensor) -> Tensor:
        return self.layer(feature)


class ValueHead(nn.Module):
    """Features [..., F] -> value [...]; its weights start with norm `gain`."""

    def __init__(self, n_in: int, gain: float = 1.0) -> None:
        super().__init__()
        self.layer = orthogonal(nn.Linear(n_in, 1), gain)

    def forward(self, feature: Tensor) -> Tensor:
        return self.layer(feature).squeeze(-1)


def make_policy_head(
    n_feature: int,
    action_space: Space,
    state_dependent_std: bool = False,
    log_std_init: float = 0.0,
    distribution: str = 'auto',
    log_std_min: float = -10.0,
    log_std_max: float = 2.0,
) -> nn.Module:
    """The last layer of a policy: features [..., n_feature] -> logit [..., P], for an action space.

    Args: distribution: a registered name, or 'auto': chosen by the space. The last arguments are for real-valued actions,
      see `ActorCriticConfig`.
    """
    options = {
        'n_feature': n_feature,
        'state_dependent_std': state_dependent_std,
        'log_std_init': log_std_init,
        'log_std_min': log_std_min,
        'log_std_max': log_std_max,
    }
    return make_dist(action_space, distribution, options).make_head(n_feature, options)


def check_mask(obs_space: Space, dist: ActionDist) -> bool:
    """Whether observations hold an action mask. Raises: UserError if the distribution cannot use it."""
    mask = mask_space(obs_space)
    if mask is None:
        return False
    if not dist.n_mask:
        raise UserError(
            f'the observations hold an {ACTION_MASK!r} but actions of a {dist.name} distribution take no mask; '
            'set env.action_mask=off'
        )
    if mask.shape != (dist.n_mask,):
        raise UserError(
            f'the {ACTION_MASK!r} of the observations has shape {mask.shape} but must have ({dist.n_mask},), one entry '
            f'for each choice of the {dist.name} distribution; change the env'
        )
    return True
