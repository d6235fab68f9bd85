"""Mazes: every level can be solved, is a function of its seed, and pays what it says."""

from __future__ import annotations

import numpy as np
import pytest

from zoo.env.toy.mazes import MOVES, OWN_CELL, MazeEnv, maze


@pytest.mark.parametrize('level', range(20))
def test_shortest_way_leads_to_the_goal_and_pays_by_its_length(level: int) -> None:
    env = MazeEnv(size=7, limit=40)
    env.reset(seed=level)
    found = maze(level, 7)
    n_move = int(found.distance[found.start])
    cell = found.start
    for t in range(1, n_move + 1):
        action = int(np.argmin([found.distance[other] for other in found.next_cell[cell]]))
        cell = found.next_cell[cell, action]
        _, reward, terminated, truncated, _ = env.step(action)
        assert terminated == (t == n_move) and not truncated
        assert reward == pytest.approx(1 - 0.9 * n_move / 40 if terminated else 0.0)


def test_walls_around_the_agent_are_seen_and_stop_it() -> None:
    found = maze(3, 7)
    cells = np.flatnonzero(found.distance >= 0)
    for cell in cells:
        window = found.obs[cell, :25].reshape(5, 5)
        for k, (down, right) in enumerate(MOVES):
            assert (found.next_cell[cell, k] == cell) == bool(window[2 + down, 2 + right])
        to_goal = found.obs[cell, 25:] * 6
        assert np.allclose((cell // 7 + to_goal[0]) * 7 + cell % 7 + to_goal[1], found.goal)


def test_levels_are_functions_of_their_seed_and_differ() -> None:
    first, second = MazeEnv(), MazeEnv()
    same = [first.reset(seed=5)[0], second.reset(seed=5)[0]]
    assert np.array_equal(*same)
    texts = set()
    for level in range(30):
        first.reset(seed=level)
        texts.add(first.render())
    assert len(texts) == 30


def test_episode_is_cut_off_at_its_limit() -> None:
    env = MazeEnv(limit=3)
    env.reset(seed=next(level for level in range(99) if maze(level, 9).distance[maze(level, 9).start] > 3))
    ends = [env.step(0)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


def test_mazes_that_need_no_way_are_solvable_or_not_and_keep_their_walls() -> None:
    any_maze = [maze(level, 7, 0.9, False) for level in range(200)]
    has_way = [found.distance[found.start] > 0 for found in any_maze]
    assert 60 < sum(has_way) < 140  # about half
    for found, solvable in zip(any_maze, has_way, strict=True):
        assert found.start != found.goal and not found.obs[[found.start, found.goal], OWN_CELL].any()
        assert solvable or found.distance[found.start] == -1
    shares = [found.obs[:, OWN_CELL].mean() for found in any_maze]
    assert np.mean(shares) == pytest.approx(0.42, abs=0.06)  # uniform to .9, those without two free cells left out
    env = MazeEnv(7, most_walls=0.9, solvable=False)
    level = has_way.index(False)
    env.reset(seed=level)
    assert env.render().count('#') == any_maze[level].obs[:, OWN_CELL].sum()


@pytest.mark.parametrize('options', [dict(size=1), dict(size=0), dict(most_walls=-0.1), dict(most_walls=1.5)])
def test_mazes_that_cannot_be_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match='wanted a size of 2 or more and a share from 0 to 1'):
        MazeEnv(**options)
