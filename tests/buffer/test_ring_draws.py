"""Draws of 'replay' and 'multi': uniform, without repetition, within all limits; each part separately."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.buffer.samples import is_whole, multi, numbered, push_numbered, replay, same
from tests.thread_ranks import on_ranks
from zoo.buffer.ring import distinct, without_idle
from zoo.core.ranks import Ranks


def assert_uniform(counts: torch.Tensor, expected: float, share: float = 0.0) -> None:
    """Chi-square test; a count has variance expected * (1 - share). Mean k, deviation sqrt(2k), bound 4 deviations."""
    k = len(counts) - 1
    found = float(((counts.double() - expected) ** 2).sum() / (expected * (1 - share))) * k / len(counts)
    assert abs(found - k) < 4 * (2 * k) ** 0.5


# n_choice >= 8 n: independent draws, of which for 16 and 2 a quarter of a thousandth fails; below: a permutation
@pytest.mark.slow
@pytest.mark.parametrize(('n_choice', 'n'), [(64, 8), (63, 8), (9, 1), (16, 2), (15, 2)])
def test_distinct_prefers_no_number_and_no_ordered_pair_and_repeats_none(n_choice: int, n: int) -> None:
    generator, n_draw = torch.Generator().manual_seed(0), 2000
    draws = torch.stack([distinct(n_choice, n, generator) for _ in range(n_draw)])
    assert (draws.sort(1).values.diff(dim=1) > 0).all()
    assert_uniform(torch.bincount(draws.flatten(), minlength=n_choice), n_draw * n / n_choice, n / n_choice)
    if n == 2:
        pairs = torch.tensor(list(Counter(map(tuple, draws.tolist())).values()))
        assert len(pairs) == n_choice * (n_choice - 1)
        assert_uniform(pairs, n_draw / len(pairs))


def test_distinct_is_the_permutation_where_independent_draws_do_not_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, 'randint', lambda high, size, generator: torch.full(size, 3))
    assert len(set(distinct(100, 5, torch.Generator().manual_seed(0)).tolist())) == 5


def test_distinct_covers_choices_beyond_those_of_32_bits() -> None:
    # 200 numbers below 10^10: with probability 0.43^200 all are below 2^32
    rows = distinct(10**10, 200, torch.Generator().manual_seed(0))
    assert len(rows.unique()) == 200 and rows.max() > 2**32


def test_samples_are_drawn_equally_often_whatever_their_age() -> None:
    buffer = replay(size=48, n_sample=12, update_per_collect=500)
    push_numbered(buffer, [30, 30])  # 12 .. 59 are kept; they wrap around the end of the ring
    ids = torch.stack([batch['id'] for batch in buffer.batches()])
    assert ids.shape == (500, 12)
    counts = torch.bincount(ids.flatten(), minlength=60)
    assert (counts[:12] == 0).all()
    assert_uniform(counts[12:], 500 * 12 / 48, 12 / 48)


@pytest.mark.parametrize(
    ('fields', 'sizes', 'n_draw'),
    [
        (dict(size=100, n_sample=10, update_per_collect=3), [4, 4, 4, 4], [0, 0, 3, 3]),  # with 4, 8, 12, 16 samples
        (dict(size=64, n_sample=8, update_per_collect=4, max_use=1), [32, 32, 32], [4, 4, 4]),  # each sample once
        # 0 .. 5 twice; then 4, 5 are used up and 6 .. 9 are new: too few for a draw; then 6 .. 11 twice
        (dict(size=6, n_sample=6, update_per_collect=9, max_use=2), [6, 4, 2], [2, 0, 2]),
    ],
)
def test_rounds_have_as_many_draws_as_limits_and_samples_allow(
    fields: dict[str, Any], sizes: list[int], n_draw: list[int]
) -> None:
    buffer, found, seen = replay(**fields), [], Counter()
    for k, n in enumerate(sizes):
        push_numbered(buffer, [n], sum(sizes[:k]))
        batches = list(buffer.batches())
        found.append(len(batches))
        seen.update(i for batch in batches for i in batch['id'].tolist())
    assert found == n_draw and max(seen.values()) <= fields.get('max_use', 9)


@pytest.mark.parametrize('limit', [0, 3])
def test_samples_older_than_max_staleness_are_never_drawn_and_all_others_are(limit: int) -> None:
    buffer = replay(size=64, n_sample=4, update_per_collect=60, max_staleness=limit)
    for k in range(6):
        push_numbered(buffer, [4], 4 * k)
        drawn = torch.cat([batch['id'] for batch in buffer.batches()])
        # push j added 4j .. 4j + 3; 240 draws miss one of at most 16 samples with probability < 16 * (15/16)^240
        assert drawn.unique().tolist() == list(range(4 * max(k - limit, 0), 4 * k + 4))


def test_draws_depend_on_the_seed_and_the_part_alone() -> None:
    draw = dict(n_sample=8, update_per_collect=5)

    def ids(seed: int) -> list[Any]:
        one, two = replay(seed, size=64, **draw), multi(seed, size=64, policy=draw, value=draw)
        push_numbered(one, [40])
        push_numbered(two, [40])
        torch.rand(3)  # other code that uses torch's global generator
        pairs = [[pair[part]['id'].tolist() for pair in two.batches()] for part in ('policy', 'value')]
        return [*zip([batch['id'].tolist() for batch in one.batches()], *pairs, strict=True)]

    assert ids(0) == ids(0)
    for a, b in zip(ids(0), ids(1), strict=True):
        assert a[1] != a[2] and all(x != y for x, y in zip(a, b, strict=True))


def test_samples_pushed_while_batches_are_read_are_drawn_from_at_once() -> None:
    buffer = replay(size=4, n_sample=4, update_per_collect=2)
    push_numbered(buffer, [4])
    batches = buffer.batches()
    first = next(batches)
    buffer.push(numbered(4, 4))
    assert sorted(next(batches)['id'].tolist()) == [4, 5, 6, 7]
    assert sorted(first['id'].tolist()) == [0, 1, 2, 3]


class Model:
    """Reference for one part of a buffer: the samples that may be drawn, and the use count of each."""

    def __init__(self, size: int, n_sample: int, update_per_collect: int, max_use: Any, max_staleness: Any) -> None:
        self.size, self.n_sample, self.n_draw = size, n_sample, update_per_collect
        self.max_use, self.max_staleness = max_use, max_staleness
        self.used: Counter[int] = Counter()

    def expects(self, batch: Any, born: list[int], now: int) -> bool:
        """Checks a batch, or None, against the eligible samples; returns whether there is a batch."""
        kept = range(len(born))[-self.size :]
        fresh = [i for i in kept if self.max_staleness is None or now - born[i] <= self.max_staleness]
        eligible = {i for i in fresh if self.max_use is None or self.used[i] < self.max_use}
        assert (batch is not None) == (len(eligible) >= self.n_sample)
        if batch is None:
            return False
        drawn = batch['id'].tolist()
        assert len(set(drawn)) == self.n_sample and set(drawn) <= eligible and is_whole(batch)
        assert batch['staleness'].tolist() == [now - born[i] for i in drawn]
        self.used.update(drawn)
        return True


limits = st.none() | st.integers(1, 3)
draws = st.fixed_dictionaries(
    {
        'size': st.integers(1, 12),
        'n_sample': st.integers(1, 6),
        'update_per_collect': st.integers(1, 4),
        'max_use': limits,
        'max_staleness': limits,
    }
).map(lambda fields: {**fields, 'n_sample': min(fields['n_sample'], fields['size'])})


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(policy=draws, value=draws, size=st.integers(1, 12), sizes=st.lists(st.integers(0, 15), max_size=8))
def test_draws_are_those_that_a_list_of_samples_allows(
    policy: dict[str, Any], value: dict[str, Any], size: int, sizes: list[int]
) -> None:
    """Each part is checked separately, with its own size and any common size; 'replay' is checked as one part."""
    models = {'policy': Model(**policy), 'value': Model(**value)}
    two, one, model = multi(size=size, policy=policy, value=value), replay(**policy), Model(**policy)
    born: list[int] = []
    for k, n in enumerate(sizes):
        push_numbered(two, [n], len(born))
        push_numbered(one, [n], len(born))
        born += [k] * n
        rounds, pairs = one.batches(), list(two.batches())
        for _ in range(model.n_draw):
            if not model.expects(next(rounds, None), born, k):
                break
        assert next(rounds, None) is None
        for part, each in models.items():
            batches = [pair[part] for pair in pairs if part in pair]
            assert [part in pair for pair in pairs] == sorted((part in pair for pair in pairs), reverse=True)
            for batch in batches:
                assert each.expects(batch, born, k)
            assert len(batches) == each.n_draw or not each.expects(None, born, k)


# --- two parts


def test_multi_buffer_pairs_its_draws_and_continues_with_the_part_that_has_more() -> None:
    policy, value = dict(n_sample=4, update_per_collect=2, max_staleness=0), dict(n_sample=6, update_per_collect=5)
    buffer = multi(size=32, policy=policy, value=value)
    push_numbered(buffer, [16, 16])
    assert [list(batch) for batch in buffer.batches()] == 2 * [['policy', 'value']] + 3 * [['value']]


def test_multi_buffer_part_draws_as_if_it_were_alone() -> None:
    # draws of the policy part change neither the eligible samples of the value part nor its draws
    value = dict(n_sample=4, update_per_collect=3, max_use=2)
    ids = []
    for policy in (dict(n_sample=1), dict(n_sample=16, update_per_collect=9, max_use=1)):
        buffer = multi(5, size=24, policy=policy, value=value)
        ids.append([])
        for k in range(4):
            push_numbered(buffer, [10], 10 * k)
            ids[-1] += [pair['value']['id'].tolist() for pair in buffer.batches() if 'value' in pair]
    assert ids[0] == ids[1] and len(ids[0]) >= 8


DRAW: dict[str, Any] = dict(n_sample=4, update_per_collect=20)
SIZES: dict[str, Any] = dict(policy={**DRAW, 'size': 8}, value=DRAW)


def drawn(buffer: Any) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {'policy': set(), 'value': set()}
    for pair in buffer.batches():
        for part, batch in pair.items():
            found[part] |= set(batch['id'].tolist())
    return found


@pytest.mark.parametrize(
    ('size', 'parts', 'n_push', 'n_newest'),
    [
        (16, SIZES, 4, (8, 16)),  # 4 pushes of 4 fill the ring of 16; further pushes overwrite its start
        (16, SIZES, 6, (8, 16)),
        (8, dict(policy=DRAW, value={**DRAW, 'size': 12}), 5, (8, 12)),
    ],
)
def test_multi_buffer_draws_each_part_from_all_the_newest_samples_of_its_own_size(
    size: int, parts: dict[str, Any], n_push: int, n_newest: tuple[int, int]
) -> None:
    buffer = multi(size=size, **parts)
    push_numbered(buffer, [4] * n_push)
    newest = range(4 * n_push)
    # 20 draws of 4: a given one of 16 samples is missed by all with probability (3/4)^20 = 0.3%; the seed is fixed
    assert drawn(buffer) == {'policy': set(newest[-n_newest[0] :]), 'value': set(newest[-n_newest[1] :])}


def test_multi_buffer_part_of_the_common_size_draws_as_without_sizes() -> None:
    own = multi(size=16, policy=dict(n_sample=4, size=16), value=dict(n_sample=4))
    common = multi(size=16, policy=dict(n_sample=4), value=dict(n_sample=4))
    for buffer in (own, common):
        push_numbered(buffer, [6] * 4)
    assert same(next(own.batches())['policy'], next(common.batches())['policy'])


@pytest.mark.parametrize('size', [16, 24, 12])
def test_multi_buffer_keeps_sizes_separately_through_a_resume_also_with_another_common_size(size: int) -> None:
    first, second = multi(size=16, **SIZES), multi(size=size, **SIZES)
    push_numbered(first, [4] * 7)
    second.load_state_dict(first.state_dict())
    push_numbered(second, [4], first=28)
    assert drawn(second) == {'policy': set(range(24, 32)), 'value': set(range(32 - min(size, 20), 32))}


def weighted(first: int, weights: list[float]) -> dict[str, Any]:
    """Samples numbered from `first`, of these weights."""
    return {**numbered(first, len(weights)), 'weight': torch.tensor(weights)}


def test_samples_without_a_weight_are_neither_kept_nor_drawn() -> None:
    """Of 4 + 5 samples 2 + 1 have a weight, 2 and 5 so that the mean is 1: all three count equally."""
    buffer = replay(size=16, n_sample=3)
    buffer.leave_out_idle()
    buffer.push(weighted(0, [2.0, 0.0, 2.0, 0.0]))
    assert list(buffer.batches()) == []  # two samples are too few for a draw of three
    buffer.push(weighted(4, [0.0, 0.0, 0.0, 5.0, 0.0]))
    (batch,) = buffer.batches()
    assert sorted(batch['id'].tolist()) == [0, 2, 7]
    assert 'weight' not in batch
    assert is_whole({name: x for name, x in batch.items() if name != 'staleness'})


def test_rollout_of_idle_rows_alone_adds_nothing_but_age() -> None:
    buffer = replay(size=8, n_sample=2)
    buffer.leave_out_idle()
    buffer.push(numbered(0, 2))
    buffer.push(weighted(2, [0.0, 0.0]))
    (batch,) = buffer.batches()
    assert sorted(batch['id'].tolist()) == [0, 1]
    assert batch['staleness'].tolist() == [1.0, 1.0]


def test_sequences_stay_where_one_of_their_steps_has_a_weight() -> None:
    samples = {'id': torch.arange(3), 'weight': torch.tensor([[1.5, 1.5], [0.0, 0.0], [1.5, 0.0]])}
    real = without_idle(samples)
    assert real['id'].tolist() == [0, 2]
    assert real['weight'].tolist() == [[1.0, 1.0], [1.0, 0.0]]


def test_weights_that_differ_stay() -> None:
    real = without_idle(weighted(0, [0.5, 0.0, 2.5]))
    assert real['id'].tolist() == [0, 2]
    assert real['weight'].tolist() == [0.5, 2.5]


def test_ranks_with_different_numbers_of_idle_rows_draw_together_or_not_at_all() -> None:
    """Rank 0 has a draw of 2 after the first rollout, rank 1 after the second one: both draw in the second one."""

    def draws(ranks: Ranks) -> list[int]:
        buffer = replay(size=8, n_sample=2)
        buffer.leave_out_idle()
        buffer.set_ranks(ranks)
        counts = []
        for weights in ([[2.0, 2.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]], [[2.0, 0.0], [2.0, 0.0]]):
            buffer.push(weighted(0, weights[ranks.rank]))
            counts.append(len(list(buffer.batches())))
        return counts

    assert on_ranks(draws) == [[0, 1], [0, 1]]
