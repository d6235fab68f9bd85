"""Prioritised draws: how often a sample comes, what its weight is, what the policy writes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.buffer.samples import numbered, push_numbered, replay, same
from tests.policy_envs import differing, job_config
from zoo.buffer import ReplayBuffer, ReplayConfig
from zoo.buffer.replay import PrioritizedDraws
from zoo.buffer.ring import Draws
from zoo.config.section import Config, ConfigError, plain, validate
from zoo.core.errors import UserError
from zoo.core.registry import POLICY_REGISTRY
from zoo.policy import PPOOffPolicy
from zoo.run.checkpoint.file import load_checkpoint, save_checkpoint
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob


def one_draw(buffer: ReplayBuffer, priority_of: Any = lambda number: torch.ones(len(number))) -> dict[str, Any]:
    """The next batch, into which the priorities are written, of which the buffer then takes them."""
    batches = buffer.batches()
    batch = next(batches)
    batch['priority'] = priority_of(batch['id'])
    assert next(batches, None) is None
    return batch


def with_priorities(priorities: list[float], n_sample: int, **fields: Any) -> ReplayBuffer:
    """A buffer of one sample for each priority, which it was told by a draw that has them all."""
    buffer = replay(size=len(priorities), n_sample=len(priorities), **fields)
    push_numbered(buffer, [len(priorities)])
    batch = one_draw(buffer, lambda number: torch.tensor(priorities)[number])
    assert sorted(batch['id'].tolist()) == list(range(len(priorities)))  # all new: alike, one from each range
    buffer._draws['all']._cfg = buffer._draws['all']._cfg.model_copy(update={'n_sample': n_sample})
    return buffer


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
    assert type(off._draws['all']) is Draws
    assert same(next(plain.batches()), next(off.batches()))


@pytest.mark.slow
@pytest.mark.parametrize('alpha', [0.5, 1.0])
def test_sample_is_drawn_in_proportion_to_a_power_of_its_priority(alpha: float) -> None:
    priorities = [1.0, 4.0, 9.0, 16.0]
    buffer = with_priorities(priorities, 1000, alpha=alpha)
    buffer._draws['all']._cfg = buffer._draws['all']._cfg.model_copy(update={'n_sample': 4})
    mass = torch.tensor(priorities) ** alpha
    counts = torch.zeros(4)
    for _ in range(2000):
        counts += torch.bincount(one_draw(buffer, lambda n: torch.tensor(priorities)[n])['id'], minlength=4)
    want = 8000 * mass / mass.sum()
    # chi-square with 3 degrees of freedom is above 16.3 in 1 of 1,000; one row from each of 4 ranges varies less than that
    assert ((counts - want).square() / want).sum() < 16.3


@pytest.mark.parametrize('limit', [{}, {'max_staleness': 0}], ids=['all', 'eligible'])
def test_any_row_of_many_is_drawn_in_proportion_to_its_priority(limit: dict[str, Any]) -> None:
    n, n_draw = 40, 1000
    buffer = replay(seed=1, size=60, n_sample=n, alpha=1.0, **limit)
    push_numbered(buffer, [20] if limit else [])  # stale ones, not drawn
    push_numbered(buffer, [n], 100)
    mass = torch.rand(n, generator=torch.Generator().manual_seed(0)) + 0.1
    one_draw(buffer, lambda number: mass[number - 100])
    counts = torch.zeros(n)
    for _ in range(n_draw):
        counts += torch.bincount(one_draw(buffer, lambda number: mass[number - 100])['id'] - 100, minlength=n)
    want = n_draw * n * mass / mass.sum()
    assert ((counts - want).square() / want).sum() < 39 + 4 * (2 * 39) ** 0.5  # chi-square: mean k, deviation sqrt(2k)


def test_weight_is_that_of_the_formula() -> None:
    buffer = with_priorities([1.0, 1.0, 2.0, 4.0], 4, alpha=1.0, beta=0.5)
    batch = one_draw(buffer)
    # P = 1/8, 1/8, 1/4, 1/2 and n = 4: (4 P)^-.5 = 1.4142, 1.4142, 1, .7071; each range of 1/4 has the row it ends in,
    # so the largest weight of the batch is that of sample 0 or 1
    want = torch.tensor([1.0, 1.0, 0.5**0.5, 0.5])[batch['id']]
    torch.testing.assert_close(batch['weight'], want)


BETAS: list[tuple[Any, int, float]] = [
    ({'start': 0.4, 'end': 1.0, 'over': 1000}, 0, 0.4),
    ({'start': 0.4, 'end': 1.0, 'over': 1000}, 500, 0.7),
    ({'start': 0.4, 'end': 1.0, 'over': 1000}, 5000, 1.0),
    ({'points': [[0, 0.0], [100, 1.0]], 'kind': 'step'}, 99, 0.0),
    (0.25, 77, 0.25),
]


@pytest.mark.parametrize(('beta', 'env_step', 'now'), BETAS)
@pytest.mark.parametrize('is_plain', [False, True], ids=['section', 'resolved'])
def test_beta_follows_its_schedule(beta: Any, env_step: int, now: float, is_plain: bool) -> None:
    section = validate(ReplayConfig, dict(size=4, n_sample=4, alpha=1.0, beta=beta), 'buffer')
    buffer = ReplayBuffer(Config(plain(section)) if is_plain else section)
    buffer.push({'id': torch.arange(4)})
    buffer.set_env_step(0)
    one_draw(buffer, lambda number: torch.tensor([1.0, 1.0, 2.0, 4.0])[number])
    buffer.set_env_step(env_step)
    batch = one_draw(buffer)
    assert batch['id'].tolist()[1:] == [2, 3, 3]  # P = 1/8, 1/8, 1/4, 1/2, and one from each quarter of the sum
    torch.testing.assert_close(batch['weight'], torch.tensor([1.0, 2.0**-now, 4.0**-now, 4.0**-now]))


def test_schedule_without_env_steps_is_refused() -> None:
    buffer = replay(size=2, n_sample=2, alpha=1.0, beta={'start': 0.4, 'end': 1.0, 'over': 10})
    push_numbered(buffer, [2])
    with pytest.raises(UserError, match='buffer.beta is a schedule .* call its set_env_step'):
        next(buffer.batches())


def test_beta_of_a_config_lasts_as_long_as_the_run() -> None:
    config = {'env': {'id': 'CartPole-v1'}, 'policy': {'type': 'ppo_offpolicy'}, 'max_env_step': 5000}
    found = resolve_config({**config, 'buffer': {'type': 'replay', 'beta': {'start': 0.4, 'end': 1.0}}})
    assert found.buffer.beta == {'start': 0.4, 'end': 1.0, 'over': 5000}


def test_weights_of_equal_priorities_are_1() -> None:
    buffer = replay(size=8, n_sample=4, alpha=0.6, beta=1.0)
    push_numbered(buffer, [8])
    assert one_draw(buffer)['weight'].tolist() == [1.0] * 4


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
    buffer.push(numbered(2, 1))  # over sample 0
    state = buffer.state_dict()['draws']['all']
    assert state['priority'].tolist() == [8.0, 8.0] and state['largest'] == 8.0


def test_row_that_comes_several_times_has_its_largest_new_priority() -> None:
    buffer = with_priorities([1.0, 1.0, 1.0, 9.0], 4, alpha=1.0)  # 9 of 12: three of the four quarters are sample 3's
    batches = buffer.batches()
    batch = next(batches)
    assert batch['id'].tolist()[1:] == [3, 3, 3]
    batch['priority'] = torch.tensor([1.0, 5.0, 7.0, 6.0])
    assert next(batches, None) is None
    state = buffer.state_dict()['draws']['all']
    assert state['priority'][3] == 7.0 and state['largest'] == 9.0


def test_sample_pushed_over_one_that_is_learned_from_keeps_the_priority_of_new_ones() -> None:
    buffer = replay(size=4, n_sample=4, alpha=1.0)
    push_numbered(buffer, [4])
    batches = buffer.batches()
    batch = next(batches)
    buffer.push(numbered(4, 2))  # over 0 and 1
    batch['priority'] = batch['id'] + 2.0  # 2, 3 for 0, 1, and 4, 5 for 2, 3
    assert next(batches, None) is None
    assert buffer.state_dict()['draws']['all']['priority'].tolist() == [1.0, 1.0, 4.0, 5.0]


def test_priority_0_counts_as_a_very_small_one() -> None:
    buffer = with_priorities([0.0, 1.0], 2, alpha=1.0)
    assert buffer.state_dict()['draws']['all']['priority'].tolist() == [1e-6, 1.0]


def test_limits_hold_for_prioritised_draws_and_a_row_that_comes_twice_is_one_use() -> None:
    buffer = replay(size=4, n_sample=4, alpha=1.0, max_use=2, update_per_collect=1)
    push_numbered(buffer, [4])
    one_draw(buffer, lambda number: torch.where(number == 0, 1000.0, 1.0))
    batch = one_draw(buffer)
    assert (batch['id'] == 0).sum() >= 3  # 1000 of 1003
    used = buffer.state_dict()['draws']['all']['n_use'].tolist()
    assert used[0] == 2 and max(used) == 2 and min(used) >= 1
    assert list(buffer.batches()) == []  # sample 0 may not be drawn again, the other 3 do not fill a draw


def test_stale_samples_are_not_drawn_whatever_their_priority() -> None:
    buffer = replay(size=16, n_sample=4, alpha=1.0, max_staleness=0)
    push_numbered(buffer, [8])
    one_draw(buffer, lambda number: torch.full((len(number),), 1e6))
    buffer.push(numbered(8, 8))
    assert (one_draw(buffer)['id'] >= 8).all()


@pytest.mark.parametrize('size', [8, 6, 12])
def test_resumed_buffer_has_the_priorities_and_draws_the_same(tmp_path: Path, size: int) -> None:
    def fresh(n: int) -> ReplayBuffer:
        return replay(seed=3, size=n, n_sample=4, alpha=0.7)

    one, two = fresh(8), fresh(size)
    push_numbered(one, [5, 5])
    one_draw(one, lambda number: number + 1.0)
    save_checkpoint(tmp_path / 'a.safetensors', {'buffer': one.state_dict()}, {})
    two.load_state_dict(load_checkpoint(tmp_path / 'a.safetensors').state['buffer'])
    a, b = (buffer.state_dict() for buffer in (one, two))
    by_number = dict(zip(a['ring']['data']['id'].tolist(), a['draws']['all']['priority'].tolist(), strict=True))
    kept = b['ring']['data']['id'].tolist()
    assert [by_number[number] for number in kept] == b['draws']['all']['priority'].tolist()
    assert len(kept) == min(8, size)
    if size == 8:
        for _ in range(3):
            assert same(one_draw(one, lambda n: n + 0.5), one_draw(two, lambda n: n + 0.5))


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
    buffer = with_priorities([1.0, 2.0], 2, alpha=1.0)
    state = buffer.state_dict()
    state['draws']['all']['priority'] = torch.tensor([1.0, priority], dtype=torch.float64)
    with pytest.raises(ValueError, match='finite and above 0'):
        replay(size=2, n_sample=2, alpha=1.0).load_state_dict(state)


@pytest.mark.parametrize(
    ('priority', 'problem'),
    [
        (torch.tensor([1.0, float('nan'), 1.0, 1.0]), 'negative or not finite'),
        (torch.tensor([1.0, -1.0, 1.0, 1.0]), 'negative or not finite'),
        (torch.ones(4, 1), r'shape \[4, 1\] but the batch has 4 samples'),
        (torch.ones(3), r'shape \[3\] but the batch has 4 samples'),
    ],
)
def test_bad_priorities_are_refused(priority: torch.Tensor, problem: str) -> None:
    buffer = replay(size=8, n_sample=4, alpha=1.0)
    push_numbered(buffer, [8])
    with pytest.raises(UserError, match=problem):
        one_draw(buffer, lambda number: priority)


def test_policy_that_writes_no_priorities_is_refused() -> None:
    buffer = replay(size=8, n_sample=4, alpha=0.6)
    push_numbered(buffer, [8])
    with pytest.raises(UserError, match=r"alpha is 0.6 but the policy wrote no column 'priority'.*alpha 0"):
        list(buffer.batches())


def test_samples_with_a_column_of_that_name_are_refused() -> None:
    buffer = replay(size=4, n_sample=4, alpha=0.6)
    buffer.push({'id': torch.arange(4), 'priority': torch.ones(4)})
    with pytest.raises(UserError, match="samples have the key 'priority'"):
        next(buffer.batches())


@pytest.mark.parametrize(
    ('fields', 'problem'),
    [
        (
            {'alpha': -0.1},
            'buffer.alpha is -0.1 (number) but must be a number >= 0 and <= 2; leave it out for 0.0, the default.',
        ),
        (
            {'beta': 1.5},
            'buffer.beta is 1.5 (number) but must be a number >= 0 and <= 1 or {start, end, over} or {points, kind}; leave it '
            'out for 0.4, the default.',
        ),
        (
            {'beta': {'start': 0.4, 'end': 1.5}},
            'buffer: beta reaches 1.5 but must be 0 to 1; use 1 for a full correction.',
        ),
        (
            {'beta': [[0, 0.4], [1000, 2.0], [2000, 1.0]]},
            'buffer: beta reaches 2 but must be 0 to 1; use 1 for a full correction.',
        ),
    ],
)
def test_options_out_of_range_are_refused(fields: dict[str, Any], problem: str) -> None:
    config = {'env': {'id': 'CartPole-v1'}, 'policy': {'type': 'ppo_offpolicy'}}
    with pytest.raises(ConfigError) as error:
        resolve_config({**config, 'buffer': {'type': 'replay', **fields}})
    assert error.value.problems == [problem]


def test_kinds_of_draws() -> None:
    assert type(replay(alpha=0.5)._draws['all']) is PrioritizedDraws


def learn_and_rank(self: Any, batch: Any) -> Any:
    """PPO's update on a draw, and the size of the advantages as priorities."""
    metrics = PPOOffPolicy._forward_learn(self, dict(batch))
    batch['priority'] = batch['adv'].abs()
    return metrics


