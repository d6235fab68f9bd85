"""Settings of stable-baselines3: whole PPO blocks of rl-zoo3."""

from __future__ import annotations

import pytest

from tests.tools.importers.published import RL_ZOO3_PPO
from zoo.config.section import ConfigError, value_at
from zoo.run.config import resolve_config
from zoo.tools.importers import convert
from zoo.tools.importers.sb3 import from_sb3

EXPECTED = {
    'CartPole-v1': {
        'env.id': 'CartPole-v1',
        'env.collector_env_num': 8,
        'max_env_step': 100_000,
        'policy.collect.n_step': 32,
        'policy.learn.batch_size': 256,
        'policy.learn.epoch_per_collect': 20,
        'policy.learn.learning_rate': {'start': 0.001, 'end': 0.0},
        'policy.learn.clip_ratio': {'start': 0.2, 'end': 0.0},
        'policy.collect.gae_lambda': 0.8,
        'policy.collect.discount_factor': 0.98,
        'policy.learn.value_weight': 1.0,  # SB3's default 0.5, of a squared error that is not halved
        'policy.learn.grad_clip': 0.5,
    },
    'Pendulum-v1': {
        'policy.model.distribution': 'gsde',
        'policy.model.sde_sample_freq': 4,
        'policy.learn.batch_size': 64,
        'policy.learn.learning_rate': 0.001,
    },
    'LunarLander-v2': {'env.id': 'LunarLander-v3', 'policy.learn.learning_rate': 3e-4, 'policy.learn.clip_ratio': 0.2},
    'LunarLanderContinuous-v3': {'policy.collect.n_step': 1024, 'policy.learn.entropy_weight': 0.01},
    'BipedalWalker-v3': {
        'policy.model.obs_norm': True,
        'policy.learn.reward_norm': True,
        'policy.learn.clip_ratio': 0.18,
        'max_env_step': 5_000_000,
    },
    'HalfCheetah-v4': {
        'policy.learn.value_weight': 2 * 0.58096,
        'policy.model.log_std_init': -2.0,
        'policy.model.activation': 'relu',
        'policy.model.hidden_sizes': [256, 256],
        'policy.learn.grad_clip': 0.8,
    },
    'MountainCarContinuous-v0': {'policy.learn.batch_size': 8, 'policy.learn.value_weight': 0.38},
}


@pytest.fixture
def ppo_yml(tmp_path):
    path = tmp_path / 'ppo.yml'
    path.write_text(RL_ZOO3_PPO)
    return path


@pytest.mark.parametrize('name', EXPECTED)
def test_block_of_rl_zoo3_converts_and_resolves(name, ppo_yml):
    config = convert(ppo_yml, name=name).config
    assert {path: value_at(config, path) for path in EXPECTED[name]} == EXPECTED[name]
    assert resolve_config(config).policy.type == 'ppo'


def test_what_has_no_counterpart_and_a_batch_that_exceeds_the_rollout_are_named(ppo_yml):
    found = convert(ppo_yml, name='MountainCarContinuous-v0')
    assert any('ortho_init=False' in old for old, _ in found.left_out)
    assert 'SB3 makes the last minibatch smaller' in dict(found.became)['batch_size=256']


def test_images_have_a_shared_encoder_heads_and_wrappers_by_name(ppo_yml):
    config = convert(ppo_yml, name='CarRacing-v2').config
    model = config['policy']['model']
    assert (model['encoder'], model['shared_encoder']) == ('nature', True)
    assert (model['actor_head'], model['critic_head'], model['obs_norm']) == ([256], [256], False)
    assert config['env']['window'] == 2
    assert config['env']['wrappers'] == [
        {'type': 'rl_zoo3.wrappers:FrameSkip', 'skip': 2},
        {'type': 'gymnasium.wrappers:GrayscaleObservation', 'keep_dim': True},
    ]


