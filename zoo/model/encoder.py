"""Encoders: observation -> features."""
from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.spaces import Box, Space

Activation = Literal['tanh', 'relu']
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {'tanh': torch.tanh, 'relu': torch.relu}


def linear(n_in: int, n_out: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights of the given gain and zero bias (effect measured in arXiv:2006.05990)."""
    layer = nn.Linear(n_in, n_out)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class OneHot(nn.Module):
    """[...] int64 index below n -> [..., n] f32."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self._n = n

    def forward(self, obs: Tensor) -> Tensor:
        return nn.functional.one_hot(obs, self._n).to(torch.float32)


def make_input(obs_space: Space, obs_norm: bool) -> tuple[nn.Module, int]:
    """The first stage of a model: one-hot, normalisation or nothing; and how many features it gives."""
    if isinstance(obs_space, Box):
        if len(obs_space.shape) != 1:
            raise ValueError('an MLP encoder takes observations of shape [O] but the space has '
                             f'shape {obs_space.shape}; flatten them in the env')
        return (RunningMeanStd(obs_space.shape) if obs_norm else nn.Identity()), obs_space.shape[0]
    return OneHot(obs_space.n), obs_space.n  # one-hot inputs are of unit scale: nothing to normalise


class MLP(nn.Module):
    """Fully connected layers, each followed by the activation: [..., n_in] -> [..., hidden_sizes[-1]].

    One module with a loop: at 8 rows a nested module call costs as much as the activation it wraps.
    """

    def __init__(self, n_in: int, hidden_sizes: list[int], activation: Activation) -> None:
        super().__init__()
        self.layers = nn.ModuleList([linear(a, b, math.sqrt(2)) for a, b in pairwise([n_in, *hidden_sizes])])
        self._activation = _ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        layer: Any
        for layer in self.layers:
            x = self._activation(nn.functional.linear(x, layer.weight, layer.bias))
        return x
