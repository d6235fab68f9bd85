"""Rollout: the true next observation of every row; trees of tensors; blocks of env steps."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.envs import LimitEnv, LimitVectorEnv
from tests.gpu import needs_gpu, no_waiting
from tests.policy.test_device import Crossings
from zoo.core.data import Rollout, final_rows, leaves, map_tensors, replace_rows, send
from zoo.env import EnvConfig, EnvContractError, StepBlock, make_vector_env


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


def test_replaced_rows_are_those_marked():
    old, new = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[7.0], [8.0], [9.0]])
    got = replace_rows(torch.tensor([False, True, False]), {'h': new}, {'h': old})
    assert got['h'].tolist() == [[1.0], [8.0], [3.0]] and old.tolist() == [[1.0], [2.0], [3.0]]


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


def test_rows_of_a_state_on_a_device_are_replaced_without_waiting():
    state = {'h': torch.zeros(3, 2, device='meta'), 'c': torch.zeros(3, device='meta')}
    with Crossings() as crossings:
        replace_rows(torch.tensor([True, False, True]), state, state)
    assert crossings.waited == [] and crossings.n_sent == 2


# --- blocks of env steps ---


MODES = {
    'same_step': dict(vectorization='sync', autoreset='same_step'),
    'next_step': dict(vectorization='sync', autoreset='next_step'),
    'sync disabled': dict(vectorization='sync', autoreset='disabled'),
    'async disabled': dict(vectorization='async', autoreset='disabled'),
    'batched': dict(id='tests.envs:Limit-v0', vectorization='batched'),
}


@pytest.mark.parametrize('mode', MODES)
def test_rows_of_a_block_are_what_the_env_did_and_what_step_returns(mode: str) -> None:
    """obs counts to 5, then a new episode begins: at once (5 is only a final obs) or, with next_step, after a reset row."""
    env, other = (make_vector_env(EnvConfig(**{'id': 'tests.envs:limit_env', **MODES[mode]}), 2) for _ in range(2))
    block, action = env.block(7), torch.tensor([0, 1])
    block.obs[0].copy_(env.reset(0))
    other.reset(0)
    for t in range(7):
        env.send(action)
        env.receive(block, t)
        for name, value in (step := other.step(action))._asdict().items():
            if name not in ('info', 'final_obs', 'final_index'):
                got = getattr(block.steps, name)
                assert (got is None) == (value is None) and (value is None or torch.equal(got[t], value)), name
        if step.final_obs is not None:
            when, envs, obs = block.finals[-1]
            assert (when, envs.tolist(), obs.tolist()) == (t, step.final_index.tolist(), step.final_obs.tolist())
    next_step = mode in ('next_step', 'batched')
    want = [0, 1, 2, 3, 4, 5, 0, 1] if next_step else [0, 1, 2, 3, 4, 0, 1, 2]
    assert block.obs[:, 0, 0].tolist() == block.obs[:, 1, 0].tolist() == want
    assert block.steps.reward[:, 1].tolist() == ([1, 1, 1, 1, 1, 0, 1] if next_step else [1] * 7)
    assert block.steps.truncated[:, 0].tolist() == [False, False, False, False, True, False, False]
    assert not block.steps.terminated.any()
    obs, index = final_rows(block.finals, block.obs)
    if next_step:
        assert block.steps.is_reset is not None and block.steps.is_reset[:, 0].nonzero().tolist() == [[5]]
        assert len(obs) == 0
    else:
        assert block.steps.is_reset is None
        assert obs.tolist() == [[5], [5]] and index.tolist() == [[4, 0], [4, 1]]
    env.close(), other.close()


class InPlaceEnv(LimitEnv):
    """Returns the same array at every step."""

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        self.array = getattr(self, 'array', obs)
        self.array[:] = obs
        return self.array, info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        self.array[:] = obs
        return self.array, *rest


def test_final_observation_of_an_env_that_writes_in_place_is_the_true_one() -> None:
    env = make_vector_env(EnvConfig(id=InPlaceEnv, vectorization='sync', autoreset='same_step'), 1)
    env.reset(0)
    for _ in range(5):
        step = env.step(torch.tensor([0]))
    assert step.final_obs is not None and step.final_obs.tolist() == [[5.0]] and step.obs.tolist() == [[0.0]]


class ScalarFlagsEnv(LimitVectorEnv):
    """Returns `terminated` as one flag for all envs, and overwrites the actions that it gets."""

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(actions)
        actions[:] = 1
        return obs, reward, terminated[:1], truncated, info


def test_flag_that_would_broadcast_is_refused_and_actions_sent_are_a_copy() -> None:
    gymnasium.register(
        'ScalarFlags-v0', entry_point='tests.envs:LimitEnv', vector_entry_point='tests.core.test_data:ScalarFlagsEnv'
    )
    env = make_vector_env(EnvConfig(id='ScalarFlags-v0', vectorization='batched'), 3)
    env.reset(0)
    action = torch.tensor([0, 1, 0])
    with pytest.raises(EnvContractError, match=r'step returned terminated of shape \(1,\), wanted \(3,\)'):
        env.step(action)
    assert action.tolist() == [0, 1, 0]


def test_block_rows_are_views_and_obs_has_one_more() -> None:
    for arrays in (True, False):
        block = StepBlock(3, torch.zeros(2, 4), ['is_reset', 'next_obs'], arrays=arrays)
        assert block.obs.shape == (4, 2, 4) and len(block.rows) == 3
        block.obs.zero_()
        block.rows[1].obs[...] = 7.0
        block.rows[1].is_reset[...] = True
        assert block.obs[2].eq(7).all() and block.obs.sum() == 7 * 8 and block.steps.obs[1].eq(7).all()
        assert block.steps.is_reset is not None and block.steps.is_reset[1].all()
        assert block.rows[0].raw_reward is None and block.steps.raw_reward is None


def test_final_lists_observations_with_time_and_env() -> None:
    block = StepBlock(4, torch.zeros(3, 2), arrays=True)
    obs, index = final_rows(block.finals, block.obs)
    assert (obs.shape, index.shape, index.dtype) == ((0, 2), (0, 2), torch.int64)
    block.finals += [
        (1, np.array([0, 2]), np.array([[1, 2], [3, 4]], np.float32)),
        (3, np.array([1]), np.array([[5, 6]], np.float32)),
    ]
    obs, index = final_rows(block.finals, block.obs)
    assert obs.tolist() == [[1, 2], [3, 4], [5, 6]] and index.tolist() == [[1, 0], [1, 2], [3, 1]]
