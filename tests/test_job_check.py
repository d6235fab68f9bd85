"""Values that follow from others, and values that contradict others or this machine."""
from __future__ import annotations

from typing import Any

import pytest
import torch

from zoo.config import ConfigError
from zoo.job import explain_config, resolve_config
from zoo.registry import BUFFER_REGISTRY


def job(n_env: int = 8, **sections: Any) -> dict[str, Any]:
    return {'env': {'id': 'CartPole-v1', 'collector_env_num': n_env}, **sections}


def rollout(n_env: int = 8, batch_size: int = 1, **collect: Any) -> dict[str, Any]:
    return job(n_env, policy={'collect': collect, 'learn': {'batch_size': batch_size, 'adv_norm': 'batch'}})


def refused(source: Any, overrides: Any = ()) -> list[str]:
    with pytest.raises(ConfigError) as error:
        resolve_config(source, overrides)
    return error.value.problems


@pytest.mark.parametrize('collect, n_step, n_sample', [
    ({'n_step': 32}, 32, 256), ({'n_sample': 256}, 32, 256), ({'n_step': 32, 'n_sample': 256}, 32, 256),
    ({}, 128, 1024),  # n_step=128 is the default of ppo
    ({'n_sample': 256, 'n_step': None}, 32, 256), ({'n_step': 32, 'n_sample': None}, 32, 256),
])
def test_rollout_size_follows_from_the_key_given(collect, n_step, n_sample):
    found = resolve_config(rollout(**collect)).policy.collect
    assert (found.n_step, found.n_sample) == (n_step, n_sample)


@pytest.mark.parametrize('override, n_step, n_sample', [
    ('policy.collect.n_step=16', 16, 128), ('policy.collect.n_sample=512', 64, 512),
])
def test_rollout_size_override_of_one_key_replaces_both(override, n_step, n_sample):
    resolved = resolve_config(rollout(n_step=32)).to_dict()  # holds both
    found = resolve_config(resolved, [override]).policy.collect
    assert (found.n_step, found.n_sample) == (n_step, n_sample)


@pytest.mark.parametrize('source, sentence', [
    (rollout(n_sample=1001), 'policy.collect.n_sample is 1001 but env.collector_env_num is 8: 1001 % 8 = 1; '
                             'use a multiple, e.g. 1000.'),
    (rollout(n_sample=5), 'policy.collect.n_sample is 5 but env.collector_env_num is 8: 5 % 8 = 5; '
                          'use a multiple, e.g. 8.'),
    (rollout(n_sample=1024, n_step=12), 'policy.collect.n_sample is 1024 but policy.collect.n_step is 12 and '
                                        'env.collector_env_num is 8: 12 * 8 = 96; give one of the two, '
                                        'the other follows.'),
    (rollout(n_step=None), 'policy.collect.n_step is missing: give the env steps per rollout and env, or '
                           'policy.collect.n_sample, over all envs.'),
    # 256 = 2 ** 8 samples
    (rollout(batch_size=96, n_step=32), 'policy.learn.batch_size is 96 but a rollout has 256 samples (32 x 8 envs): '
                                        '256 % 96 = 64 would be dropped; use a divisor, e.g. 64 or 128.'),
    (rollout(batch_size=255, n_step=32), 'policy.learn.batch_size is 255 but a rollout has 256 samples (32 x 8 envs): '
                                         '256 % 255 = 1 would be dropped; use a divisor, e.g. 128 or 256.'),
    (rollout(batch_size=512, n_step=32), 'policy.learn.batch_size is 512 but a rollout has 256 samples (32 x 8 envs): '
                                         'that fills no minibatch; use a divisor, e.g. 256.'),
    (job(max_env_step=1023), 'max_env_step is 1023 but a rollout has 1024 samples (128 x 8 envs): nothing would be '
                             'trained; use 1024 or more, or a smaller policy.collect.n_step.'),
])
def test_sizes_that_contradict_each_other_are_named_with_the_remedy(source, sentence):
    assert refused(source) == [sentence]


def test_max_env_step_of_one_rollout_is_enough():
    assert resolve_config(job(max_env_step=1024)).max_env_step == 1024


def test_contradictions_are_all_reported():
    source = rollout(batch_size=96, n_step=32) | {'max_env_step': 100}
    source['env'] = {'id': 'CartPol-v1'}
    found = [problem.split(' ')[0] for problem in refused(source)]
    assert found == ['policy.learn.batch_size', 'max_env_step', 'unknown']


def test_batch_size_is_free_where_the_buffer_is_no_rollout(monkeypatch):
    BUFFER_REGISTRY.names()
    monkeypatch.setitem(BUFFER_REGISTRY._items, 'other', BUFFER_REGISTRY.get('rollout'))
    source = rollout(batch_size=96, n_step=32)
    assert resolve_config({**source, 'buffer': {'type': 'other'}}).policy.learn.batch_size == 96


def test_schedule_without_length_lasts_as_long_as_the_run():
    rates = {'learning_rate': {'start': 1e-3, 'end': 0}, 'clip_ratio': {'start': 0.2, 'end': 0.1, 'over': 500}}
    learn = resolve_config(job(policy={'learn': rates}, max_env_step=4096)).policy.learn
    assert learn.learning_rate == {'start': 1e-3, 'end': 0.0, 'over': 4096}
    assert learn.clip_ratio == {'start': 0.2, 'end': 0.1, 'over': 500}


def test_filled_values_are_derived_not_default():
    rows = {row.key: row.origin for row in explain_config(rollout(n_step=32))}
    assert (rows['policy.collect.n_step'], rows['policy.collect.n_sample']) == ('config', 'derived')
    rows = {row.key: row.origin for row in explain_config(job())}
    assert (rows['policy.collect.n_step'], rows['policy.collect.n_sample']) == ('default', 'derived')


@pytest.mark.parametrize('device, n_cuda', [('cuda', 0), ('cuda:0', 0), ('cuda:1', 1)])
def test_device_that_is_not_there_is_refused(device, n_cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: n_cuda > 0)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: n_cuda)
    assert refused(job(policy={'device': device})) == [
        f"policy.device is '{device}' but torch finds {n_cuda} CUDA devices here; use 'auto' or 'cpu'."]


@pytest.mark.parametrize('device', ['auto', 'cpu', 'cuda', 'cuda:1'])
def test_device_that_is_there_is_taken(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    assert resolve_config(job(policy={'device': device})).policy.device == device


@pytest.mark.parametrize('env_id', ['LunarLander-v3', 'HalfCheetah-v5'])
def test_env_whose_extra_may_be_missing_is_a_known_name(env_id):
    assert resolve_config({'env': {'id': env_id}}).env.id == env_id


def test_env_version_that_is_gone_names_the_one_there_is():
    assert 'Acrobot-v1' in refused({'env': {'id': 'Acrobot-v7'}})[0]
