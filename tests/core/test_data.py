"""Rollout: the true next observation of every row; true last observations of episodes; trees of tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.gpu import needs_gpu, no_waiting
from zoo.core.data import Rollout, final_rows, leaves, map_tensors, path_names, send


def make(ends: list[tuple[int, int]], n_step: int = 3, n_env: int = 2, vector: bool = True) -> Rollout:
    """obs of row t, env b: 10 t + b; obs after the block: 90 + b; final obs of an end at (t, b): 1000 + 10 t + b."""
    t, b = torch.arange(n_step).view(-1, 1), torch.arange(n_env)
    final = torch.tensor([1000 + 10 * t + b for t, b in ends])
    index = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2)

    def shaped(x: Tensor) -> Tensor:
        return torch.stack((x, -x), -1).float() if vector else x.long()

    data = {'obs': shaped(10 * t + b), 'action': 10 * t + b}
    return Rollout(data, shaped(90 + b), shaped(final), index)


def first(obs: Tensor) -> list:
    return (obs[..., 0] if obs.is_floating_point() else obs).tolist()


@pytest.mark.parametrize('vector', [True, False])
def test_next_obs_by_hand(vector):
    # without an end: the next row, or the obs after the block; at an end: its final obs, not the next episode's first
    assert first(make([], vector=vector).next_obs()) == [[10, 11], [20, 21], [90, 91]]
    assert first(make([(0, 1), (2, 0)], vector=vector).next_obs()) == [[10, 1001], [20, 21], [1020, 91]]
    assert first(make([(1, 0), (1, 1)], vector=vector).next_obs()) == [[10, 11], [1010, 1011], [90, 91]]


@pytest.mark.parametrize('ends', [[], [(0, 1)]])
def test_next_obs_has_the_dtype_of_the_rows(ends):
    rollout = make(ends)
    rollout.final_obs = rollout.final_obs.view(-1, 2).double()
    found = rollout.next_obs()
    assert found.dtype == torch.float32 and first(found) == [[10, 1001 if ends else 11], [20, 21], [90, 91]]


def test_next_obs_of_one_step():
    assert first(make([(0, 1)], n_step=1).next_obs()) == [[90, 1001]]


def test_next_obs_leaves_the_rollout_alone():
    rollout = make([(0, 1), (2, 0)])
    before = [x.clone() for x in (rollout.data['obs'], rollout.last_obs, rollout.final_obs, rollout.final_index)]
    rollout.next_obs().fill_(7)
    after = (rollout.data['obs'], rollout.last_obs, rollout.final_obs, rollout.final_index)
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_to_moves_every_tensor():
    rollout = make([(0, 1)]).to(torch.device('meta'))
    tensors = (*rollout.data.values(), rollout.last_obs, rollout.final_obs, rollout.final_index)
    assert len(tensors) == 5 and all(x.device.type == 'meta' for x in tensors)


def test_to_the_device_it_is_on_is_the_same_rollout():
    rollout = make([(0, 1)])
    assert rollout.to(torch.device('cpu')) is rollout


def test_trees_are_mapped_leaf_by_leaf_and_named_by_path():
    tree = {'a': torch.tensor([1.0, 2.0]), 'b': {'c': torch.tensor([3.0, 4.0])}}
    assert [(path, x.tolist()) for path, x in leaves(tree)] == [('a', [1.0, 2.0]), ('b.c', [3.0, 4.0])]
    total = map_tensors(torch.add, tree, map_tensors(lambda x: 10 * x, tree))
    assert total['a'].tolist() == [11.0, 22.0] and total['b']['c'].tolist() == [33.0, 44.0]


def test_what_is_there_already_is_not_copied() -> None:
    x = torch.arange(3)
    assert send(x, torch.device('cpu')) is x


@needs_gpu
@pytest.mark.parametrize('pinned', [True, False])
@pytest.mark.parametrize('n', [0, 5])
def test_send_does_not_wait(pinned: bool, n: int) -> None:
    x = torch.arange(n).pin_memory() if pinned and n else torch.arange(n)
    with no_waiting():
        there = send(x, torch.device('cuda'))
    assert there.is_cuda and there.tolist() == list(range(n))


def test_final_lists_observations_with_time_and_env() -> None:
    rows = torch.zeros(5, 3, 2)
    obs, index = final_rows([], rows)
    assert (obs.shape, index.shape, index.dtype) == ((0, 2), (0, 2), torch.int64)
    finals = [
        (1, np.array([0, 2]), np.array([[1, 2], [3, 4]], np.float32)),
        (3, np.array([1]), np.array([[5, 6]], np.float32)),
    ]
    obs, index = final_rows(finals, rows)
    assert obs.tolist() == [[1, 2], [3, 4], [5, 6]] and index.tolist() == [[1, 0], [1, 2], [3, 1]]


@pytest.mark.parametrize(
    ('paths', 'names'),
    [
        ([()], ['']),
        ([('a', 'b'), ('c',)], ['a.b', 'c']),
        ([('observation.state',), ('observation.vel',)], ['observation.state', 'observation.vel']),
        # the shorter path keeps a text that two have, whatever the order
        ([('a', 'b'), ('a.b',)], ['a.b_', 'a.b']),
        ([('a.b',), ('a', 'b')], ['a.b', 'a.b_']),
        # a name that is taken is not used again
        ([('a.b',), ('a', 'b'), ('a.b_',), ('a.b__',)], ['a.b', 'a.b___', 'a.b_', 'a.b__']),
        ([('a.b.c',), ('a', 'b.c'), ('a.b', 'c'), ('a', 'b', 'c')], ['a.b.c', 'a.b.c_', 'a.b.c__', 'a.b.c___']),
        # an empty name is no missing one
        ([('',), ('x',)], ['_', 'x']),
        ([('',), ('_',), ('', 'b'), ('b',)], ['__', '_', '.b', 'b']),
    ],
)
def test_every_path_has_a_name_of_its_own(paths, names):
    assert list(path_names(paths).values()) == names and list(path_names(paths)) == paths
    assert path_names(paths[::-1]) == path_names(paths)


def test_leaves_of_a_tree_have_the_names_of_their_paths():
    tree = {'a': {'b': torch.zeros(1), 'c': torch.ones(1)}, 'a.b': torch.ones(2)}
    assert [(name, len(x)) for name, x in leaves(tree)] == [('a.b_', 1), ('a.c', 1), ('a.b', 2)]
