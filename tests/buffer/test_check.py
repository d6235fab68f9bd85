"""What contradicts a run's rollouts and minibatches in the section of a replay buffer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.buffer.samples import push_numbered, replay
from zoo.buffer import MultiConfig, ReplayConfig, draw_problems
from zoo.config.section import plain, validate


def problems(
    cls: Any = ReplayConfig, n_rollout: int = 1024, batch_size: int = 256, max_env_step: int = 100_000, **fields: Any
) -> list[str]:
    return list(draw_problems(plain(validate(cls, fields)), n_rollout, batch_size, max_env_step))


@pytest.mark.parametrize(
    'fields',
    [
        {},
        {'size': 1024},
        {'max_staleness': 0},
        {'n_sample': 2048, 'max_staleness': 1},
        {'max_use': 1},
        {'max_use': 3, 'update_per_collect': 3},
        {'max_use': 2, 'n_sample': 512, 'update_per_collect': 4},
        {'n_sample': 4096, 'max_env_step': 4096},
        {'size': 4096, 'max_staleness': 3},
        {'size': 1024, 'max_staleness': 0},
        {'max_env_step': 1023},
    ],
)  # less than a rollout: no matter of draws
def test_draws_that_the_rollouts_feed_are_accepted(fields: dict[str, Any]) -> None:
    assert problems(**fields) == []


@pytest.mark.parametrize(
    ('fields', 'problem'),
    [
        (
            {'n_sample': 1000},
            'buffer.n_sample is 1000 but policy.learn.batch_size is 256: 1000 % 256 = 232 would be '
            'dropped; use a multiple, e.g. 768.',
        ),
        (
            {'n_sample': 100},
            'buffer.n_sample is 100 but policy.learn.batch_size is 256: 100 % 256 = 100 would be dropped; '
            'use a multiple, e.g. 256.',
        ),
        (
            {'size': 1000, 'n_sample': 512},
            'buffer.size is 1000 but a rollout has 1024 samples: 24 of them would never be kept; use 1024 or more.',
        ),
        (
            {'n_sample': 2048, 'max_staleness': 0},
            'buffer.max_staleness is 0 but a rollout has 1024 samples: 1 x 1024 = 1024 may be drawn and buffer.n_sample is '
            '2048, so nothing would be trained; use max_staleness 1 or more, or a smaller n_sample.',
        ),
        (
            {'max_use': 2, 'update_per_collect': 3},
            'buffer.max_use is 2 but a rollout has 1024 samples: it allows 2 x 1024 = 2048 uses and 3 draws of 1024 want '
            '3072, so draws would be left out; use max_use 3 or more, or fewer or smaller draws.',
        ),
        # 5000 // 1024 = 4 rollouts, 5999 // 1024 = 5; 5376 samples want ceil(5.25) = 6
        (
            {'n_sample': 5120, 'max_env_step': 5000},
            'buffer.n_sample is 5120 but max_env_step is 5000 and a rollout has 1024 samples: the run collects 4 x 1024 = '
            '4096, so nothing would be trained; use max_env_step 5120 or more, or a smaller n_sample.',
        ),
        (
            {'n_sample': 5376, 'max_env_step': 5999},
            'buffer.n_sample is 5376 but max_env_step is 5999 and a rollout has 1024 samples: the run collects 5 x 1024 = '
            '5120, so nothing would be trained; use max_env_step 6144 or more, or a smaller n_sample.',
        ),
        (
            {'size': 4095, 'max_staleness': 3},
            'buffer.max_staleness is 3 but buffer.size is 4095 and a rollout has 1024 samples: 4 x 1024 = 4096 would have to '
            'be kept, so the limit excludes nothing; use buffer.size 4096 or more, max_staleness 2 or less, or null for no '
            'limit.',
        ),
    ],
)
def test_a_draw_that_the_rollouts_cannot_feed_is_named(fields: dict[str, Any], problem: str) -> None:
    assert problems(**fields) == [problem]


def test_any_draw_is_one_batch_without_a_batch_size() -> None:
    assert list(draw_problems(plain(validate(ReplayConfig, {'n_sample': 1000})), 1024, None, 100_000)) == []


@pytest.mark.parametrize(
    ('fields', 'found'),
    [
        ({'size': 1000, 'policy': {'size': 1024}, 'value': {'size': 2048}}, []),  # the common size is nobody's
        (
            {'size': 1024, 'policy': {'n_sample': 512, 'size': 1000}, 'value': {}},
            [
                'buffer.policy.size is 1000 but a rollout has 1024 samples: 24 of them would never be kept; use 1024 or more.'
            ],
        ),
        (
            {'size': 1000, 'policy': {'size': 1024}, 'value': {'n_sample': 512}},
            ['buffer.size is 1000 but a rollout has 1024 samples: 24 of them would never be kept; use 1024 or more.'],
        ),
        (
            {'size': 8192, 'policy': {'size': 2048, 'max_staleness': 3}, 'value': {'max_staleness': 3}},
            [
                'buffer.policy.max_staleness is 3 but buffer.policy.size is 2048 and a rollout has 1024 samples: 4 x 1024 = '
                '4096 would have to be kept, so the limit excludes nothing; use buffer.policy.size 4096 or more, '
                'max_staleness 1 or less, or null for no limit.'
            ],
        ),
    ],
)
def test_sizes_of_the_parts_of_a_multi_buffer_are_looked_at(fields: dict[str, Any], found: list[str]) -> None:
    assert problems(MultiConfig, **fields) == found


def test_the_remedies_are_the_smallest_that_help():
    # 2560 samples want ceil(2560 / 1024) = 3 rollouts, so 2 older than the newest; 2 draws of 2560 want 5 uses
    fields: dict[str, Any] = {'n_sample': 2560, 'update_per_collect': 2}
    staleness, use = problems(**fields, max_staleness=1, max_use=4)
    assert 'use max_staleness 2 or more' in staleness and 'use max_use 5 or more' in use
    assert problems(**fields, max_staleness=2, max_use=5) == []


def test_both_parts_of_a_multi_buffer_are_looked_at():
    found = problems(MultiConfig, policy={'n_sample': 1000}, value={'max_use': 1, 'update_per_collect': 2})
    assert [problem.split(' ')[0] for problem in found] == ['buffer.policy.n_sample', 'buffer.value.max_use']


@pytest.mark.parametrize('size', [4, 5, 7, 8, 9, 12])
@pytest.mark.parametrize('limit', range(4))
def test_a_limit_of_staleness_that_is_refused_is_no_limit(size: int, limit: int) -> None:
    """Oracle: the ages in a full buffer, of rollouts of 4."""
    buffer = replay(size=size, n_sample=size)  # one draw is all that it holds
    push_numbered(buffer, [4] * 5)
    oldest = next(buffer.batches())['staleness'].max()
    found = problems(n_rollout=4, batch_size=1, size=size, n_sample=1, max_staleness=limit)
    assert not found or oldest <= limit
    assert bool(found) == (size < 4 * (limit + 1))
