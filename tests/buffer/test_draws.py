"""Draws: uniform, without repetition, never beyond a limit."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buffer.samples import is_whole, numbered, push_numbered, replay
from zoo.buffer.ring import distinct


def chi_square(counts: torch.Tensor, expected: float, share: float = 0.0) -> float:
    """Sum of squared deviations over the variance of a count, expected * (1 - share)."""
    return float(((counts.double() - expected) ** 2).sum() / (expected * (1 - share)))


# n_choice >= 8 n: independent draws; below: a permutation
@pytest.mark.slow
@pytest.mark.parametrize(('n_choice', 'n'), [(64, 8), (63, 8), (16, 16), (9, 1), (64, 4)])
def test_distinct_prefers_no_number_and_repeats_none(n_choice: int, n: int) -> None:
    generator, n_draw = torch.Generator().manual_seed(0), 4000
    draws = torch.stack([distinct(n_choice, n, generator) for _ in range(n_draw)])
    assert (draws.sort(1).values.diff(dim=1) > 0).all()
    counts = torch.bincount(draws.flatten(), minlength=n_choice)
    share = n / n_choice
    if share == 1:
        assert (counts == n_draw).all()
    else:
        # about chi-square with n_choice - 1 degrees of freedom: mean k, deviation sqrt(2k); 4 deviations, fixed seed
        k = n_choice - 1
        assert abs(chi_square(counts, n_draw * share, share) * k / n_choice - k) < 4 * (2 * k) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize('n_choice', [16, 15])  # 16: by independent draws, of which 1 in 4096 fails to give two
def test_distinct_makes_every_ordered_pair_equally_likely(n_choice: int) -> None:
    generator, n_draw = torch.Generator().manual_seed(1), 12_000
    pairs = Counter(tuple(distinct(n_choice, 2, generator).tolist()) for _ in range(n_draw))
    n_pair = n_choice * (n_choice - 1)
    assert len(pairs) == n_pair and all(a != b for a, b in pairs)
    counts = torch.tensor(list(pairs.values()))
    k = n_pair - 1  # as above: mean k, deviation sqrt(2k)
    assert abs(chi_square(counts, n_draw / n_pair) - k) < 4 * (2 * k) ** 0.5


def test_distinct_is_the_permutation_where_independent_draws_do_not_suffice(monkeypatch):
    monkeypatch.setattr(torch, 'randint', lambda high, size, generator: torch.full(size, 3))
    assert len(set(distinct(100, 5, torch.Generator().manual_seed(0)).tolist())) == 5


def test_distinct_covers_choices_beyond_those_of_32_bits():
    # 200 numbers below 10^10: all below 2^32 has the probability 0.43^200
    rows = distinct(10**10, 200, torch.Generator().manual_seed(0))
    assert len(rows.unique()) == 200 and rows.max() > 2**32


def test_samples_are_drawn_equally_often_whatever_their_age():
    buffer = replay(size=48, n_sample=12, update_per_collect=2000)
    push_numbered(buffer, [30, 30])  # 12 .. 59 are kept, and lie around the end of the ring
    ids = torch.stack([batch['id'] for batch in buffer.batches()])
    assert ids.shape == (2000, 12) and (ids.sort(1).values.diff(dim=1) > 0).all()
    counts = torch.bincount(ids.flatten(), minlength=60)
    assert (counts[:12] == 0).all()
    # expected 2000 * 12 / 48 = 500; chi-square with 47 degrees of freedom: 47 +- 4 sqrt(94)
    assert abs(chi_square(counts[12:], 500, 0.25) * 47 / 48 - 47) < 4 * 94**0.5


def test_no_draw_before_there_are_enough_samples():
    buffer = replay(size=100, n_sample=10, update_per_collect=3)
    n_draw = []
    for first in range(0, 16, 4):
        push_numbered(buffer, [4], first)
        n_draw.append(len(list(buffer.batches())))
    assert n_draw == [0, 0, 3, 3]  # with 4, 8, 12, 16 samples


def test_max_use_one_hands_every_sample_out_exactly_once():
    buffer = replay(size=64, n_sample=8, update_per_collect=4, max_use=1)
    seen: Counter[int] = Counter()
    for first in range(0, 320, 32):
        push_numbered(buffer, [32], first)
        batches = list(buffer.batches())
        assert len(batches) == 4
        for batch in batches:
            seen.update(batch['id'].tolist())
    assert seen == Counter(range(320))


def test_max_use_is_reached_and_never_passed():
    buffer = replay(size=20, n_sample=5, update_per_collect=1000, max_use=3)
    push_numbered(buffer, [20])
    batches = list(buffer.batches())
    seen = Counter(int(i) for batch in batches for i in batch['id'])
    assert max(seen.values()) == 3
    # it ends when fewer than 5 samples are left: at most 4 of the 20 have uses left, 3 each, so 60 - 12 were made
    assert sum(n < 3 for n in [seen[i] for i in range(20)]) < 5 and 48 <= sum(seen.values()) <= 60
    assert list(buffer.batches()) == []


def test_a_row_written_anew_may_be_used_anew():
    buffer = replay(size=6, n_sample=6, update_per_collect=9, max_use=2)
    push_numbered(buffer, [6])
    assert len(list(buffer.batches())) == 2
    push_numbered(buffer, [4], first=6)  # 4 and 5 are used up, 6 .. 9 are new: no 6 to draw
    assert list(buffer.batches()) == []
    push_numbered(buffer, [2], first=10)
    assert [sorted(batch['id'].tolist()) for batch in buffer.batches()] == 2 * [[6, 7, 8, 9, 10, 11]]


@pytest.mark.parametrize('limit', [0, 1, 3])
def test_samples_older_than_max_staleness_are_never_drawn_and_all_others_are(limit: int) -> None:
    buffer = replay(size=64, n_sample=4, update_per_collect=60, max_staleness=limit)
    for k in range(8):
        push_numbered(buffer, [4], 4 * k)
        drawn = torch.cat([batch['id'] for batch in buffer.batches()])
        # push j brought 4j .. 4j + 3; 240 draws miss one of at most 16 samples with probability < 16 * (15/16)^240
        assert drawn.unique().tolist() == list(range(4 * max(k - limit, 0), 4 * k + 4))


def test_batches_say_how_stale_their_samples_are():
    buffer = replay(size=64, n_sample=12)
    push_numbered(buffer, [4, 4, 4])
    batch = next(buffer.batches())
    assert batch['staleness'].dtype == torch.float32
    assert torch.equal(batch['staleness'], 2 - batch['id'].div(4, rounding_mode='floor').float())


def test_draws_depend_on_the_seed_alone():
    def ids(seed: int) -> list[list[int]]:
        buffer = replay(seed, size=64, n_sample=8, update_per_collect=5)
        push_numbered(buffer, [40])
        torch.rand(3)  # another user of torch's own stream
        return [batch['id'].tolist() for batch in buffer.batches()]

    assert ids(0) == ids(0) and all(a != b for a, b in zip(ids(0), ids(1), strict=True))


limits = st.none() | st.integers(1, 3)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 12),
    n_sample=st.integers(1, 6),
    n_draw=st.integers(1, 4),
    max_use=limits,
    max_staleness=limits,
    sizes=st.lists(st.integers(0, 15), max_size=8),
)
def test_draws_are_those_that_a_list_of_samples_allows(size, n_sample, n_draw, max_use, max_staleness, sizes):
    n_sample = min(n_sample, size)
    buffer = replay(
        size=size, n_sample=n_sample, update_per_collect=n_draw, max_use=max_use, max_staleness=max_staleness
    )
    kept: list[int] = []
    born: dict[int, int] = {}
    used: Counter[int] = Counter()
    for k, n in enumerate(sizes):
        first = len(born)
        buffer.push(numbered(first, n))
        born |= dict.fromkeys(range(first, first + n), k)
        kept = list(born)[-size:]
        rounds = buffer.batches()
        for _ in range(n_draw):
            eligible = {
                i
                for i in kept
                if (max_use is None or used[i] < max_use) and (max_staleness is None or k - born[i] <= max_staleness)
            }
            batch = next(rounds, None)
            assert (batch is not None) == (len(eligible) >= n_sample)
            if batch is None:
                break
            drawn = batch['id'].tolist()
            assert len(set(drawn)) == n_sample and set(drawn) <= eligible and is_whole(batch)
            assert batch['staleness'].tolist() == [k - born[i] for i in drawn]
            used.update(drawn)
        assert next(rounds, None) is None
