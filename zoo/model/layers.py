"""Fully connected layers, and the heads on them: features -> parameters of the action distribution, or value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import elu, gelu, layer_norm, linear, silu

from zoo.model.images import flat_pixels
from zoo.model.shortcut import may_skip_call, may_skip_calls
from zoo.rl_utils.init import orthogonal

Activation = Literal['tanh', 'relu', 'elu', 'gelu', 'silu']
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    'tanh': torch.tanh,
    'relu': torch.relu,
    'elu': elu,
    'gelu': gelu,
    'silu': silu,
}
LastNorm = Literal['same', 'plain', 'none']
Width = Annotated[int, Field(ge=1, le=1_000_000)]


class Layers(nn.Module):
    """Fully connected layers, each followed by the activation: [..., n_in] -> [..., hidden_sizes[-1]].

    One module with a loop, since at 8 rows a nested module call costs as much as the activation it wraps. Layers with
    hooks, and those that were replaced, are called.
    Args:
      layer_norm: normalises the outputs of each layer before the activation.
      last_norm: of the last layer: 'same' as of the others, 'plain': without a gain and an offset to learn, 'none': none.
    """

    value_gain: ClassVar[float] = 1.0
    _of_pixels = False

    def __init__(
        self,
        n_in: int,
        hidden_sizes: Sequence[int],
        activation: Activation,
        layer_norm: bool = False,
        last_norm: LastNorm = 'same',
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f'activation is {activation!r}; use {" or ".join(map(repr, ACTIVATIONS))}')
        sizes = pairwise([n_in, *hidden_sizes])
        self.layers = nn.ModuleList([orthogonal(nn.Linear(a, b), math.sqrt(2)) for a, b in sizes])
        self.norms: nn.ModuleList | None = None
        if layer_norm or last_norm == 'plain':
            make: Callable[[int], nn.Module] = nn.LayerNorm
            if not layer_norm:
                make = nn.Identity
            norms = [make(n) for n in hidden_sizes]
            if last_norm == 'plain':
                norms[-1] = nn.LayerNorm(hidden_sizes[-1], elementwise_affine=False)
            elif last_norm == 'none':
                norms[-1] = nn.Identity()
            self.norms = nn.ModuleList(norms)
        self.n_feature = hidden_sizes[-1]
        self.activation: Activation = activation

    def forward(self, x: Tensor) -> Tensor:
        activate = ACTIVATIONS[self.activation]
        if self._of_pixels:
            x = flat_pixels(x)
        if self.norms is not None:
            return self._with_norms(x, activate)
        layers = self._modules['layers']._modules.values()  # type: ignore[union-attr]  # attributes take 0.5 us more each
        layer: Any
        if may_skip_calls(layers, nn.Linear):  # type: ignore[arg-type]
            for layer in layers:
                own = layer._parameters
                x = activate(linear(x, own['weight'], own['bias']))
            return x
        for layer in layers:  # one is pruned or parametrised, or has hooks
            x = activate(layer(x))
        return x

    def _with_norms(self, x: Tensor, activate: Callable[[Tensor], Tensor]) -> Tensor:
        layer: Any
        norm: Any
        for layer, norm in zip(self.layers, self.norms, strict=True):  # type: ignore[arg-type]
            if may_skip_call(layer, nn.Linear):
                own = layer._parameters
                x = linear(x, own['weight'], own['bias'])
            else:
                x = layer(x)
            if may_skip_call(norm, nn.LayerNorm):
                x = layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
            else:
                x = norm(x)
            x = activate(x)
        return x


class ValueHead(nn.Module):
    """Features [..., F] -> value [...]; its weights start with norm `gain`."""

    def __init__(self, n_in: int, gain: float = 1.0) -> None:
        super().__init__()
        self.layer = orthogonal(nn.Linear(n_in, 1), gain)

    def forward(self, feature: Tensor) -> Tensor:
        return self.layer(feature).squeeze(-1)
