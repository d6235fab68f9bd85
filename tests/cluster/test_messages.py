"""What goes to runners and comes back: names of blocks, and the memory for those of all envs."""

from __future__ import annotations

import numpy as np
import torch

from zoo.cluster.messages import Parcel, flat, tensor_like, tree_of


def test_a_tree_is_the_same_after_it_was_flat() -> None:
    tree = {'action': torch.tensor([1, 2]), 'state': {'h': torch.zeros(2, 3), 'deep': {'c': torch.ones(2)}}}
    blocks = dict(flat(tree, 'output'))
    assert list(blocks) == ['output.action', 'output.state.h', 'output.state.deep.c']
    found = tree_of(blocks, 'output')
    assert found.keys() == tree.keys() and found['state']['deep']['c'] is blocks['output.state.deep.c']
    assert dict(flat(torch.ones(2), 'state')).keys() == {'state'}
    assert tree_of({'state': 1}, 'state') == 1 and tree_of(blocks, 'state') is None


def test_blocks_of_tensors_on_the_cpu_are_views() -> None:
    x = torch.zeros(3)
    dict(flat(x, 'obs'))['obs'][1] = 5.0
    assert x.tolist() == [0.0, 5.0, 0.0]


def test_memory_for_all_envs_has_the_dtype_of_a_block_of_some() -> None:
    assert tensor_like(np.zeros((4, 2, 3), np.uint8), 6, 1).shape == (4, 6, 3)
    of_state = tensor_like(np.zeros((2, 5), np.float32), 6, 0)
    assert of_state.shape == (6, 5) and of_state.dtype == torch.float32
    assert tensor_like(np.zeros((4, 2), bool), 6, 1).dtype == torch.bool


def test_the_size_of_a_parcel_is_that_of_its_blocks() -> None:
    blocks = {'obs': np.zeros((3, 2, 4), np.float32), 'steps.reward': np.zeros((2, 2), np.float32)}
    assert Parcel('run', 0, 0, 0, blocks, [], [], {}).n_byte == 96 + 16  # 24 and 4 numbers of 4 bytes
