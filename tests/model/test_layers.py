"""Fully connected layers: layer normalisation, and layers that are pruned or parametrised."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm

from zoo.model.layers import Layers


def test_layer_norm_stands_before_each_activation() -> None:
    layers: Any = Layers(4, [5, 6], 'silu', layer_norm=True)
    x = y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    for layer, norm in zip(layers.layers, layers.norms, strict=True):
        with torch.no_grad():
            norm.weight.uniform_(0.5, 2)
            norm.bias.uniform_(-1, 1)
        y = y @ layer.weight.T + layer.bias
        y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        y = F.silu(y * norm.weight + norm.bias)
    torch.testing.assert_close(layers(x), y)


@pytest.mark.parametrize(
    ('layer_norm', 'last_norm', 'n'),
    [(True, 'same', 33), (True, 'plain', 29), (True, 'none', 29), (False, 'plain', 23), (False, 'none', 23)],
)
def test_last_norm_is_that_of_the_last_layer_alone(layer_norm: bool, last_norm: Any, n: int) -> None:
    layers: Any = Layers(4, [3, 2], 'relu', layer_norm, last_norm)
    # 4 * 3 + 3 + 3 * 2 + 2 = 23 of the linear layers; a norm of 3 or 2 numbers has twice as many
    x = torch.randn(5, 4)
    first = layers.layers[0](x)
    if layer_norm:
        first = F.layer_norm(first, (3,))
    last = layers.layers[1](torch.relu(first))
    if layer_norm and last_norm == 'same' or last_norm == 'plain':
        last = F.layer_norm(last, (2,))
    torch.testing.assert_close(layers(x), torch.relu(last))
    assert sum(p.numel() for p in layers.parameters()) == n


@pytest.mark.parametrize('change', [prune.l1_unstructured, prune.identity, lambda layer, name: spectral_norm(layer)])
def test_layers_that_are_pruned_or_parametrised_compute_with_what_they_have_become(change: Any) -> None:
    layers, x = Layers(4, [8, 8], 'tanh'), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    for layer in layers.layers:
        for name in ('weight', 'bias'):
            change(layer, name, **({'amount': 0.5} if change is prune.l1_unstructured else {}))
    layers.eval()
    first, second = layers.layers
    assert torch.equal(layers(x), second(first(x).tanh()).tanh())  # each module's own call
