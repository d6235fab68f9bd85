"""Scores of games: intervals that cover, ratings by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zoo.agents.scores import GameScore, interval, interval_over_seats, ratings

Z = 1.959963984540054


def test_win_rate_counts_a_draw_as_half_a_win():
    assert GameScore(3, 2, 5).n_game == 10
    assert GameScore(3, 2, 5).win_rate == 0.4


@pytest.mark.parametrize(('wins', 'losses'), [(8, 2), (10, 0), (0, 7), (50, 50), (1, 199)])
def test_interval_without_draws_is_wilsons(wins, losses):
    n = wins + losses
    p = wins / n
    middle = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    assert interval(GameScore(wins, 0, losses)) == pytest.approx((middle - half, middle + half), abs=1e-12)


def test_interval_of_draws_alone_has_a_width_by_hand():
    # the likeliest rate of losses for a difference d > 0 is 0, so that n d = z sqrt(n d (1 - d)): d = z^2 / (n + z^2)
    d = Z**2 / (50 + Z**2)
    assert interval(GameScore(0, 50, 0)) == pytest.approx((0.5 - d / 2, 0.5 + d / 2), abs=1e-12)


def test_interval_is_narrower_with_draws_and_the_same_from_both_sides():
    low, high = interval(GameScore(30, 40, 30))
    assert (low, high) == pytest.approx((1 - high, 1 - low))
    wilson = interval(GameScore(50, 0, 50))
    assert high - low < 0.8 * (wilson[1] - wilson[0])  # sqrt(.15 / .25) = .77
    assert interval(GameScore(20, 5, 9)) == pytest.approx([1 - x for x in reversed(interval(GameScore(9, 5, 20)))])


# rates of wins, draws and losses as first and as second player
SEATS = [
    ((0.4, 0.3, 0.3), (0.4, 0.3, 0.3)),
    ((0.5, 0.0, 0.5), (0.5, 0.0, 0.5)),
    ((0.1, 0.8, 0.1), (0.05, 0.85, 0.1)),
    ((0.6, 0.3, 0.1), (0.1, 0.3, 0.6)),
    ((0.9, 0.05, 0.05), (0.2, 0.1, 0.7)),
]


@pytest.mark.parametrize(('first', 'second'), SEATS)
@pytest.mark.slow(ci=True)
def test_interval_covers_the_win_rate_in_95_percent_of_1000_simulated_matches(first, second):
    rng = np.random.default_rng(7)
    games = [rng.multinomial(100, rates, 1000) for rates in (first, second)]
    truth = sum(wins + draws / 2 for wins, draws, _ in (first, second)) / 2
    n = 0
    for one, other in zip(*games, strict=True):
        low, high = interval_over_seats([GameScore(*one.tolist()), GameScore(*other.tolist())])
        n += low <= truth <= high
    # 1,000 draws of .95: 950 with a deviation of sqrt(1000 * .95 * .05) = 6.9; 3.3 of them, 1 in 1,000, are 23
    assert 927 <= n <= 973


def test_ratings_of_two_players_by_hand():
    # 3 of 4 points, and half a game with a quarter point for each: 3.25 to 1.25, odds of 2.6
    found = ratings(np.array([[0, 3], [1, 0]]), np.array([[0, 4], [4, 0]]))
    assert found == pytest.approx([1000, 1000 - 400 * math.log10(2.6)])


def test_ratings_of_a_player_that_wins_all_games_are_finite():
    found = ratings(np.array([[0, 0], [100, 0]]), np.array([[0, 100], [100, 0]]), start=0)
    assert found == pytest.approx([0, 400 * math.log10(100.25 / 0.25)])


def test_ratings_of_three_players_by_hand():
    # odds of 3 between neighbours make odds of 9 between the outer two: with the added half games the points are those expected
    # of ratings with steps of 400 * log10(3), 190.8: 7.25 + .25 = .75 * (9.5 + .5), 8.75 + .25 = .9 * (9.5 + .5)
    points = np.array([[0, 7.25, 8.75], [2.25, 0, 7.25], [0.75, 2.25, 0]])
    games = np.full((3, 3), 9.5) - np.diag([9.5] * 3)
    step = 400 * math.log10(3)
    assert ratings(points, games, anchor=1) == pytest.approx([1000 + step, 1000, 1000 - step])


def test_ratings_of_a_circle_are_equal():
    points = np.array([[0, 10, 0], [0, 0, 10], [10, 0, 0]])
    games = np.full((3, 3), 10) - np.diag([10] * 3)
    assert ratings(points, games) == pytest.approx([1000] * 3)


def test_ratings_expect_the_points_that_each_player_has():
    rng = np.random.default_rng(0)
    games = np.triu(rng.integers(0, 50, (6, 6)), 1)
    points = np.triu(rng.uniform(size=(6, 6)) * games, 1)
    points = points + np.tril((games - points).T, -1)
    games = games + games.T
    found = np.array(ratings(points, games, anchor=3))
    expected = 1 / (1 + 10 ** ((found[None] - found[:, None]) / 400))
    others = ~np.eye(6, dtype=bool)
    assert found[3] == 1000
    assert ((games + 0.5) * expected * others).sum(1) == pytest.approx((points + 0.25 * others).sum(1))
