"""The number of threads of each phase, and that a run uses this number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from tests.policy_envs import differing, job_config
from zoo import POLICY_REGISTRY
from zoo.core.data import Metrics
from zoo.core.spaces import Box, Discrete
from zoo.env import make_vector_env
from zoo.pipeline import serial_pipeline
from zoo.policy import PPOPolicy
from zoo.policy.base import Policy
from zoo.run.config import resolve_config, resolve_policy
from zoo.run.resources import PER_THREAD, Phase, multiply_adds, phase_threads, use_threads

VECTOR = Box(-np.ones(4, np.float32), np.ones(4, np.float32))
FRAMES = Box(np.zeros((4, 84, 84), np.uint8), np.full((4, 84, 84), 255, np.uint8), 'uint8')
CARTPOLE = 4 * 64 + 64 * 64 + 64 * 2  # multiply-adds of its actor: 4480
# filters of 8x8x4 at 400 positions, 4x4x32 at 81, 3x3x64 at 49; then dense layers 3136 -> 512 -> 6
NATURE = 400 * 32 * 256 + 81 * 64 * 512 + 49 * 64 * 576 + 3136 * 512 + 512 * 6  # 9,346,048
SEEN: list[tuple[str, int]] = []
"""(phase, number of threads) of every call."""


def rows_of(collect: int, learn: int, evaluate: int) -> dict[Phase, int]:
    return {'collect': collect, 'learn': learn, 'evaluate': evaluate}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Sets torch to two threads, as a run on two cores finds it."""
    SEEN.clear()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


class SeenEnv(gymnasium.Wrapper):
    """CartPole that notes the number of threads of each step."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make('CartPole-v1', max_episode_steps=10))

    def step(self, action: Any) -> Any:
        SEEN.append(('step', torch.get_num_threads()))
        return super().step(action)


class SeenPPO(PPOPolicy):
    """PPO that notes the number of threads of each call of a phase."""

    def _forward_collect(self, obs: torch.Tensor, state: Any) -> dict[str, Any]:
        SEEN.append(('collect', torch.get_num_threads()))
        return super()._forward_collect(obs, state)

    def _get_train_sample(self, rollout: Any) -> dict[str, Any]:
        SEEN.append(('sample', torch.get_num_threads()))
        return super()._get_train_sample(rollout)

    def _forward_learn(self, batch: Any) -> Metrics:
        SEEN.append(('learn', torch.get_num_threads()))
        return super()._forward_learn(batch)

    def _forward_eval(self, obs: torch.Tensor, state: Any) -> dict[str, Any]:
        SEEN.append(('evaluate', torch.get_num_threads()))
        return super()._forward_eval(obs, state)


@cache
def make(obs: str, n_action: int = 6) -> Policy:
    """Returns a policy for observations that are 'vectors' or 'frames'."""
    cfg = resolve_policy(dict(type='ppo', device='cpu', collect=dict(n_step=8), model=dict(precision='fp32')))
    return POLICY_REGISTRY.get('ppo')(cfg, {'vectors': VECTOR, 'frames': FRAMES}[obs], Discrete(n_action))


def run(root: Path, **policy: Any) -> dict[str, set[int]]:
    """Returns the numbers of threads seen in each phase of a run with 4 envs x 16 steps and minibatches of 64."""
    SEEN.clear()
    config = job_config(root, SeenEnv, max_env_step=128, policy=dict(learn=dict(batch_size=64), **policy))
    cfg = resolve_config(config)
    with closing(make_vector_env(cfg.env, 1)) as env:
        seen = SeenPPO(cfg.policy, env.obs_space, env.action_space)
    serial_pipeline(config, policy=seen)
    assert torch.get_num_threads() == 2
    return {phase: {n for name, n in SEEN if name == phase} for phase in ('collect', 'sample', 'learn', 'evaluate')}


@pytest.mark.long
def test_multiply_adds_are_the_entries_of_the_actors_matrices_and_of_a_filter_at_every_place() -> None:
    assert (multiply_adds(make('vectors', 2)), multiply_adds(make('frames'))) == (CARTPOLE, NATURE)


@pytest.mark.slow
def test_threads_grow_with_the_rows_up_to_the_limit() -> None:
    two = -(-2 * PER_THREAD // CARTPOLE)  # the smallest number of rows that is work for two threads
    policy = make('vectors', 2)
    assert phase_threads(policy, rows_of(two - 1, two, 1), 8) == rows_of(1, 2, 1)
    assert phase_threads(policy, rows_of(2 * two, 100 * two, two), 8) == rows_of(4, 8, 2)
    assert phase_threads(policy, rows_of(2 * two, 100 * two, two), 2) == rows_of(2, 2, 2)
    assert phase_threads(make('frames'), rows_of(64, 4096, 64), 1) == rows_of(1, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('obs', 'rows', 'want'),
    [
        ('vectors', rows_of(8, 256, 4), [1, 1, 1]),  # PPO's usual sizes
        ('frames', rows_of(8, 256, 1), [2, 2, 1]),  # 8 x 9.3M / 8.4M = 8.9; one image is 1.1 threads' work
    ],
)
def test_usual_sizes_get_what_was_measured_to_be_best(obs: str, rows: dict[Phase, int], want: list[int]) -> None:
    assert list(phase_threads(make(obs), rows, 2).values()) == want


def test_use_threads_calls_torch_only_where_the_number_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, set_num_threads = [], torch.set_num_threads

    def counted(n: int) -> None:
        calls.append(n)
        set_num_threads(n)

    monkeypatch.setattr(torch, 'set_num_threads', counted)
    for n in (2, 1, 1, 2, 2):
        use_threads(n)
        assert torch.get_num_threads() == n
    assert calls == [1, 2]


LARGE = dict(model=dict(hidden_sizes=[512, 512]))


@pytest.mark.long
@pytest.mark.slow(first=True)
@pytest.mark.parametrize(
    ('policy', 'n_act', 'n_learn'),
    [
        ({}, 1, 1),
        # (4 x 512 + 512 x 512 + 512 x 2) x 64 rows = 17.0M multiply-adds; 4 envs or evaluation envs have 1.1M
        (LARGE, 1, 2),
        # a number that is given
        ({**LARGE, 'n_thread': 1}, 1, 1),
        ({'n_thread': 2}, 2, 2),
    ],
)
def test_phase_with_enough_work_alone_gets_two_threads(
    policy: dict[str, Any], n_act: int, n_learn: int, tmp_path: Path
) -> None:
    assert run(tmp_path, **policy) == {'collect': {n_act}, 'sample': {n_learn}, 'learn': {n_learn}, 'evaluate': {n_act}}
    assert n_act == 2 or {n for name, n in SEEN if name == 'step'} == {1}


@pytest.mark.long
def test_two_runs_with_one_seed_are_equal_to_the_bit_on_two_threads(tmp_path: Path) -> None:
    cfg = job_config(tmp_path, max_env_step=128, policy=dict(n_thread=2, model=dict(hidden_sizes=[512, 512])))
    a, b = serial_pipeline(cfg, seed=1), serial_pipeline(cfg, seed=1)
    assert not differing(a.policy.state_dict(), b.policy.state_dict())
