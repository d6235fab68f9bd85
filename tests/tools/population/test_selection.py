"""Selection rules: parents by hand, ties, failed members, and what is never copied or lost."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from zoo.config.section import ConfigError
from zoo.tools.population.selection import (
    make_selection,
    ranking,
    threshold,
    tournament,
    truncation,
    why_not_selection,
)

NAN = math.nan


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def rng_that_draws(below: int, draws: list[int], size: int | None = None) -> np.random.Generator:
    """The first generator, by seed, whose integers are these; in groups of `size`, if it is given."""
    n = len(draws) // (size or 1)
    for seed in itertools.count():
        generator = rng(seed)
        drawn = [np.atleast_1d(generator.integers(below, size=size)).tolist() for _ in range(n)]
        if sum(drawn, []) == draws:
            return rng(seed)
    raise AssertionError


@pytest.mark.parametrize(
    ('fitness', 'draws', 'parents'),
    [
        # k = 1: the worst becomes a copy of the best
        ([1.0, 2.0], [0], [1, None]),
        ([3.0, 1.0, 2.0], [0], [None, 0, None]),
        # k = 2: ranks are 3 1 7 0 5 4 6 2; places 6 and 2 get the best (3) and the second best (1)
        ([5.0, 7.0, 1.0, 9.0, 3.0, 4.0, 2.0, 6.0], [1, 0], [None, None, 1, None, None, None, 3, None]),
        # ties: the smaller index ranks first, so place 7 is worse than place 0 and place 1 is the best
        ([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0], [0, 1], [1, None, None, None, None, None, None, 2]),
        # a failed member is worse than any number
        ([-1e9, NAN, 0.0, 1.0], [0], [None, 3, None, None]),
        ([-1e9, math.inf, 0.0, 1.0], [0], [None, 3, None, None]),
        # more than k = 1 failed: all are replaced, by the best
        ([NAN, 5.0, NAN, 4.0], [0, 0], [1, None, 1, None]),
        ([NAN, NAN, NAN, 4.0], [0, 0, 0], [3, 3, 3, None]),
    ],
)
def test_truncation_replaces_the_worst_by_the_best(
    fitness: list[float], draws: list[int], parents: list[int | None]
) -> None:
    n_best = min(math.ceil(len(fitness) / 4), sum(map(math.isfinite, fitness)))
    assert truncation(fitness, rng_that_draws(n_best, draws)) == parents


@pytest.mark.parametrize(
    ('n', 'quantile', 'k'),
    [(2, 0.25, 1), (3, 0.25, 1), (8, 0.25, 2), (20, 0.25, 5), (20, 0.2, 4), (3, 0.5, 1), (20, 0.5, 10)],
)
def test_truncation_replaces_ceil_of_the_quantile_at_most_half(n: int, quantile: float, k: int) -> None:
    fitness = [float(i) for i in range(n)]
    for seed in range(20):
        parents = truncation(fitness, rng(seed), quantile=quantile)
        assert [place for place, parent in enumerate(parents) if parent is not None] == list(range(k))
        assert {parent for parent in parents if parent is not None} <= set(range(n - k, n))


def test_truncation_draws_each_of_the_best_equally_often() -> None:
    parents = [truncation([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], rng(seed))[0] for seed in range(4_000)]
    assert parents.count(7) / 4_000 == pytest.approx(0.5, abs=0.03)  # 4 standard deviations of a share
    assert set(parents) == {6, 7}


@pytest.mark.parametrize(
    ('fitness', 'draws', 'parents'),
    [
        ([1.0, 2.0], [0, 0], [0, None]),  # it wins its own place
        ([1.0, 2.0], [1, 0], [1, None]),
        # the elite is place 0; tournaments of (1, 2), then (2, 0)
        ([3.0, 1.0, 2.0], [1, 2, 2, 0], [None, 2, 0]),
        ([2.0, 2.0, 1.0], [1, 1, 2, 1], [None, 1, 1]),  # of equal members the smaller index is the elite
        ([1.0, 2.0, 2.0], [2, 1, 0, 2], [1, None, 2]),  # and it wins
        ([NAN, 1.0, 5.0, 2.0], [0, 1, 0, 0, 0, 3], [1, 2, None, 3]),  # nan never wins; all failed: the elite does
    ],
)
def test_tournament_goes_to_the_fittest_and_leaves_the_elite(
    fitness: list[float], draws: list[int], parents: list[int | None]
) -> None:
    assert tournament(fitness, rng_that_draws(len(fitness), draws, size=2)) == parents


@pytest.mark.parametrize(
    ('fitness', 'parents'),
    [
        # mean 5, sd 5 (of 0 and 10): below 4.5, above 5.5
        ([0.0, 10.0], [1, None]),
        ([0.0, 10.0, 5.0], [1, None, None]),
        # mean 5, sd 3.54, d = .354: 4.7 is not below 4.646
        ([0.0, 10.0, 4.7, 5.3], [1, None, None, None]),
        ([1.0, 1.02], [None, None]),  # d = .05 at least: neither is clear of the mean 1.01
        ([NAN, 1.0, 1.02], [2, None, None]),  # no leader: the failed one becomes the best
        ([NAN, 0.0, 10.0], [2, 2, None]),  # its mean is of the others, 5
    ],
)
def test_threshold_replaces_who_is_below_by_who_is_above(fitness: list[float], parents: list[int | None]) -> None:
    assert threshold(fitness, rng()) == parents


@pytest.mark.parametrize('rule', [truncation, tournament, threshold])
@pytest.mark.parametrize('n', [2, 3, 8, 20])
def test_rule_keeps_the_best_and_copies_no_failed_one(rule, n: int) -> None:  # type: ignore[no-untyped-def]
    for seed in range(200):
        generator = rng(seed)
        fitness = generator.integers(0, 4, n).astype(float)  # many ties
        fitness[generator.random(n) < 0.3] = NAN
        parents = rule(fitness.tolist(), generator)
        ranked, failed = ranking(fitness.tolist())
        assert len(parents) == n
        assert not set(failed) & set(parents)
        if not ranked:
            assert parents == [None] * n
            continue
        assert parents[ranked[0]] is None
        assert all(parents[place] is not None for place in failed)


@pytest.mark.parametrize('n', [4, 8, 20])
def test_truncation_copies_none_of_the_worst(n: int) -> None:
    for seed in range(200):
        generator = rng(seed)
        fitness = generator.normal(size=n)
        parents = truncation(fitness.tolist(), generator)
        worst = {place for place, parent in enumerate(parents) if parent is not None}
        assert not worst & set(parents)
        assert max(fitness[list(worst)]) < min(fitness[parent] for parent in parents if parent is not None)


@pytest.mark.parametrize('rule', [truncation, tournament, threshold])
@pytest.mark.parametrize('n', [2, 3, 8, 20])
@pytest.mark.parametrize('value', [0.0, -200.0, NAN])
def test_equal_members_are_not_replaced(rule, n: int, value: float) -> None:  # type: ignore[no-untyped-def]
    assert rule([value] * n, rng()) == [None] * n


@pytest.mark.parametrize('text', ['truncation', 'tournament', 'threshold'])
def test_equal_generators_select_the_same(text: str) -> None:
    fitness = [3.0, 1.0, 2.0, 5.0, 4.0, 0.0, 8.0, 2.0]
    rule = make_selection(text)
    assert rule(fitness, rng(5)) == rule(fitness, rng(5))


def test_option_is_read_from_the_text() -> None:
    assert dict(make_selection('truncation:.5').options) == {'quantile': 0.5}
    assert dict(make_selection('tournament:3').options) == {'size': 3}
    assert dict(make_selection('threshold:.2').options)['deviations'] == 0.2


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('tournment:2', "did you mean 'tournament'"),
        ('truncation:.9', 'a number > 0 and <= 0.5'),
        ('truncation:', "''"),
        ('tournament:0', 'an integer >= 1'),
        ('tournament:2.5', 'an integer >= 1'),
        ('tournament:many', 'an integer >= 1'),
    ],
)
def test_bad_rule_is_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_selection(text)


@pytest.mark.parametrize(
    ('text', 'n', 'said'),
    [
        ('tournament:2', 1, '2 members or more'),
        ('truncation', 3, '4 or more'),
        ('truncation', 4, ''),
        ('tournament:9', 8, 'larger than the population of 8'),
        ('tournament:8', 8, ''),
        ('threshold', 2, ''),
    ],
)
def test_population_that_is_too_small_is_a_sentence(text: str, n: int, said: str) -> None:
    reason = why_not_selection(make_selection(text), n)
    assert said in reason
    assert bool(reason) == bool(said)
