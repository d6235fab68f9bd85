"""Initial weights: of a given gain, with zero bias."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

POLICY_GAIN = 0.01  # gain of a policy's last layer: its first policy is near uniform

Layer = TypeVar('Layer', nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float) -> Layer:
    """All singular values of the weights, filters taken as rows, equal the gain (effect measured in arXiv:2006.05990).

    Of a layer with no more outputs than inputs the weights of every output then have the norm `gain`, too.
    """
    nn.init.orthogonal_(layer.weight, gain)
    return _zero_bias(layer)


@torch.no_grad()
def normed(layer: Layer, gain: float) -> Layer:
    """The weights of every output are a random direction of norm `gain`.

    Unlike `orthogonal` it also fits layers with more outputs than inputs, and costs no decomposition.
    """
    weight = nn.init.normal_(layer.weight)
    weight.mul_(gain / weight.flatten(1).norm(dim=1).view(-1, *([1] * (weight.dim() - 1))))
    return _zero_bias(layer)


def _zero_bias(layer: Layer) -> Layer:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
