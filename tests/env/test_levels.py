"""Levels of training envs: draws by a table, which seed and episode give."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from zoo.env.levels import LevelEnv, LevelTable, drawn_level


class SeedEnv(gymnasium.Env):
    """Shows the seed of its last reset, -1 without one; episodes of two steps."""

    observation_space = Box(-1.0, 1e9, (1,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self._seed = -1 if seed is None else seed
        self._n_step = 0
        return np.full(1, self._seed, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._n_step += 1
        return np.full(1, self._seed, np.float32), 0.0, self._n_step == 2, False, {'own': 1}


def table(probabilities: list[float], first: int = 100) -> LevelTable:
    is_new = np.arange(len(probabilities)) >= 2
    return LevelTable(np.cumsum(probabilities), is_new, first)


def test_levels_are_drawn_with_their_probabilities() -> None:
    drawn = [drawn_level(table([0.1, 0.0, 0.6, 0.3]), 7, i)[0] for i in range(4_000)]
    shares = np.bincount(drawn, minlength=4) / 4_000
    assert shares[1] == 0
    assert shares == pytest.approx([0.1, 0.0, 0.6, 0.3], abs=0.025)  # three deviations of a share of .6 are .023


def test_draw_is_a_function_of_seed_and_episode_and_skips_levels_without_probability() -> None:
    even = table([0.25] * 4)
    assert [drawn_level(even, 3, i) for i in range(9)] == [drawn_level(even, 3, i) for i in range(9)]
    assert {drawn_level(table([0.0, 1.0, 0.0]), seed, 0)[0] for seed in range(50)} == {1}


def test_env_without_a_table_is_unchanged() -> None:
    env = LevelEnv(SeedEnv())
    assert env.reset(seed=5)[0] == 5
    assert env.reset()[0] == -1
    assert env.step(0)[4] == {'own': 1}


def test_env_with_a_table_is_reset_with_the_seed_of_its_level_and_says_which() -> None:
    env = LevelEnv(SeedEnv())
    env.level_table = table([0.0, 0.0, 0.0, 1.0])
    obs, info = env.reset(seed=5)
    expected = {'level': 3.0, 'level_is_new': 1.0, 'level_episode': info['level_episode']}
    assert obs == 103 and info == expected
    assert env.step(0)[4] == {'own': 1, **expected}
    env.level_table = table([1.0, 0.0, 0.0, 0.0])
    assert env.step(0)[4]['level'] == 3.0  # the episode goes on
    obs, info = env.reset()
    assert obs == 100 and info['level_episode'] != expected['level_episode']
    assert env.step(0)[4] == {'own': 1, **info} and (info['level'], info['level_is_new']) == (0.0, 0.0)


def test_episodes_of_one_level_have_numbers_that_tell_them_apart() -> None:
    one = table([1.0])
    numbers = [drawn_level(one, seed, i)[1] for seed in range(10) for i in range(20)]
    assert len(set(numbers)) == 200 and all(number == np.float32(number) for number in numbers)


def test_reset_with_the_seed_of_before_repeats_the_levels() -> None:
    env = LevelEnv(SeedEnv())
    env.level_table = table([0.25] * 4)
    found = [[env.reset(seed=11)[0].item(), *(env.reset()[0].item() for _ in range(8))] for _ in range(2)]
    assert found[0] == found[1] and len(set(found[0])) > 1
