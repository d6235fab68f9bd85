"""Blocks of env steps: each row has what the env did; final observations, flags and actions are what they should be."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch

from tests.envs import LimitEnv, LimitVectorEnv
from zoo.core.data import final_rows
from zoo.env import EnvConfig, EnvContractError, StepBlock, make_vector_env
from zoo.env.interface import SINGLE_STEPS, SingleSteps

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
        'ScalarFlags-v0',
        entry_point='tests.envs:LimitEnv',
        vector_entry_point='tests.env.test_interface:ScalarFlagsEnv',
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


def test_steps_results_that_are_kept_stay_as_they_were() -> None:
    """obs counts 1, 2, 3, 4, 5 and begins anew with 0 at the step whose true last observation is 5 (same_step)."""
    env = make_vector_env(EnvConfig(id='tests.envs:limit_env', **MODES['same_step']), 2)
    env.reset(0)
    kept = [env.step(torch.tensor([0, 1])) for _ in range(3 * SINGLE_STEPS)]
    counted = [[(t + 1) % 5] * 2 for t in range(3 * SINGLE_STEPS)]
    assert [step.obs.flatten().tolist() for step in kept] == counted
    assert [t for t, step in enumerate(kept) if step.final_obs is not None] == list(range(4, 3 * SINGLE_STEPS, 5))
    assert all(step.final_obs.flatten().tolist() == [5.0, 5.0] for step in kept[4::5])


@pytest.mark.parametrize(('n_number', 'n_step'), [(1, SINGLE_STEPS), (10_000, 6), (1_000_000, 1)])
def test_memory_of_single_steps_is_bounded(n_number: int, n_step: int) -> None:
    """Of n_number float32 observations an env: 10,000 of them are 40,006 bytes a step with reward and flags, 262,144 // 40,006 = 6."""
    made = []

    def make(n: int) -> StepBlock:
        made.append(StepBlock(n, torch.zeros(1, n_number)))
        return made[-1]

    steps = SingleSteps(make)
    for _ in range(2):
        block, t, row = steps.next()
    assert (block, t) == (made[1], 0)
    assert row['obs'].data_ptr() == block.steps.obs.data_ptr()
    assert len(block.rows) == n_step