@pytest.mark.parametrize(
    'arch, model',
    [
        ('[128, 64]', {'hidden_sizes': [128, 64]}),
        ('dict(pi=[64], vf=[128, 128])', {'encoder': 'flat', 'actor_head': [64], 'critic_head': [128, 128]}),
        (
            '[32, dict(pi=[64], vf=[64])]',
            dict(hidden_sizes=[32], shared_encoder=True, actor_head=[64], critic_head=[64]),
        ),
    ],
)
def test_net_arch_is_the_same_network(arch, model):
    config = from_sb3({'policy_kwargs': f'dict(net_arch={arch})'}, 'Pendulum-v1').config
    assert {key: config['policy']['model'][key] for key in model} == model
    assert resolve_config(config).policy.model.type == 'vac'


@pytest.mark.parametrize(
    'key, value, sentence',
    [
        ('policy', 'MlpLstmPolicy', 'policy.model.recurrent in a config of zoo'),
        ('policy_kwargs', 'dict(', 'policy_kwargs is'),
        ('policy_kwargs', 'dict(features_extractor_class=Mine)', 'set policy.model.encoder to its name'),
        ('policy_kwargs', 'dict(activation_fn=nn.Mish)', 'it must be one of tanh'),
        ('learning_rate', 'cos_0.1', "learning_rate is 'cos_0.1', which cannot be read"),
        ('callback', 'rl_zoo3.callbacks.X', 'zoo.Callback'),
        ('no_such_key', 3, 'no_such_key is 3, which is no key'),
    ],
)
def test_key_without_counterpart_is_refused_with_the_way(key, value, sentence):
    with pytest.raises(ConfigError) as caught:
        from_sb3({'n_steps': 64, key: value}, 'CartPole-v1')
    assert sentence in str(caught.value)


def test_target_kl_is_looked_at_after_each_minibatch_as_there():
    learn = from_sb3({'target_kl': 0.03}, 'CartPole-v1').config['policy']['learn']
    assert (learn['target_kl'], learn['target_kl_at']) == (0.03, 'minibatch')


@pytest.mark.parametrize(
    ('kind', 'options', 'wanted'),
    [
        ('', 'weight_decay=1e-4', {'type': 'adamw', 'weight_decay': 1e-4}),
        ('', 'weight_decay=1e-4, betas=(.8, .99)', {'type': 'adamw', 'weight_decay': 1e-4, 'betas': [0.8, 0.99]}),
        ('optimizer_class=th.optim.AdamW, ', 'betas=[.8, .99]', {'type': 'adamw', 'betas': [0.8, 0.99]}),
        ('optimizer_class=th.optim.RMSprop, ', 'weight_decay=.1', {'type': 'rmsprop', 'weight_decay': 0.1}),
        ('optimizer_class=th.optim.SGD, ', 'weight_decay=0', {'type': 'sgd'}),
        ('', 'weight_decay=0', {'type': 'adam'}),
    ],
)
def test_class_and_options_of_the_optimizer_are_one_part(kind, options, wanted):
    """The class and all options are kept; once, each option that was set replaced those before it."""
    kwargs = f'dict({kind}optimizer_kwargs=dict({options}))'
    block = {'n_steps': 64, 'n_timesteps': 1e5, 'policy_kwargs': kwargs}
    found = convert(block, 'sb3', 'CartPole-v1').config
    assert found['policy']['learn']['optimizer'] == wanted
    resolve_config(found)


def test_betas_that_are_no_pair_are_said():
    block = {'n_steps': 64, 'policy_kwargs': 'dict(optimizer_kwargs=dict(betas=beta))'}
    with pytest.raises(ConfigError, match='betas is .*which cannot be read: it must be a number'):
        convert(block, 'sb3', 'CartPole-v1')


def test_value_clip_of_sb3_is_said_to_be_another_one():
    """For R = 0, V_old = 0, V = 1 and a range of .2, SB3's error is .2^2, without gradient; zoo's is 1^2, with a gradient."""
    found = convert({'n_steps': 64, 'n_timesteps': 1e5, 'clip_range_vf': 0.2}, 'sb3', 'CartPole-v1')
    [(_, said)] = [each for each in found.became if each[0].startswith('clip_range_vf')]
    assert said.endswith('(the larger of clipped and plain error, there the clipped one alone)')
    assert found.config['policy']['learn']['value_loss'] == {'type': 'clip', 'range': 0.2}
