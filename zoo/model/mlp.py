"""Fully connected networks over vectors and indices, and the value head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot

from zoo.rl_utils.init import orthogonal

Activation = Literal['tanh', 'relu']
_ACTIVATIONS = {'tanh': torch.tanh, 'relu': torch.relu}


class OneHot(nn.Module):
    """[...] int64 index below n -> [..., n] f32."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, obs: Tensor) -> Tensor:
        return one_hot(obs, self.n).to(torch.float32)


class MLP(nn.Module):
    """Fully connected layers, each followed by the activation: [..., n_in] -> [..., hidden_sizes[-1]].

    One module with a loop: at 8 rows a nested module call costs as much as the activation it wraps.
    """

    value_gain: ClassVar[float] = 1.0

    def __init__(self, n_in: int, hidden_sizes: Sequence[int], activation: Activation) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ValueError(f'activation is {activation!r}; use {" or ".join(map(repr, _ACTIVATIONS))}')
        sizes = pairwise([n_in, *hidden_sizes])
        self.layers = nn.ModuleList([orthogonal(nn.Linear(a, b), math.sqrt(2)) for a, b in sizes])
        self.n_feature = hidden_sizes[-1]
        self.activation: Activation = activation

    def forward(self, x: Tensor) -> Tensor:
        activate = _ACTIVATIONS[self.activation]
        layer: Any
        for layer in self.layers:
            x = activate(linear(x, layer.weight, layer.bias))
        return x


class ValueHead(nn.Module):
    """Features [..., F] -> value [...]; its weights start with norm `gain`."""

    def __init__(self, n_in: int, gain: float = 1.0) -> None:
        super().__init__()
        self.layer = orthogonal(nn.Linear(n_in, 1), gain)

    def forward(self, feature: Tensor) -> Tensor:
        return self.layer(feature).squeeze(-1)
