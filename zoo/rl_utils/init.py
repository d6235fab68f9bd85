"""Initialisation of layers: weights of a given gain, zero biases."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

POLICY_GAIN = 0.01  # gain of a policy's last layer, so that the initial policy is nearly uniform

Layer = TypeVar('Layer', nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float) -> Layer:
    """Makes all singular values of the weights equal to the gain (effect measured in arXiv:2006.05990); filters are rows.

    In a layer with no more outputs than inputs, the weights of every output then also have the norm `gain`.
    """
    nn.init.orthogonal_(layer.weight, gain)
    return _zero_bias(layer)


@torch.no_grad()
def normed(layer: Layer, gain: float) -> Layer:
    """Makes the weights of every output a random direction of norm `gain`.

    Unlike `orthogonal`, this also works for layers with more outputs than inputs, and needs no matrix decomposition.
    """
    weight = nn.init.normal_(layer.weight)
    weight.mul_(gain / weight.flatten(1).norm(dim=1).view(-1, *([1] * (weight.dim() - 1))))
    return _zero_bias(layer)


def _zero_bias(layer: Layer) -> Layer:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
