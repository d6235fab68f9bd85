"""A block has every step's row in its place; the env counts its steps, pays 1 for each and ends after 5."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from zoo.env import EnvConfig, StepBlock, make_vector_env

MODES = {'same_step': dict(vectorization='sync', autoreset='same_step'),
         'next_step': dict(vectorization='sync', autoreset='next_step'),
         'disabled': dict(vectorization='async', autoreset='disabled'),
         'batched': dict(id='tests.envs:Limit-v0', vectorization='batched')}


@pytest.mark.parametrize('mode', MODES)
def test_step_into_writes_what_step_returns(mode: str) -> None:
    def make() -> Any:
        env = make_vector_env(EnvConfig(**{'id': 'tests.envs:limit_env', **MODES[mode]}), 2)
        env.reset(0)
        return env

    one, other, actions = make(), make(), torch.tensor([[0, 1]] * 12)
    block = other.block(12)
    for t, action in enumerate(actions):
        step = one.step(action)
        other.step_into(block, t, action)
        for name, value in step._asdict().items():
            if name not in ('info', 'final_obs', 'final_index'):
                got = getattr(block.steps, name)
                assert (got is None) == (value is None) and (value is None or torch.equal(got[t], value)), name
        if step.final_obs is not None:
            when, envs, obs = block.finals[-1]
            assert (when, envs.tolist(), obs.tolist()) == (t, step.final_index.tolist(), step.final_obs.tolist())
    one.close(), other.close()


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
    obs, index = block.final()
    assert (obs.shape, index.shape, index.dtype) == ((0, 2), (0, 2), torch.int64)
    block.finals += [(1, np.array([0, 2]), np.array([[1, 2], [3, 4]], np.float32)),
                     (3, np.array([1]), np.array([[5, 6]], np.float32))]
    obs, index = block.final()
    assert obs.tolist() == [[1, 2], [3, 4], [5, 6]] and index.tolist() == [[1, 0], [1, 2], [3, 1]]
