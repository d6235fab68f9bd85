"""Values that follow from others, and values that contradict others or this machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from zoo.config.section import ConfigError
from zoo.core.registry import BUFFER_REGISTRY
from zoo.run.config import explain_config, resolve_config
from zoo.run.config_check import without_derived_values


def job(n_env: int = 8, **sections: Any) -> dict[str, Any]:
    return {'env': {'id': 'CartPole-v1', 'collector_env_num': n_env}, **sections}


def rollout(n_env: int = 8, batch_size: int = 1, **collect: Any) -> dict[str, Any]:
    return job(n_env, policy={'collect': collect, 'learn': {'batch_size': batch_size, 'adv_norm': 'batch'}})


def refused(source: Any, overrides: Any = ()) -> list[str]:
    with pytest.raises(ConfigError) as error:
        resolve_config(source, overrides)
    return error.value.problems


@pytest.mark.parametrize(
    'collect, n_step, n_sample',
    [
        ({'n_step': 32}, 32, 256),
        ({'n_sample': 256}, 32, 256),
        ({'n_step': 32, 'n_sample': 256}, 32, 256),
        ({}, 128, 1024),  # n_step=128 is the default of ppo
        ({'n_sample': 256, 'n_step': None}, 32, 256),
        ({'n_step': 32, 'n_sample': None}, 32, 256),
    ],
)
def test_rollout_size_follows_from_the_key_given(collect, n_step, n_sample):
    found = resolve_config(rollout(**collect)).policy.collect
    assert (found.n_step, found.n_sample) == (n_step, n_sample)


@pytest.mark.parametrize(
    'override, n_step, n_sample',
    [
        ('policy.collect.n_step=16', 16, 128),
        ('policy.collect.n_sample=512', 64, 512),
    ],
)
def test_rollout_size_override_of_one_key_replaces_both(override, n_step, n_sample):
    resolved = resolve_config(rollout(n_step=32)).to_dict()  # has both keys
    found = resolve_config(resolved, [override]).policy.collect
    assert (found.n_step, found.n_sample) == (n_step, n_sample)


@pytest.mark.parametrize(
    'source, sentence',
    [
        (
            rollout(n_sample=1001),
            'policy.collect.n_sample is 1001 but env.collector_env_num is 8: 1001 % 8 = 1; use a multiple, e.g. 1000.',
        ),
        (
            rollout(n_sample=5),
            'policy.collect.n_sample is 5 but env.collector_env_num is 8: 5 % 8 = 5; use a multiple, e.g. 8.',
        ),
        (
            rollout(n_sample=1024, n_step=12),
            'policy.collect.n_sample is 1024 but policy.collect.n_step is 12 and '
            'env.collector_env_num is 8: 12 * 8 = 96; give one of the two, '
            'the other follows.',
        ),
        (
            rollout(n_step=None),
            'policy.collect.n_step is missing: give the env steps per rollout and env, or '
            'policy.collect.n_sample, over all envs.',
        ),
        # 256 = 2 ** 8 samples
        (
            rollout(batch_size=96, n_step=32),
            'policy.learn.batch_size is 96 but a rollout has 256 samples (32 x 8 envs): '
            '256 % 96 = 64 would be dropped; use a divisor, e.g. 64 or 128.',
        ),
        (
            rollout(batch_size=255, n_step=32),
            'policy.learn.batch_size is 255 but a rollout has 256 samples (32 x 8 envs): '
            '256 % 255 = 1 would be dropped; use a divisor, e.g. 128 or 256.',
        ),
        (
            rollout(batch_size=512, n_step=32),
            'policy.learn.batch_size is 512 but a rollout has 256 samples (32 x 8 envs): '
            'that fills no minibatch; use a divisor, e.g. 256.',
        ),
        (
            job(max_env_step=1023),
            'max_env_step is 1023 but a rollout has 1024 samples (128 x 8 envs): nothing would be '
            'trained; use 1024 or more, or a smaller policy.collect.n_step.',
        ),
    ],
)
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
    monkeypatch.setitem(BUFFER_REGISTRY.entries, 'other', BUFFER_REGISTRY.get('rollout'))
    source = rollout(batch_size=96, n_step=32)
    assert resolve_config({**source, 'buffer': {'type': 'other'}}).policy.learn.batch_size == 96


@pytest.mark.parametrize('n_step', [32, 33])
def test_batch_size_null_takes_rollouts_of_any_size(n_step: int) -> None:
    source = rollout(batch_size=96, n_step=n_step)
    source['policy']['learn']['batch_size'] = None
    assert resolve_config(source).policy.learn.batch_size is None


def test_batch_size_null_takes_draws_of_any_size_and_keeps_their_other_checks() -> None:
    source = job(policy={'type': 'ppo_offpolicy', 'learn': {'batch_size': None}, 'collect': {'n_step': 32}})
    assert resolve_config({**source, 'buffer': {'n_sample': 100}}).policy.learn.batch_size is None
    (problem,) = refused({**source, 'buffer': {'n_sample': 300, 'max_staleness': 0}})
    assert problem.startswith('buffer.max_staleness is 0 but a rollout has 256 samples')


def test_batch_size_null_takes_sequences_of_any_length_that_divides_a_rollout() -> None:
    policy = {'model': {'recurrent': {'cell': 'gru'}}, 'collect': {'n_step': 24}}
    learn = {'batch_size': None, 'sequence': {'len': 8}}
    assert resolve_config(job(policy={**policy, 'learn': learn})).policy.learn.batch_size is None
    (problem,) = refused(job(policy={**policy, 'learn': {**learn, 'sequence': {'len': 7}}}))
    assert problem.startswith('policy.learn.sequence.len is 7 but policy.collect.n_step is 24')


def test_batch_of_one_sample_that_is_normalised_is_refused_also_as_null() -> None:
    learn = {'batch_size': None, 'adv_norm': 'minibatch'}
    source = job(1, policy={'learn': learn, 'collect': {'n_step': 1}})
    assert refused(source) == [
        'policy.learn.batch_size is null and a rollout has 1 sample but policy.learn.adv_norm is '
        "'minibatch', which leaves one sample no advantage; use batch_size 2 or more, or adv_norm 'batch' or 'off'."
    ]
    assert resolve_config(job(2, policy=source['policy'])).policy.learn.batch_size is None


def test_option_of_a_part_on_the_command_line_keeps_the_part_that_is_named():
    (problem,) = refused(job(pipeline='serial'), ['pipeline.no_option=3'])
    assert problem.startswith('unknown key pipeline.no_option')  # and not: pipeline has no type


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
        f"policy.device is '{device}' but torch finds {n_cuda} CUDA devices here; use 'auto' or 'cpu'."
    ]


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


# --- requirements of PPG and of replay buffers ---


def ppg(n_env: int = 8, name: str = 'ppg', learn: Any = None, model: Any = None, **sections: Any) -> dict[str, Any]:
    """Returns a config, of PPG unless `name` is another policy; 32 steps of 8 envs are 256 samples a rollout."""
    policy = {'type': name, 'collect': {'n_step': 32}, 'learn': {'batch_size': 64, **(learn or {})}}
    return job(n_env, policy=policy | ({'model': model} if model else {}), **sections)


OFF_DRAW = {'n_sample': 128, 'update_per_collect': 2}
MULTI = {'type': 'multi', 'size': 1024, 'policy': OFF_DRAW, 'value': OFF_DRAW}
REPLAY = {'type': 'replay', 'size': 1024, **OFF_DRAW}


@pytest.mark.parametrize(
    'source',
    [
        ppg(),
        ppg(learn={'aux_freq': 1, 'aux_batch_size': 256}),
        ppg(learn={'aux_freq': 3, 'aux_batch_size': 384}),
        ppg(learn={'aux_freq': 2, 'aux_batch_size': 256}, buffer=MULTI),  # 2 draws of 128
        ppg(name='ppg_offpolicy', learn={'aux_freq': 2, 'aux_batch_size': 256}, buffer=MULTI),
        ppg(name='ppg_offpolicy', learn={'aux_freq': 2, 'aux_batch_size': 256}, buffer=REPLAY),
        ppg(
            name='ppg_offpolicy', learn={'aux_freq': 2, 'aux_batch_size': 256}, buffer=REPLAY, model={'arch': 'shared'}
        ),
        ppg(name='ppg', learn={'aux_freq': 2, 'aux_batch_size': 256}, model={'arch': 'shared'}),
        ppg(name='ppo', buffer=REPLAY),
        ppg(name='ppo_offpolicy', buffer=REPLAY),
        ppg(name='ppo', buffer={'type': 'rollout'}, learn={'recompute_adv': True}),
    ],
)
def test_policies_and_buffers_that_fit_are_taken(source):
    assert resolve_config(source).policy.type == source['policy']['type']


# samples in the memory: 32 rollouts 32 x 256 = 8192 = 2 ** 13; 3 rollouts 768 = 2 ** 8 * 3; 2 draws of 128 256
AUX = 'policy.learn.aux_batch_size is {} but the memory holds aux_freq {} x {} = {} samples: '


@pytest.mark.parametrize(
    'source, sentence',
    [
        (
            ppg(learn={'aux_batch_size': 16384}),
            AUX.format(16384, 32, 256, 8192) + 'that fills no minibatch; use a divisor, e.g. 8192.',
        ),
        (
            ppg(learn={'aux_batch_size': 1000}),
            AUX.format(1000, 32, 256, 8192) + '8192 % 1000 = 192 would be dropped; use a divisor, e.g. 512 or 1024.',
        ),
        (
            ppg(learn={'aux_freq': 3, 'aux_batch_size': 256 * 3 + 1}),
            AUX.format(769, 3, 256, 768) + 'that fills no minibatch; use a divisor, e.g. 768.',
        ),
        (
            ppg(name='ppg_offpolicy', learn={'aux_freq': 2, 'aux_batch_size': 512}, buffer=MULTI),
            AUX.format(512, 2, 128, 256) + 'that fills no minibatch; use a divisor, e.g. 256.',
        ),
        (
            ppg(learn={'aux_freq': 4, 'aux_window': 6, 'aux_batch_size': 1024}),  # 4 x 256 at first, then 6 x 256
            'policy.learn.aux_batch_size is 1024 but the memory holds aux_window 6 x 256 = 1536 samples: 1536 % 1024 = 512 '
            'would be dropped; use a divisor, e.g. 768 or 1536.',
        ),
        (
            ppg(learn={'critic_batch_size': 100}),
            'policy.learn.critic_batch_size is 100 but a rollout has 256 samples (32 x 8 envs): 256 % 100 = 56 would be '
            'dropped; use a divisor, e.g. 64 or 128.',
        ),
        (
            ppg(name='ppg_offpolicy', learn={'aux_freq': 2, 'aux_batch_size': 512}, buffer=REPLAY),
            AUX.format(512, 2, 128, 256) + 'that fills no minibatch; use a divisor, e.g. 256.',
        ),
        (
            ppg(name='ppo', buffer=MULTI),
            "buffer.type is 'multi' but policy 'ppo' learns policy and value from the same "
            "samples; use 'replay' or 'rollout'.",
        ),
        (
            ppg(name='ppo_offpolicy', buffer=MULTI),
            "buffer.type is 'multi' but policy 'ppo_offpolicy' learns policy and "
            "value from the same samples; use 'replay' or 'rollout'.",
        ),
        (
            ppg(name='ppo', buffer=REPLAY, learn={'recompute_adv': True}),
            "policy.learn.recompute_adv is true but buffer.type is 'replay', which yields random draws: advantages are "
            "recomputed over whole rollouts; use recompute_adv=false or buffer.type 'rollout'.",
        ),
        (
            ppg(name='ppo_offpolicy', buffer=REPLAY, learn={'recompute_adv': True}),
            'policy.learn.recompute_adv is True: advantages can be recomputed over whole rollouts only, not over draws; '
            'use false.',
        ),
        (
            ppg(name='ppg_offpolicy', learn={'aux_batch_size': 128}, buffer=MULTI, model={'arch': 'shared'}),
            "policy.model.arch is 'shared' but buffer.type is 'multi': a network that shares all parameters cannot learn policy "
            "and value from different samples; use arch 'dual' or 'detach', or buffer.type 'replay'.",
        ),
        (ppg(learn={'aux_freq': 0}), 'policy.learn.aux_freq is 0 (integer) but must be an integer >= 1'),
        (ppg(learn={'aux_train_epoch': 0}), 'policy.learn.aux_train_epoch is 0 (integer) but must be an integer >= 1'),
        (ppg(learn={'aux_batch_size': 0}), 'policy.learn.aux_batch_size is 0 (integer) but must be an integer >= 1'),
        (ppg(learn={'aux_bc_weight': -1.0}), 'policy.learn.aux_bc_weight is -1.0 (number) but must be a number >= 0'),
        (
            ppg(learn={'aux_learning_rate': 0.0}),
            'policy.learn.aux_learning_rate is 0.0 (number) but must be a number > 0',
        ),
        (
            ppg(learn={'aux_memory': 'gpu'}),
            "policy.learn.aux_memory is 'gpu' (text) but must be one of 'device', 'cpu', 'disk'",
        ),
        (
            ppg(learn={'policy_loss': 'trust'}),
            "policy.learn.policy_loss is 'trust' (text) but must be one of 'clip', 'kl'",
        ),
        (
            ppg(model={'arch': 'single'}),
            "policy.model.arch is 'single' (text) but must be one of 'dual', 'detach', 'shared'",
        ),
        (
            ppg(name='ppg_offpolicy', learn={'aux_batch_size': 128}, buffer={'size': 1024, 'policy': OFF_DRAW}),
            "buffer: policy is given but value is missing: 'multi' draws for both; give value: {n_sample: .., "
            'update_per_collect: ..} too.',
        ),
        (
            ppg(name='ppo_offpolicy', buffer={**REPLAY, 'max_use': 0}),
            'buffer.max_use is 0 (integer) but must be an integer >= 1',
        ),
        (
            ppg(
                name='ppg_offpolicy',
                learn={'aux_batch_size': 128},
                buffer={**MULTI, 'value': {**OFF_DRAW, 'max_use': 0}},
            ),
            'buffer.value.max_use is 0 (integer) but must be an integer >= 1',
        ),
        # a buffer smaller than a draw, or than a rollout; a draw smaller than a minibatch
        (
            ppg(name='ppo_offpolicy', buffer={**REPLAY, 'size': 100}),
            'buffer: size is 100 but n_sample is 128: the buffer '
            'would never hold enough for a draw; use size 128 or '
            'more, or a smaller n_sample.',
        ),
        (
            ppg(name='ppo_offpolicy', buffer={**REPLAY, 'size': 200}),
            'buffer.size is 200 but a rollout has 256 samples: 56 of them would never be kept; use 256 or more.',
        ),
        (
            ppg(name='ppo_offpolicy', buffer={**REPLAY, 'n_sample': 32}),
            'buffer.n_sample is 32 but policy.learn.batch_size '
            'is 64: 32 % 64 = 32 would be dropped; use a '
            'multiple, e.g. 64.',
        ),
        # 999 // 256 = 3 rollouts; then the same with a draw for the policy and one for the value
        (
            ppg(name='ppo_offpolicy', buffer={**REPLAY, 'n_sample': 1024}, max_env_step=999),
            'buffer.n_sample is 1024 but max_env_step is 999 and a rollout has 256 samples: the run collects 3 x 256 = 768, '
            'so nothing would be trained; use max_env_step 1024 or more, or a smaller n_sample.',
        ),
        (
            ppg(
                name='ppg_offpolicy',
                learn={'aux_batch_size': 128},
                max_env_step=999,
                buffer={**MULTI, 'value': {**OFF_DRAW, 'n_sample': 1024}},
            ),
            'buffer.value.n_sample is 1024 but max_env_step is 999 and a rollout has 256 samples: ',
        ),
        (
            ppg(
                name='ppg_offpolicy',
                learn={'aux_batch_size': 128},
                buffer={**MULTI, 'policy': {**OFF_DRAW, 'max_staleness': 4}},
            ),
            'buffer.policy.max_staleness is 4 but buffer.size is 1024 and a rollout has 256 samples: 5 x 256 = 1280 would ',
        ),
    ],
)
def test_what_a_policy_and_its_buffer_cannot_do_is_one_sentence(source, sentence):
    (problem,) = refused(source)
    assert problem.startswith(sentence), problem


def test_auxiliary_memory_of_a_buffer_of_ones_own_is_its_own_affair(monkeypatch):
    monkeypatch.setitem(BUFFER_REGISTRY.entries, 'other', BUFFER_REGISTRY.get('rollout'))
    source = ppg(learn={'aux_freq': 3, 'aux_batch_size': 100, 'batch_size': 50})
    assert resolve_config({**source, 'buffer': {'type': 'other'}}).policy.learn.aux_batch_size == 100


@pytest.mark.parametrize(
    'name, kind', [('ppo', 'rollout'), ('ppg', 'rollout'), ('ppo_offpolicy', 'replay'), ('ppg_offpolicy', 'multi')]
)
def test_policies_bring_their_buffer(name, kind):
    assert resolve_config(job(policy={'type': name})).buffer.type == kind


def test_keywords_of_the_form_of_a_schedule_stay_as_they_are_when_a_run_continues():
    """A schedule as long as the run becomes as long as the longer run; arguments of the user's own code stay as they are."""
    line = {'start': 0.5, 'end': 0.0, 'over': 4096}
    own = {'kwargs': {'line': line}, 'schedule': {'wind': line}, 'reset_options': {'goal': line, 'map': {'line': line}}}
    penalty = {'type': 'kl', 'weight': line}
    learn = {'learning_rate': line, 'penalties': [penalty], 'surrogate': {'type': 'clip'}}
    config = resolve_config(
        {'max_env_step': 4096, 'env': {'id': 'CartPole-v1', **own}, 'policy': {'type': 'ppo', 'learn': learn}}
    ).to_dict()
    longer = resolve_config(without_derived_values(config), max_env_step=8192)
    assert config['env']['kwargs'] == longer.env.kwargs == {'line': line}
    assert config['env']['reset_options']['map'] == longer.env.reset_options['map'] == {'line': line}
    lines = longer.policy.learn.learning_rate, longer.policy.learn.penalties[0].weight, longer.env.schedule.wind
    assert [each['over'] for each in (*lines, longer.env.reset_options.goal)] == [8192] * 4