@pytest.mark.slow
def test_resumed_run_with_priorities_equals_one_that_was_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    POLICY_REGISTRY.names()
    monkeypatch.setattr(POLICY_REGISTRY, '_items', dict(POLICY_REGISTRY._items))
    PPOOffPolicy.with_updates('ranking', _forward_learn=learn_and_rank, writes_priority=True)
    buffer = dict(type='replay', size=160, n_sample=64, update_per_collect=3, alpha=0.6)
    cfg = job_config(tmp_path, 'CartPole-v1', max_env_step=400, policy=dict(type='ranking'), buffer=buffer)
    with SerialJob(resolve_config(cfg)) as job:
        for i in range(6):
            if i == 3:
                job.reset_env()  # a resume starts new episodes
            job.iteration()
        straight = {key: job.state_dict()[key] for key in ('policy', 'buffer')}
        assert len(straight['buffer']['draws']['all']['priority'].unique()) > 32  # they did come back
    with SerialJob(resolve_config(cfg)) as job:
        for _ in range(3):
            job.iteration()
        job.save()
        run_dir = job.run_dir
    checkpoint = load_checkpoint(run_dir)
    with SerialJob(resolve_config(checkpoint.meta['config']), checkpoint=checkpoint) as job:
        for _ in range(3):
            job.iteration()
        assert not differing({key: job.state_dict()[key] for key in straight}, straight)
