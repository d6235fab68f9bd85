"""What contradicts a run's rollouts and minibatches in the section of a replay buffer."""
from __future__ import annotations

from typing import Any

import pytest

from zoo.buffer import MultiConfig, ReplayConfig, draw_problems
from zoo.config import plain, validate


def problems(cls: Any = ReplayConfig, n_rollout: int = 1024, batch_size: int = 256, **fields: Any) -> list[str]:
    return list(draw_problems(plain(validate(cls, fields)), n_rollout, batch_size))


@pytest.mark.parametrize('fields', [
    {}, {'size': 1024}, {'max_staleness': 0}, {'n_sample': 2048, 'max_staleness': 1}, {'max_use': 1},
    {'max_use': 3, 'update_per_collect': 3}, {'max_use': 2, 'n_sample': 512, 'update_per_collect': 4}])
def test_draws_that_the_rollouts_feed_are_accepted(fields: dict[str, Any]) -> None:
    assert problems(**fields) == []


@pytest.mark.parametrize(('fields', 'problem'), [
    ({'n_sample': 1000}, 'buffer.n_sample is 1000 but policy.learn.batch_size is 256: 1000 % 256 = 232 would be '
                         'dropped; use a multiple, e.g. 768.'),
    ({'n_sample': 100}, 'buffer.n_sample is 100 but policy.learn.batch_size is 256: 100 % 256 = 100 would be dropped; '
                        'use a multiple, e.g. 256.'),
    ({'size': 1000, 'n_sample': 512}, 'buffer.size is 1000 but a rollout has 1024 samples: 24 of them would never be '
                                      'kept; use 1024 or more.'),
    ({'n_sample': 2048, 'max_staleness': 0},
     'buffer.max_staleness is 0 but a rollout has 1024 samples: 1 x 1024 = 1024 may be drawn and buffer.n_sample is '
     '2048, so nothing would be trained; use max_staleness 1 or more, or a smaller n_sample.'),
    ({'max_use': 2, 'update_per_collect': 3},
     'buffer.max_use is 2 but a rollout has 1024 samples: it allows 2 x 1024 = 2048 uses and 3 draws of 1024 want '
     '3072, so draws would be left out; use max_use 3 or more, or fewer or smaller draws.'),
])
def test_a_draw_that_the_rollouts_cannot_feed_is_named(fields: dict[str, Any], problem: str) -> None:
    assert problems(**fields) == [problem]


def test_the_remedies_are_the_smallest_that_help():
    # 2560 samples want ceil(2560 / 1024) = 3 rollouts, so 2 older than the newest; 2 draws of 2560 want 5 uses
    fields: dict[str, Any] = {'n_sample': 2560, 'update_per_collect': 2}
    staleness, use = problems(**fields, max_staleness=1, max_use=4)
    assert 'use max_staleness 2 or more' in staleness and 'use max_use 5 or more' in use
    assert problems(**fields, max_staleness=2, max_use=5) == []


def test_both_parts_of_a_multi_buffer_are_looked_at():
    found = problems(MultiConfig, policy={'n_sample': 1000}, value={'max_use': 1, 'update_per_collect': 2})
    assert [problem.split(' ')[0] for problem in found] == ['buffer.policy.n_sample', 'buffer.value.max_use']
