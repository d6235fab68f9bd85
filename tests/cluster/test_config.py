"""Section `cluster`: a setting that is impossible or has no effect is refused before anything is started; shares of ranks."""

from __future__ import annotations

import importlib.util
import re
from types import SimpleNamespace
from typing import Any

import pytest

from zoo.cluster import config as section
from zoo.cluster.config import split_config, split_problems
from zoo.config.section import ConfigError
from zoo.run.base_config import JobConfig
from zoo.run.config import frozen_config, resolve_config

BASE = {'env': {'id': 'CartPole-v1', 'collector_env_num': 8}, 'policy': {'type': 'ppo'}}

TWO = 'cluster.runner_num=2'


def problem(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_config(BASE, overrides)
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


@pytest.mark.parametrize(
    ('overrides', 'words'),
    [
        (['cluster.runner_num=3'], 'env.collector_env_num is 8: 8 % 3 = 2; use a divisor, e.g. 2 or 4.'),
        (['cluster.runner_num=16'], '8 % 16 = 8; use a divisor, e.g. 8.'),
        (['cluster.engine=process'], "cluster.engine is 'process' but cluster.runner_num is 0"),
        (['cluster.max_lag=1'], 'cluster.max_lag is 1 but cluster.runner_num is 0'),
        ([TWO, 'cluster.address=host:1'], "cluster.address is 'host:1', which only Ray reads"),
        ([TWO, 'cluster.runner_gpu=0.5'], 'cluster.runner_gpu is 0.5, which only Ray reads'),
        ([TWO, 'env.collector_group_num=1'], 'env.collector_group_num is 1 but cluster.runner_num is 2'),
        (['cluster.engine=mpi', TWO], "must be one of 'auto', 'inline', 'process', 'ray'"),
        (['cluster.runner_num=-1'], 'cluster.runner_num'),
        (['cluster.runner_timeout=0'], 'cluster.runner_timeout'),
        (['cluster.runners=2'], 'cluster.runner_num'),
    ],
    ids=lambda x: ' '.join(x) if isinstance(x, list) else None,
)
def test_what_cannot_be_is_one_sentence(overrides: list[str], words: str) -> None:
    assert words in problem(*overrides)


def test_missing_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_ray(name: str) -> object:
        return None if name == 'ray' else importlib.util.find_spec(name)

    monkeypatch.setattr(section, 'find_spec', without_ray)
    for overrides, key in (
        (['cluster.runner_num=2', 'cluster.engine=ray'], "cluster.engine is 'ray'"),
        (['cluster.learner_num=2'], 'cluster.learner_num is 2'),
    ):
        said = problem(*overrides)
        assert said.startswith(f'{key} but ray is not installed')
        assert said.endswith("pip install '.[ray]' in the checkout of zoo.")


def test_windows_has_no_engine_process(monkeypatch: pytest.MonkeyPatch) -> None:
    job = frozen_config(resolve_config(BASE, ['cluster.runner_num=2']))
    monkeypatch.setattr(section, 'os', SimpleNamespace(name='nt'))
    assert 'needs Linux or macOS' in next(job.cluster.problems(job))


@pytest.mark.parametrize(
    ('overrides', 'engine'),
    [
        ([], None),
        (['cluster.runner_num=2'], 'process'),
        (['cluster.runner_num=2', 'cluster.engine=inline'], 'inline'),
    ],
)
def test_engine_of_a_config_is_none_by_default_and_auto_means_process(overrides: list[str], engine: str | None) -> None:
    job = frozen_config(resolve_config(BASE, overrides))
    assert section.engine_of(job.cluster) == engine and not list(job.cluster.problems(job))


# --- conflicts with other sections


def job(max_lag: int, policy: dict[str, Any], **env: Any) -> JobConfig:
    """The config of a run whose two runners may be ahead of the learner; its section cluster is not checked."""
    config = resolve_config({'env': {'id': 'CartPole-v1', **env}, 'policy': policy}).to_dict()
    return frozen_config({**config, 'cluster': {**config['cluster'], 'runner_num': 2, 'max_lag': max_lag}})


@pytest.mark.parametrize(
    ('env', 'collect', 'words'),
    [
        ({'reset_every': 3}, {}, 'env.reset_every is 3 but cluster.max_lag is 1'),
        ({}, {'batch_mode': 'episode'}, "policy.collect.batch_mode is 'episode' but cluster.max_lag is 1"),
        ({}, {}, None),
    ],
)
def test_resets_need_runners_that_wait(env: Any, collect: Any, words: str | None) -> None:
    early = job(1, {'collect': collect}, **env)
    problems = list(early.cluster.problems(early))
    assert [problem.startswith(words or '') for problem in problems] == ([True] if words else [])
    waiting = job(0, {'collect': collect}, **env)
    assert not list(waiting.cluster.problems(waiting))
    modes = [mode for problem in problems for mode in re.findall(r'batch_mode=(\w+)', problem)]
    assert len(modes) == ('batch_mode' in collect)
    for mode in modes:  # the advised values exist
        resolve_config('cartpole_ppo', [f'policy.collect.batch_mode={mode}'])


@pytest.mark.parametrize(
    ('max_lag', 'policy', 'said'),
    [
        *((max_lag, dict(type=kind), []) for max_lag in (0, 1) for kind in ('ppo', 'dqn')),
        (
            4,
            dict(type='ppo'),
            [
                "cluster.max_lag is 4 but policy.learn.correction is 'none': samples may then be up to 4 updates old; use "
                'decoupled or vtrace, or max_lag 0 or 1.'
            ],
        ),
        (2, dict(type='dqn'), ["policy 'dqn' has no key policy.learn.correction", 'impala, npg, pg, ppg, ']),
        (4, dict(type='impala'), []),
        (4, dict(type='ppo_ewma'), []),  # with an average as the proximal policy old samples are weighted too
        (4, dict(type='ppo', learn=dict(correction='decoupled')), []),
        (4, dict(type='ppg', learn=dict(correction={'type': 'vtrace', 'c_max': 2.0})), []),
    ],
)
def test_samples_of_more_than_one_update_of_age_need_a_correction(
    max_lag: int, policy: dict[str, Any], said: list[str]
) -> None:
    ahead = job(max_lag, policy)
    problems = list(ahead.cluster.problems(ahead))
    assert len(problems) == bool(said) and all(words in problems[0] for words in said)


# --- the share of each rank


def frozen(name: str = 'cartpole_ppo', *overrides: str) -> Any:
    return frozen_config(resolve_config(name, list(overrides)))


def test_sizes_are_divided_and_the_rest_is_of_the_whole_run() -> None:
    whole = frozen('cartpole_ppo', 'policy.eval.n_episode=5', 'env.evaluator_env_num=4')
    first, second = (split_config(whole, 2, rank) for rank in (0, 1))
    # 8 envs of 128 steps in minibatches of 256 -> 4 envs, 512 samples, 128; 5 episodes -> 3 and 2
    assert (first.env.collector_env_num, first.policy.collect.n_sample, first.policy.learn.batch_size) == (4, 512, 128)
    assert (first.policy.eval.n_episode, second.policy.eval.n_episode) == (3, 2)
    assert first.env.evaluator_env_num == second.env.evaluator_env_num == 2
    assert first.policy.collect.n_step == whole.policy.collect.n_step
    assert first.max_env_step == whole.max_env_step
    assert whole.env.collector_env_num == 8


def test_auxiliary_and_critic_minibatches_and_buffers_are_divided() -> None:
    ppg = frozen('cartpole_ppg', 'policy.learn.critic_batch_size=64', 'policy.learn.aux_batch_size=512')
    part = split_config(ppg, 2, 0)
    assert (part.policy.learn.critic_batch_size, part.policy.learn.aux_batch_size) == (32, 256)
    assert part.policy.learn.aux_freq == ppg.policy.learn.aux_freq
    whole = frozen('cartpole_ppg_offpolicy', 'buffer.policy.size=4096', 'buffer.value.size=8192')
    part = split_config(whole, 2, 1)
    assert (part.buffer.policy.size, part.buffer.value.size) == (2048, 4096)
    for name in ('policy', 'value'):
        assert part.buffer[name].n_sample * 2 == whole.buffer[name].n_sample


def test_part_of_a_config_is_a_valid_config() -> None:
    part = split_config(frozen('cartpole_ppg_offpolicy'), 2, 1)
    again = resolve_config(part.to_dict())
    assert again.policy.collect.n_sample == part.policy.collect.n_sample


@pytest.mark.parametrize(
    ('size', 'overrides', 'cluster', 'sentence'),
    [
        (2, [], {}, None),
        (
            3,
            ['env.collector_env_num=9', 'policy.learn.batch_size=64'],
            {},
            'policy.learn.batch_size is 64 but there are 3 ranks: 64 % 3 = 1; use a multiple, e.g. 63 or 66.',
        ),
        (3, [], {}, 'env.collector_env_num is 8 but there are 3 ranks: 8 % 3 = 2; use a multiple, e.g. 6 or 9.'),
        (16, [], {}, 'env.collector_env_num is 8 but there are 16 ranks: 8 % 16 = 8; use a multiple, e.g. 16.'),
        (
            2,
            ['policy.eval.n_episode=1'],
            {},
            'policy.eval.n_episode is 1 but there are 2 ranks, which share the episodes; use 2 or more.',
        ),
        (
            2,
            [],
            {'runner_num': 3},  # set after resolve_config, which would refuse it
            'cluster.runner_num is 3, for each of 2 ranks, but each of them has 4 envs: 4 % 3 = 1; use a divisor, e.g. 2 or 4.',
        ),
        (
            2,
            [],
            {'learner_num': 3},
            'cluster.learner_num is 3 but torchrun started 2 ranks, which are the learners; leave one of the two out.',
        ),
    ],
)
def test_uneven_split_is_refused_with_what_fits(
    size: int, overrides: list[str], cluster: dict[str, int], sentence: str | None
) -> None:
    cfg = resolve_config('cartpole_ppo', overrides).to_dict()
    cfg['cluster'] |= cluster
    assert list(split_problems(frozen_config(cfg), size)) == ([sentence] if sentence else [])
