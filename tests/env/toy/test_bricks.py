"""Tiny bricks: where the ball goes, what it breaks, when the episode ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from zoo.env import EnvConfig, check_env, make_env
from zoo.env.toy.bricks import BALL, BRICK, PADDLE, TRAIL, TinyBricks


def game(row: int, column: int, down: int, right: int, paddle: int = 4, **kwargs: Any) -> TinyBricks:
    """A game with the ball and the paddle in given places."""
    env = TinyBricks(**kwargs)
    env.reset(seed=0)
    env.draw_ball(0)
    env.row, env.column, env.down, env.right = row, column, down, right
    env.draw_ball(255)
    env.pixels[-1, :, PADDLE] = 0
    env.pixels[-1, paddle : paddle + 2, PADDLE] = 255
    env.paddle = paddle
    return env


def cells(obs: np.ndarray, channel: int) -> list[list[int]]:
    """(row, column) of the cells that are on."""
    return np.argwhere(obs[:, :, channel] == 255).tolist()


def test_tiny_bricks_keeps_the_interface_of_gymnasium() -> None:
    assert check_env(EnvConfig(id='tiny_bricks')) == []
    obs, _ = make_env(EnvConfig(id='tiny_bricks')).reset(seed=0)
    assert obs.shape == (10, 10, 4) and obs.dtype == np.uint8


def test_tiny_bricks_begins_with_a_full_wall_and_a_ball_that_falls_from_below_it() -> None:
    obs, _ = TinyBricks().reset(seed=3)
    assert cells(obs, BRICK) == [[row, column] for row in (1, 2, 3) for column in range(10)]
    assert cells(obs, PADDLE) == [[9, 4], [9, 5]]
    (ball,), (trail,) = cells(obs, BALL), cells(obs, TRAIL)
    assert ball[0] == 4 and trail[0] == 3 and abs(ball[1] - trail[1]) == 1


def test_tiny_bricks_ball_moves_diagonally_and_off_the_side_walls() -> None:
    env = game(5, 8, 1, 1)
    places = [cells(env.step(0)[0], BALL)[0] for _ in range(3)]
    assert places == [[6, 9], [7, 8], [8, 7]]


def test_tiny_bricks_picture_has_a_color_for_each_thing_with_the_ball_on_top() -> None:
    env = game(5, 8, 1, 1)
    picture, obs = env.render(), env.step(0)[0]
    assert picture[5, 8].tolist() == [255, 255, 255] and picture[4, 7].tolist() == [70, 70, 70]
    bricks, paddle = picture[1:4].reshape(-1, 3), picture[9, 4:6]
    assert len(np.unique(bricks, axis=0)) == len(np.unique(paddle, axis=0)) == 1
    assert np.count_nonzero(picture.any(-1)) == 30 + 2 + 2 and env.render()[6, 9].tolist() == [255, 255, 255]
    assert cells(obs, BALL) == [[6, 9]]


def test_tiny_bricks_brick_breaks_for_a_reward_of_1_and_turns_the_ball_back() -> None:
    env = game(4, 2, -1, 1)
    obs, reward, terminated, *_ = env.step(0)
    assert reward == 1 and not terminated
    assert [3, 3] not in cells(obs, BRICK) and len(cells(obs, BRICK)) == 29
    assert cells(obs, BALL) == [[4, 2]] and cells(obs, TRAIL) == [[3, 1]]  # it falls to the right now
    obs, reward, *_ = env.step(0)
    assert reward == 0 and cells(obs, BALL) == [[5, 3]]


def test_tiny_bricks_ball_turns_at_the_top() -> None:
    env = game(1, 5, -1, 1)
    env.pixels[:, :, BRICK] = 0
    places = [cells(env.step(0)[0], BALL)[0] for _ in range(3)]
    assert places == [[0, 6], [1, 7], [2, 8]]


@pytest.mark.parametrize(('paddle', 'next_column'), [(5, 4), (4, 6)])
def test_tiny_bricks_half_of_the_paddle_decides_where_the_ball_goes(paddle: int, next_column: int) -> None:
    env = game(8, 4, 1, 1, paddle)  # it falls to column 5
    obs, reward, terminated, *_ = env.step(0)
    assert not terminated and reward == 0 and cells(obs, BALL) == [[8, 5]]
    assert cells(env.step(0)[0], BALL) == [[7, next_column]]


def test_tiny_bricks_missed_ball_ends_the_episode() -> None:
    *_, terminated, truncated, _ = game(8, 4, 1, 1, paddle=7).step(0)
    assert terminated and not truncated


def test_tiny_bricks_paddle_moves_by_one_cell_before_the_ball_lands_and_stays_on_the_board() -> None:
    obs, _, terminated, *_ = game(8, 4, 1, 1, paddle=6).step(1)
    assert cells(obs, PADDLE) == [[9, 5], [9, 6]] and not terminated
    assert cells(game(5, 4, 1, 1, paddle=4).step(2)[0], PADDLE) == [[9, 5], [9, 6]]
    assert cells(game(5, 4, 1, 1, paddle=0).step(1)[0], PADDLE) == [[9, 0], [9, 1]]
    assert cells(game(5, 4, 1, 1, paddle=8).step(2)[0], PADDLE) == [[9, 8], [9, 9]]


@pytest.mark.parametrize('n_wall', [1, 2])
def test_tiny_bricks_last_brick_brings_the_next_wall_and_that_of_the_last_wall_the_end(n_wall: int) -> None:
    env = game(4, 2, -1, 1, n_wall=n_wall)
    for n_left in range(n_wall)[::-1]:
        env.draw_ball(0)
        env.row, env.column, env.down, env.right, env.n_brick = 4, 2, -1, 1, 1
        obs, reward, terminated, *_ = env.step(0)
        assert reward == 1 and terminated == (n_left == 0) and env.n_left == n_left


def test_tiny_bricks_long_episode_is_truncated() -> None:
    env = game(8, 4, 1, 1, max_step=2)
    assert [env.step(0)[2:4] for _ in range(2)] == [(False, False), (False, True)]


@pytest.mark.slow
def test_tiny_bricks_shows_all_that_decides_what_comes_next() -> None:
    env, seen, rng = TinyBricks(), {}, np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    for _ in range(20_000):
        action = int(rng.integers(3))
        key, n_left = (obs.tobytes(), action), env.n_left
        obs, reward, terminated, *_ = env.step(action)
        if env.n_left == n_left:  # else a new ball was drawn
            assert seen.setdefault(key, (obs.tobytes(), reward, terminated)) == (obs.tobytes(), reward, terminated)
        if terminated:
            obs, _ = env.reset()
