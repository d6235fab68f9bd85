"""Rollout: the true successor of every row, and the rollout of one env alone."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from zoo.core.data import Rollout


def make(ends: list[tuple[int, int]], n_step: int = 3, n_env: int = 2, vector: bool = True) -> Rollout:
    """obs of row t, env b: 10 t + b; what follows the block: 90 + b; final obs of an end at (t, b): 1000 + 10 t + b."""
    t, b = torch.arange(n_step).view(-1, 1), torch.arange(n_env)
    final = torch.tensor([1000 + 10 * t + b for t, b in ends])
    index = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2)

    def shaped(x: Tensor) -> Tensor:
        return torch.stack((x, -x), -1).float() if vector else x.long()

    data = TensorDict({'obs': shaped(10 * t + b), 'action': 10 * t + b}, batch_size=[n_step, n_env])
    return Rollout(data, shaped(90 + b), shaped(final), index)


def first(obs: Tensor) -> list:
    return (obs[..., 0] if obs.is_floating_point() else obs).tolist()


@pytest.mark.parametrize('vector', [True, False])
def test_next_obs_by_hand(vector):
    # without ends the next row, and what followed the block; an end shows its final obs, not the next episode's first
    assert first(make([], vector=vector).next_obs()) == [[10, 11], [20, 21], [90, 91]]
    assert first(make([(0, 1), (2, 0)], vector=vector).next_obs()) == [[10, 1001], [20, 21], [1020, 91]]
    assert first(make([(1, 0), (1, 1)], vector=vector).next_obs()) == [[10, 11], [1010, 1011], [90, 91]]


def test_next_obs_of_one_step():
    assert first(make([(0, 1)], n_step=1).next_obs()) == [[90, 1001]]


def test_next_obs_leaves_the_rollout_alone():
    rollout = make([(0, 1), (2, 0)])
    before = [x.clone() for x in (rollout.data['obs'], rollout.last_obs, rollout.final_obs, rollout.final_index)]
    rollout.next_obs().fill_(7)
    after = (rollout.data['obs'], rollout.last_obs, rollout.final_obs, rollout.final_index)
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize(
    'ends',
    [
        [],
        [(0, 1)],
        [(0, 0), (0, 2), (1, 1), (3, 1), (4, 2)],
        [(t, b) for t in range(5) for b in range(3)],
    ],
)
def test_columns_are_the_rollouts_of_single_envs(ends):
    rollout = make(ends, n_step=5, n_env=3)
    for b in range(3):
        column = rollout.column(b)
        assert column.data.batch_size == (5, 1)
        assert torch.equal(column.data['action'][:, 0], rollout.data['action'][:, b])
        assert torch.equal(column.last_obs[0], rollout.last_obs[b])
        assert column.final_index.tolist() == [[t, 0] for t, env in ends if env == b]
        assert torch.equal(column.next_obs()[:, 0], rollout.next_obs()[:, b])


def test_column_does_not_renumber_the_whole():
    rollout = make([(0, 1), (2, 0)])
    rollout.column(1)
    assert rollout.final_index.tolist() == [[0, 1], [2, 0]]


def test_to_moves_every_tensor():
    rollout = make([(0, 1)]).to(torch.device('meta'))
    tensors = (*rollout.data.values(), rollout.last_obs, rollout.final_obs, rollout.final_index)
    assert len(tensors) == 5 and all(x.device.type == 'meta' for x in tensors)
