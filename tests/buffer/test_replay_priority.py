"""Prioritised draws: frequency and weight of each sample, and the priorities that the policy writes back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.buffer.samples import numbered, push_numbered, replay, same
from zoo.buffer import ReplayBuffer, ReplayConfig
from zoo.config.section import Config, plain, validate
from zoo.core.errors import UserError
from zoo.run.config import resolve_config


def one_draw(buffer: ReplayBuffer, priority_of: Any = lambda number: torch.ones(len(number))) -> dict[str, Any]:
    """Returns the only batch of a round; writes priorities into it, which the buffer then reads."""
    batches = buffer.batches()
    batch = next(batches)
    batch['priority'] = priority_of(batch['id'])
    assert next(batches, None) is None
    return batch


def with_priorities(priorities: list[float], n_sample: int, **fields: Any) -> ReplayBuffer:
    """A buffer with one sample for each priority."""
    old, buffer = (replay(size=len(priorities), n_sample=n_sample, **fields) for _ in range(2))
    push_numbered(old, [len(priorities)])
    state = old.state_dict()
    state['draws']['all'] |= {'priority': torch.tensor(priorities, dtype=torch.float64), 'largest': max(priorities)}
    buffer.load_state_dict(state)
    return buffer


def priorities_of(buffer: ReplayBuffer) -> list[float]:
    return buffer.state_dict()['draws']['all']['priority'].tolist()


@pytest.mark.parametrize(
    ('limits', 'drawn'),
    [
        ({}, [[14, 48, 12, 34, 56, 15], [29, 39, 49, 23, 14, 27]]),
        ({'max_use': 2, 'max_staleness': 0}, [[44, 54, 50, 52, 48, 36], [30, 44, 49, 40, 57, 55]]),
    ],
)
def test_uniform_draws_are_those_of_before_there_were_priorities(
    limits: dict[str, Any], drawn: list[list[int]]
) -> None:
    buffer = replay(3, size=48, n_sample=6, update_per_collect=2, **limits)
    push_numbered(buffer, [30, 30])
    assert [batch['id'].tolist() for batch in buffer.batches()] == drawn


def test_alpha_0_is_the_uniform_draw_to_the_bit() -> None:
    plain, off = replay(size=16, n_sample=4), replay(size=16, n_sample=4, alpha=0.0, beta=1.0)
    for buffer in (plain, off):
        push_numbered(buffer, [10, 10])
    assert same(next(plain.batches()), next(off.batches()))


@pytest.mark.slow
@pytest.mark.parametrize(('alpha', 'limit'), [(0.5, {}), (1.0, {'max_staleness': 0})], ids=['all', 'eligible'])
def test_sample_is_drawn_in_proportion_to_a_power_of_its_priority(alpha: float, limit: dict[str, Any]) -> None:
    n, n_draw = 40, 300
    buffer = replay(seed=1, size=80, n_sample=n, alpha=alpha, **limit)
    if limit:  # stale samples are not drawn, even with a large priority
        push_numbered(buffer, [n])
        one_draw(buffer, lambda number: torch.full((n,), 1e6))
    push_numbered(buffer, [n], 100)
    priority = torch.rand(n, generator=torch.Generator().manual_seed(0)) + 0.1
    one_draw(buffer, lambda number: priority[number - 100])
    counts = torch.zeros(n)
    for _ in range(n_draw):
        counts += torch.bincount(one_draw(buffer, lambda number: priority[number - 100])['id'] - 100, minlength=n)
    want = n_draw * n * priority**alpha / (priority**alpha).sum()
    assert ((counts - want).square() / want).sum() < 39 + 4 * (2 * 39) ** 0.5  # chi-square: mean k, deviation sqrt(2k)


def test_weight_is_that_of_the_formula() -> None:
    buffer = with_priorities([1.0, 1.0, 2.0, 4.0], 4, alpha=1.0, beta=0.5)
    batch = one_draw(buffer)
    # P = 1/8, 1/8, 1/4, 1/2 and n = 4: (4 P)^-.5 = 1.4142, 1.4142, 1, .7071. One row comes from each quarter of the sum;
    # the first is sample 0 or 1, so the largest weight of the batch is theirs
    want = torch.tensor([1.0, 1.0, 0.5**0.5, 0.5])[batch['id']]
    torch.testing.assert_close(batch['weight'], want)


LINEAR = {'start': 0.4, 'end': 1.0, 'over': 1000}


@pytest.mark.parametrize(
    ('beta', 'env_step', 'now', 'is_plain'),
    [
        (LINEAR, 0, 0.4, False),
        (LINEAR, 500, 0.7, True),  # as a resolved config
        (LINEAR, 5000, 1.0, False),
        ({'points': [[0, 0.0], [100, 1.0]], 'kind': 'step'}, 99, 0.0, True),
        (0.25, 77, 0.25, True),
    ],
)
def test_beta_follows_its_schedule(beta: Any, env_step: int, now: float, is_plain: bool) -> None:
    section = validate(ReplayConfig, dict(size=4, n_sample=4, alpha=1.0, beta=beta), 'buffer')
    buffer = ReplayBuffer(Config(plain(section)) if is_plain else section)
    buffer.push({'id': torch.arange(4)})
    if isinstance(beta, dict):
        with pytest.raises(UserError, match='buffer.beta is a schedule .* call its set_env_step'):
            next(buffer.batches())
    buffer.set_env_step(0)
    one_draw(buffer, lambda number: torch.tensor([1.0, 1.0, 2.0, 4.0])[number])
    buffer.set_env_step(env_step)
    batch = one_draw(buffer)
    assert batch['id'].tolist()[1:] == [2, 3, 3]  # P = 1/8, 1/8, 1/4, 1/2, and one from each quarter of the sum
    torch.testing.assert_close(batch['weight'], torch.tensor([1.0, 2.0**-now, 4.0**-now, 4.0**-now]))


def test_beta_of_a_config_lasts_as_long_as_the_run() -> None:
    config = {'env': {'id': 'CartPole-v1'}, 'policy': {'type': 'ppo_offpolicy'}, 'max_env_step': 5000}
    found = resolve_config({**config, 'buffer': {'type': 'replay', 'beta': {'start': 0.4, 'end': 1.0}}})
    assert found.buffer.beta == {'start': 0.4, 'end': 1.0, 'over': 5000}


@pytest.mark.parametrize('shape', [(4,), (4, 3)])  # rows, and sequences of 3 rows
def test_weight_of_the_samples_is_multiplied(shape: tuple[int, ...]) -> None:
    buffer = replay(size=4, n_sample=4, alpha=1.0, beta=1.0)
    buffer.push({'id': torch.arange(4), 'weight': torch.full(shape, 2.0)})
    first = one_draw(buffer, lambda number: number + 1.0)  # all new: weight 1
    assert torch.equal(first['weight'], torch.full(shape, 2.0))
    again = one_draw(buffer)
    factor = 1 / (again['id'] + 1.0)
    want = 2 * (factor / factor.max()).view(-1, *(1,) * (len(shape) - 1)).expand(shape)
    torch.testing.assert_close(again['weight'], want)


def test_new_samples_have_the_largest_priority_so_far() -> None:
    buffer = with_priorities([1.0, 8.0], 2, alpha=1.0)
    buffer.push(numbered(2, 1))  # replaces sample 0
    assert priorities_of(buffer) == [8.0, 8.0] and buffer.state_dict()['draws']['all']['largest'] == 8.0


def test_new_samples_have_the_largest_priority_that_the_policy_wrote() -> None:
    buffer = replay(size=4, n_sample=2, alpha=1.0)
    push_numbered(buffer, [2])
    one_draw(buffer, lambda number: number + 4.0)  # 4 and 5; before, the largest was 1
    buffer.push(numbered(2, 1))
    assert priorities_of(buffer) == [4.0, 5.0, 5.0]


def test_row_that_comes_several_times_has_its_largest_new_priority() -> None:
    buffer = with_priorities([1.0, 1.0, 1.0, 9.0], 4, alpha=1.0)  # 9 of 12: three of the four quarters are sample 3's
    batches = buffer.batches()
    batch = next(batches)
    assert batch['id'].tolist()[1:] == [3, 3, 3]
    batch['priority'] = torch.tensor([1.0, 5.0, 7.0, 6.0])
    assert next(batches, None) is None
    assert priorities_of(buffer)[3] == 7.0 and buffer.state_dict()['draws']['all']['largest'] == 9.0


def test_sample_pushed_over_one_that_is_learned_from_keeps_the_priority_of_new_ones() -> None:
    buffer = replay(size=4, n_sample=4, alpha=1.0)
    push_numbered(buffer, [4])
    batches = buffer.batches()
    batch = next(batches)
    buffer.push(numbered(4, 2))  # replaces 0 and 1
    batch['priority'] = batch['id'] + 2.0  # 2, 3 for 0, 1, and 4, 5 for 2, 3
    assert next(batches, None) is None
    assert priorities_of(buffer) == [1.0, 1.0, 4.0, 5.0]


def test_priority_0_counts_as_a_very_small_one() -> None:
    buffer = replay(size=2, n_sample=2, alpha=1.0)
    push_numbered(buffer, [2])
    one_draw(buffer, lambda number: number + 0.0)
    assert priorities_of(buffer) == [1e-6, 1.0]


def test_limits_hold_for_prioritised_draws_and_a_row_that_comes_twice_is_one_use() -> None:
    buffer = replay(size=4, n_sample=4, alpha=1.0, max_use=2, update_per_collect=1)
    push_numbered(buffer, [4])
    one_draw(buffer, lambda number: torch.where(number == 0, 1000.0, 1.0))
    batch = one_draw(buffer)
    assert (batch['id'] == 0).sum() >= 3  # 1000 of 1003
    used = buffer.state_dict()['draws']['all']['n_use'].tolist()
    assert used[0] == 2 and max(used) == 2 and min(used) >= 1
    assert list(buffer.batches()) == []  # sample 0 may not be drawn again, the other 3 do not fill a draw


@pytest.mark.parametrize('size', [8, 6, 12])
def test_resumed_buffer_of_another_size_has_the_priorities_of_the_samples_it_keeps(size: int) -> None:
    one, two = (replay(seed=3, size=n, n_sample=4, alpha=0.7) for n in (8, size))
    push_numbered(one, [5, 5])
    one_draw(one, lambda number: number + 1.0)
    two.load_state_dict(one.state_dict())
    a, b = (buffer.state_dict() for buffer in (one, two))
    by_number = dict(zip(a['ring']['data']['id'].tolist(), a['draws']['all']['priority'].tolist(), strict=True))
    kept = b['ring']['data']['id'].tolist()
    assert [by_number[number] for number in kept] == b['draws']['all']['priority'].tolist()
    assert len(kept) == min(8, size)


@pytest.mark.parametrize(('before', 'after'), [(0.0, 0.6), (0.6, 0.0)])
def test_resume_may_turn_priorities_on_and_off(before: float, after: float) -> None:
    first, second = (replay(size=8, n_sample=4, alpha=alpha) for alpha in (before, after))
    push_numbered(first, [8])
    second.load_state_dict(first.state_dict())
    batch = one_draw(second)
    assert ('weight' in batch) == (after > 0)
    assert len(batch['id']) == 4


@pytest.mark.parametrize('priority', [float('nan'), float('inf'), 0.0])
def test_state_with_a_priority_that_is_none_is_refused(priority: float) -> None:
    with pytest.raises(ValueError, match='finite and above 0'):
        with_priorities([1.0, priority], 2, alpha=1.0)


@pytest.mark.parametrize(
    ('columns', 'problem'),
    [
        ({'priority': torch.tensor([1.0, float('nan'), 1.0, 1.0])}, 'negative or not finite'),
        ({'priority': torch.tensor([1.0, -1.0, 1.0, 1.0])}, 'negative or not finite'),
        ({'priority': torch.ones(4, 1)}, r'shape \[4, 1\] but the batch has 4 samples'),
        ({'priority': torch.ones(3)}, r'shape \[3\] but the batch has 4 samples'),
        ({}, r"alpha is 0.6 but the policy wrote no column 'priority'.*alpha 0"),
    ],
)
def test_bad_priorities_are_refused(columns: dict[str, torch.Tensor], problem: str) -> None:
    buffer = replay(size=8, n_sample=4, alpha=0.6)
    push_numbered(buffer, [8])
    batches = buffer.batches()
    next(batches).update(columns)
    with pytest.raises(UserError, match=problem):
        next(batches)


def test_samples_with_a_column_of_that_name_are_refused() -> None:
    buffer = replay(size=4, n_sample=4, alpha=0.6)
    buffer.push({'id': torch.arange(4), 'priority': torch.ones(4)})
    with pytest.raises(UserError, match="samples have the key 'priority'"):
        next(buffer.batches())
