"""Initialisation of weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zoo.rl_utils.init import normed, orthogonal


@pytest.mark.parametrize('layer', [nn.Linear(5, 3), nn.Linear(3, 5), nn.Conv2d(2, 4, 3), nn.Conv2d(1, 16, 3)], ids=str)
def test_filters_have_the_gain_as_their_norm_or_as_singular_values(layer):
    for fill, size in ((normed, lambda x: x.norm(dim=1)), (orthogonal, torch.linalg.svdvals)):
        nn.init.ones_(layer.bias)
        fill(layer, 0.3)
        found = size(layer.weight.detach().flatten(1))
        torch.testing.assert_close(found, torch.full_like(found, 0.3))
        assert not layer.bias.any() and layer.weight.requires_grad


def test_layers_without_bias_are_taken():
    layer = nn.Linear(4, 2, bias=False)
    assert normed(layer, 1.0) is layer and orthogonal(layer, 1.0) is layer and layer.bias is None
