"""Tests of the env 'minigrid_memory_s7': what is seen, from where, and what earns the reward."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo.env import AnyVectorEnv, EnvConfig, make_vector_env
from zoo.env.errors import EnvKwargsError
from zoo.env.families.envpool import N_KIND

needs_envpool = pytest.mark.skipif(importlib.util.find_spec('envpool') is None, reason='needs envpool')
LEFT, FORWARD = 0, 2
KEY, BALL = 5, 6
N_ENV = 64


def make() -> AnyVectorEnv:
    return make_vector_env(EnvConfig(id='minigrid_memory_s7'), N_ENV)


def all_do(action: int) -> Tensor:
    return torch.full((N_ENV,), action)


def thing(obs: Tensor) -> np.ndarray:
    """The key or ball that each env sees, [B], 0 for none; asserts that no env sees two."""
    objects = obs.numpy().reshape(N_ENV, 9, sum(N_KIND))[:, :, : N_KIND[0]].argmax(-1)  # [B, cells]
    seen = np.isin(objects, (KEY, BALL))
    assert (seen.sum(-1) <= 1).all()
    return (objects * seen).sum(-1)


@needs_envpool
def test_spaces_are_nine_cells_and_three_actions() -> None:
    env = make()
    assert env.obs_space.shape == (9 * 20,) and env.action_space.n == 3
    cells = env.reset(0).numpy().reshape(N_ENV, 9, 20)
    assert np.array_equal(cells.sum(-1), np.full((N_ENV, 9), 3.0))  # an object, a colour and a state in each


@needs_envpool
def test_the_first_object_decides_which_end_earns_the_reward() -> None:
    env = make()
    cue = thing(env.reset(0))  # seen by the envs that start next to it, a quarter of them
    assert 0 < (cue != 0).mean() < 0.5
    for _ in range(4):  # to the end of the corridor, from any start
        assert not env.step(all_do(FORWARD)).terminated.any()
    end = thing(env.step(all_do(LEFT)).obs)
    assert set(end) == {KEY, BALL}
    last = env.step(all_do(FORWARD))
    assert last.terminated.all()
    earned = last.reward.numpy() > 0
    assert np.array_equal(earned[cue != 0], (cue == end)[cue != 0])
    assert 0.3 < earned.mean() < 0.7  # both ends are equally likely
    assert last.reward.numpy()[earned] == pytest.approx(1 - 0.9 * 6 / 245)


@needs_envpool
def test_where_the_agent_has_to_choose_the_first_object_is_not_seen() -> None:
    env = make()
    env.reset(0)
    for _ in range(4):
        obs = env.step(all_do(FORWARD)).obs
    seen = [thing(obs)]
    for _ in range(3):  # all four directions
        seen.append(thing(env.step(all_do(LEFT)).obs))
    is_seen = np.array(seen) != 0  # [direction, B]; facing east, north, west, south; the two ends are north and south
    assert is_seen[[1, 3]].all() and not is_seen[[0, 2]].any()


@needs_envpool
@pytest.mark.parametrize('key', ['size', 'agent_view_size'])
def test_options_that_would_change_the_game_are_refused(key: str) -> None:
    with pytest.raises(EnvKwargsError, match=f"env.kwargs has '{key}'"):
        make_vector_env(EnvConfig(id='minigrid_memory_s7', kwargs={key: 3}), 2)
