"""How weights start."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zoo.rl_utils.init import normed, orthogonal


@pytest.mark.parametrize('layer', [nn.Linear(5, 3), nn.Linear(3, 5), nn.Conv2d(2, 4, 3), nn.Conv2d(1, 16, 3)])
def test_normed_filters_have_the_gain_as_their_norm(layer):
    normed(layer, 0.3)
    norms = layer.weight.flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.full_like(norms, 0.3))
    assert not layer.bias.any() and layer.weight.requires_grad


@pytest.mark.parametrize('layer', [nn.Linear(5, 3), nn.Linear(3, 5), nn.Conv2d(2, 4, 3), nn.Conv2d(1, 16, 3)])
def test_orthogonal_filters_have_the_gain_as_singular_values(layer):
    orthogonal(layer, 0.3)
    values = torch.linalg.svdvals(layer.weight.detach().flatten(1))
    torch.testing.assert_close(values, torch.full_like(values, 0.3))
    assert not layer.bias.any()


def test_layers_zero_bias_are_taken():
    layer = nn.Linear(4, 2, bias=False)
    assert normed(layer, 1.0) is layer and orthogonal(layer, 1.0) is layer and layer.bias is None
