"""Encoder 'simba' written out, and how it starts."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from zoo.core.spaces import Box
from zoo.model import make_encoder

SPACE = Box(-np.ones(5), np.ones(5))


def test_simba_is_its_layers_written_out():
    torch.manual_seed(0)
    network, n = make_encoder(SPACE, {'type': 'simba', 'hidden_size': 6, 'n_block': 2})
    w, x = network.state_dict(), torch.randn(7, 5)
    y = x @ w['embed.weight'].T + w['embed.bias']
    for k in range(2):
        inner = F.layer_norm(y, (6,))  # its own factors start at 1 and 0
        inner = (inner @ w[f'blocks.{k}.first.weight'].T).clamp(min=0) @ w[f'blocks.{k}.second.weight'].T
        y = y + inner
    torch.testing.assert_close(network(x), F.layer_norm(y, (6,)))
    assert n == 6


def test_simba_starts_orthogonal_and_with_the_deviation_of_he_in_its_blocks():
    torch.manual_seed(0)
    network, _ = make_encoder(SPACE, {'type': 'simba', 'hidden_size': 128})
    torch.testing.assert_close(torch.linalg.svdvals(network.embed.weight.detach()), torch.ones(5))
    block = network.blocks[0]
    # sqrt(2 / inputs) over 128 * 512 numbers, so to within 1%
    assert abs(block.first.weight.std().item() / (2 / 128) ** 0.5 - 1) < 0.01
    assert abs(block.second.weight.std().item() / (2 / 512) ** 0.5 - 1) < 0.01
    assert not any(p.any() for name, p in network.named_parameters() if name.endswith('bias'))


def test_simba_has_the_parameters_of_its_layers():
    network, _ = make_encoder(SPACE, {'type': 'simba', 'hidden_size': 64, 'n_block': 2})
    # 5*64 + 64; a block: 2*64, 64*256 + 256, 256*64 + 64; the last norm 2*64
    assert sum(p.numel() for p in network.parameters()) == 384 + 2 * (128 + 16640 + 16448) + 128
