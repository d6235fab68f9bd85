"""Scores of games: wins, draws and losses, intervals of the win rate, and ratings (Elo) of several players.

A draw counts as half a win.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
ADDED_DRAW = (
    0.5  # games that end in a draw, added to each pair of players: a player that has won all games has a rating too
)
START = 1000.0  # the rating of the anchor


class GameScore(NamedTuple):
    """The results of games of one player against another one."""

    wins: int
    draws: int
    losses: int

    @property
    def n_game(self) -> int:
        return self.wins + self.draws + self.losses

    @property
    def win_rate(self) -> float:
        """The share of points; a draw is half a point."""
        return (self.wins + self.draws / 2) / self.n_game


def interval(score: GameScore, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of the win rate behind a score, all rates for which the score test does not reject it.

    Without draws it is Wilson's interval. With draws the variance is that of three outcomes, whose rates are the likeliest ones
    that have the win rate: Tango's interval for the difference of paired proportions, wins and losses.
    Sources: Wilson (1927), JASA 22; Tango (1998), Statistics in Medicine 17.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    n = score.n_game
    difference = (score.wins - score.losses) / n  # 2 * win rate - 1

    def end(sign: int) -> float:
        """The end of the interval above (1) or below (-1), by bisection."""
        inside = difference
        outside = float(sign)
        for _ in range(60):
            middle = (inside + outside) / 2
            if abs(difference - middle) <= z * math.sqrt(_variance(score, middle) / n):
                inside = middle
            else:
                outside = middle
        return (1 + inside) / 2

    return end(-1), end(1)


def _variance(score: GameScore, difference: float) -> float:
    """The variance of win (1), draw (0) or loss (-1) in one game by the likeliest rates with this difference of wins and losses.

    With l the rate of losses, the likelihood wins * log(l + difference) + losses * log(l) + draws * log(1 - 2 l - difference)
    is highest where 2 n l^2 + b l + c = 0.
    """
    n = score.n_game
    b = (2 * n - score.wins + score.losses) * difference - score.wins - score.losses
    c = -score.losses * difference * (1 - difference)
    loss_rate = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)
    return max(2 * loss_rate + difference - difference**2, 0.0)


def interval_over_seats(scores: Sequence[GameScore], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of the mean of the win rates of several seats, each with its own score.

    It is narrower than that of all games together if seats differ. Source: the method of variance estimates recovery, Zou and
    Donner (2008), Statistics in Medicine 27, with the interval of each seat by `interval`.
    """
    ends = [interval(score, confidence) for score in scores]
    rates = [score.win_rate for score in scores]
    mean = float(np.mean(rates))
    below = math.sqrt(sum((rate - low) ** 2 for rate, (low, _) in zip(rates, ends, strict=True)))
    above = math.sqrt(sum((high - rate) ** 2 for rate, (_, high) in zip(rates, ends, strict=True)))
    return max(mean - below / len(scores), 0.0), min(mean + above / len(scores), 1.0)


def ratings(points: np.ndarray, games: np.ndarray, anchor: int = 0, start: float = START) -> list[float]:
    """Ratings (Elo) of players by maximum likelihood, to which each pair of players adds half a game that was drawn.

    The rating r of player i satisfies: sum_j points[i, j] = sum_j games[i, j] / (1 + 10^((r_j - r_i) / 400)).
    Args: points: [N, N], of player i against player j; games: [N, N], between them; anchor: the player whose rating is `start`.
    Source: Bradley and Terry (1952), Biometrika 39.
    """
    n = len(points)
    is_pair = ~np.eye(n, dtype=bool)
    games = games + ADDED_DRAW * is_pair
    points = points + ADDED_DRAW / 2 * is_pair
    others = [i for i in range(n) if i != anchor]
    strength = np.zeros(n)  # natural logarithm of the odds against the anchor
    for _ in range(200):  # Newton's method; a step is cut off, since far from the maximum it is too long
        expected = 1 / (1 + np.exp(strength[None, :] - strength[:, None]))
        gradient = (points - games * expected).sum(1)[others]
        weight = games * expected * (1 - expected)
        curvature = (np.diag(weight.sum(1)) - weight)[np.ix_(others, others)]
        step = np.clip(np.linalg.solve(curvature, gradient), -2.0, 2.0)
        strength[others] += step
        if np.abs(step).max(initial=0.0) < 1e-10:
            break
    return (start + strength * 400 / math.log(10)).tolist()
