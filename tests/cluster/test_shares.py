from __future__ import annotations

from typing import Any

import pytest

from zoo.cluster.config import split_config, split_problems
from zoo.run.config import frozen_config, resolve_config


def config(name: str = 'cartpole_ppo', *overrides: str) -> Any:
    return frozen_config(resolve_config(name, list(overrides)))


def test_sizes_are_divided_and_the_rest_is_of_the_whole_run() -> None:
    whole = config('cartpole_ppo', 'policy.eval.n_episode=5', 'env.evaluator_env_num=4')
    first, second = (split_config(whole, 2, rank) for rank in (0, 1))
    # 8 envs of 128 steps in minibatches of 256 -> 4 envs, 512 samples, 128; 5 episodes -> 3 and 2
    assert (first.env.collector_env_num, first.policy.collect.n_sample, first.policy.learn.batch_size) == (4, 512, 128)
    assert (first.policy.eval.n_episode, second.policy.eval.n_episode) == (3, 2)
    assert first.env.evaluator_env_num == second.env.evaluator_env_num == 2
    assert first.policy.collect.n_step == whole.policy.collect.n_step
    assert first.max_env_step == whole.max_env_step
    assert whole.env.collector_env_num == 8


def test_auxiliary_and_critic_minibatches_and_buffers_are_divided() -> None:
    ppg = config('cartpole_ppg', 'policy.learn.critic_batch_size=64', 'policy.learn.aux_batch_size=512')
    part = split_config(ppg, 2, 0)
    assert (part.policy.learn.critic_batch_size, part.policy.learn.aux_batch_size) == (32, 256)
    assert part.policy.learn.aux_freq == ppg.policy.learn.aux_freq
    whole = config('cartpole_ppg_offpolicy', 'buffer.policy.size=4096', 'buffer.value.size=8192')
    part = split_config(whole, 2, 1)
    assert (part.buffer.policy.size, part.buffer.value.size) == (2048, 4096)
    for name in ('policy', 'value'):
        assert part.buffer[name].n_sample * 2 == whole.buffer[name].n_sample


def test_part_of_a_config_is_a_valid_config() -> None:
    part = split_config(config('cartpole_ppg_offpolicy'), 2, 1)
    again = resolve_config(part.to_dict())
    assert again.policy.collect.n_sample == part.policy.collect.n_sample


@pytest.mark.parametrize(
    ('size', 'overrides', 'sentence'),
    [
        (
            3,
            ['env.collector_env_num=9', 'policy.learn.batch_size=64'],
            'policy.learn.batch_size is 64 but there are 3 ranks: 64 % 3 = 1; use a multiple, e.g. 63 or 66.',
        ),
        (3, [], 'env.collector_env_num is 8 but there are 3 ranks: 8 % 3 = 2; use a multiple, e.g. 6 or 9.'),
        (16, [], 'env.collector_env_num is 8 but there are 16 ranks: 8 % 16 = 8; use a multiple, e.g. 16.'),
        (
            2,
            ['policy.eval.n_episode=1'],
            'policy.eval.n_episode is 1 but there are 2 ranks, which share the episodes; use 2 or more.',
        ),
        (
            2,
            ['cluster.runner_num=3'],
            'cluster.runner_num is 3, for each of 2 ranks, but each of them has 4 envs: 4 % 3 = 1; use a divisor, e.g. 2 or 4.',
        ),
    ],
)
def test_uneven_split_is_refused_with_what_fits(size: int, overrides: list[str], sentence: str) -> None:
    cfg = resolve_config('cartpole_ppo', [text for text in overrides if 'runner_num' not in text]).to_dict()
    if 'cluster.runner_num=3' in overrides:  # which alone would be refused
        cfg['cluster']['runner_num'] = 3
    assert list(split_problems(cfg, size)) == [sentence]


def test_learners_of_two_kinds_are_refused() -> None:
    cfg = config().to_dict()
    cfg['cluster']['learner_num'] = 3
    assert list(split_problems(cfg, 2)) == [
        'cluster.learner_num is 3 but torchrun started 2 ranks, which are the learners; leave one of the two out.'
    ]


def test_even_split_has_no_problems() -> None:
    assert list(split_problems(config(), 2)) == []
