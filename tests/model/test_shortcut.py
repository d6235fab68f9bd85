"""Layers that are computed without a call of their module: a hook on one, or another layer in its place, acts all the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune, spectral_norm

from zoo.core.spaces import Box
from zoo.model import make_encoder, make_input

VECTOR = Box(np.full(3, -np.inf), np.full(3, np.inf))
IMAGE = Box(np.zeros((12, 12, 3)), np.full((12, 12, 3), 255.0), 'uint8')
CNN = {'type': 'cnn', 'channels': [4], 'kernels': [3], 'strides': [2], 'hidden_size': 8}
IMPALA = {'type': 'impala', 'global_pool': True}


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def encoder(space: Box, spec: Any = 'mlp', **options: Any) -> tuple[Any, Callable[[Tensor], Tensor], Tensor]:
    """An encoder, the function from observations to its features, and random observations."""
    torch.manual_seed(0)
    network, _ = make_encoder(space, spec, **options)
    stage = make_input(space)
    obs = torch.randn(5, 3) if space is VECTOR else torch.randint(0, 256, (5, 12, 12, 3), dtype=torch.uint8)
    return network, lambda x: network(stage(x)), obs


@pytest.mark.parametrize(
    ('space', 'spec', 'options', 'path'),
    [
        (VECTOR, 'mlp', {}, 'layers.0'),
        (VECTOR, 'mlp', {}, 'layers.1'),
        (VECTOR, 'mlp', {'layer_norm': True}, 'norms.0'),
        (IMAGE, CNN, {}, 'convs.0'),
        (IMAGE, IMPALA, {}, 'stages.0.0'),
    ],
)
def test_hook_that_doubles_the_output_of_a_layer_acts_as_doubled_parameters(
    space: Box, spec: Any, options: Any, path: str
) -> None:
    """2 (W x + b) = (2 W) x + 2 b, exactly, since a factor of 2 changes no digit."""
    network, compute, obs = encoder(space, spec, **options)
    before = compute(obs)
    layer = network.get_submodule(path)
    handle = layer.register_forward_hook(lambda module, args, output: 2 * output)
    hooked = compute(obs)
    handle.remove()
    assert torch.equal(compute(obs), before)
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(2)
    torch.testing.assert_close(hooked, compute(obs), rtol=1e-5, atol=1e-6)
    assert (hooked - before).abs().max() > 1e-3


def test_hook_on_a_stage_of_impala_acts() -> None:
    """Features of zero maps do not depend on the image."""
    network, compute, obs = encoder(IMAGE, IMPALA)
    assert not torch.allclose(compute(obs)[0], compute(obs)[1])
    network.stages[-1].register_forward_hook(lambda module, args, output: torch.zeros_like(output))
    found = compute(obs)
    assert torch.equal(found[0], found[1])


def test_layer_of_a_subclass_in_the_place_of_a_layer_is_called() -> None:
    network, compute, obs = encoder(VECTOR)
    own = Doubled(3, 64)
    own.load_state_dict(network.layers[0].state_dict())
    other = copy.deepcopy(network)
    other.layers[0] = own
    with torch.no_grad():
        for p in network.layers[0].parameters():
            p.mul_(2)
    torch.testing.assert_close(other(obs), compute(obs))


def test_pruned_and_spectrally_normalised_layers_have_the_weights_of_their_parametrisation() -> None:
    """Both compute the weight in a hook before each call: 0 where pruned, and of a largest singular value of 1."""
    network, compute, obs = encoder(VECTOR)
    prune.l1_unstructured(network.layers[0], 'weight', amount=0.5)
    with torch.no_grad():
        network.layers[0].weight_orig.add_(1.0)  # as a gradient step moves it
    compute(obs)
    pruned = network.layers[0].weight
    assert (pruned == 0).sum() == 96  # half of 64 x 3
    torch.testing.assert_close(pruned[pruned != 0], network.layers[0].weight_orig[pruned != 0])

    network, compute, obs = encoder(VECTOR)
    spectral_norm(network.layers[0], n_power_iterations=50)
    with torch.no_grad():
        network.layers[0].weight_orig.mul_(7.0)
    compute(obs)
    assert torch.linalg.matrix_norm(network.layers[0].weight, 2).item() == pytest.approx(1.0, rel=1e-3)
