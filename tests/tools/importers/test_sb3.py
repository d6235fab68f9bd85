"""Settings of stable-baselines3: whole PPO blocks of rl-zoo3."""

from __future__ import annotations

from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest

from tests.tools.importers.published import RL_ZOO3_PPO
from zoo.config.section import ConfigError, value_at
from zoo.env.make import make_env
from zoo.run.config import resolve_config
from zoo.tools.importers import convert
from zoo.tools.importers.sb3 import algorithm_of, from_sb3

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
        ('policy', 'MlpQuantilePolicy', 'use MlpPolicy, CnnPolicy, MultiInputPolicy'),
        ('algo', 'sac', "the settings are rl-zoo3's of sac; only those of ppo, ppo_lstm, a2c, trpo are translated"),
        (
            'algo',
            ['ppo'],
            "the settings are rl-zoo3's of ['ppo']; only those of ppo, ppo_lstm, a2c, trpo are translated",
        ),
        ('normalize', {'norm_obs_keys': ['a']}, 'policy.model.obs_norm normalises all entries that are no images'),
        ('normalize', {'clip_reward': 2.0}, 'normalised rewards are clipped to +-10 here'),
        ('normalize', {'epsilon': 0.1}, 'epsilon is 0.1, which has no counterpart here'),
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


def test_arguments_of_vecnormalize_that_ask_for_what_zoo_does_are_left_out():
    usual = {'norm_obs': True, 'clip_obs': 10.0, 'clip_reward': 10, 'epsilon': 1e-8, 'training': True}
    config = from_sb3({'normalize': usual, 'n_steps': 64}, 'Pendulum-v1').config
    assert config == from_sb3({'normalize': True, 'n_steps': 64}, 'Pendulum-v1').config


def test_bound_of_normalised_observations_is_that_of_vecnormalize():
    found = from_sb3({'normalize': {'norm_obs': True, 'clip_obs': 5}, 'n_steps': 64}, 'Pendulum-v1')
    assert resolve_config(found.config).policy.model.obs_clip == 5.0
    config = from_sb3({'normalize': {'norm_obs': False, 'clip_obs': 5}, 'n_steps': 64}, 'Pendulum-v1').config
    assert 'obs_clip' not in config['policy'].get('model', {})  # nothing is clipped there either


def test_window_of_frames_is_said_to_begin_with_zeros_as_it_does():
    """As in SB3: its stack begins with zeros, so that the first observation is [0, 0, 5] for frames 5, .. and 3 of them."""
    (said,) = (
        new for old, new in from_sb3({'frame_stack': 3, 'n_steps': 64}, 'CartPole-v1').became if 'frame_stack' in old
    )
    assert said == 'env.window=3 (an episode begins with zeros in the window)'


class Counter(gym.Env):
    """Its observations count from 5."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 5
        return np.float32([5]), {}

    def step(self, action):
        self.count += 1
        return np.float32([self.count]), 0.0, False, False, {}


def test_window_of_the_translated_config_begins_with_zeros():
    cfg = resolve_config(from_sb3({'frame_stack': 3, 'n_steps': 64}, f'{__name__}:Counter').config)
    with closing(make_env(cfg.env)) as env:
        assert env.reset(seed=0)[0]['obs'].reshape(-1).tolist() == [0.0, 0.0, 5.0]


def settings(file, block, env='Pendulum-v1'):
    """The resolved policy of a block of a file of rl-zoo3."""
    return resolve_config(from_sb3(block, env, file).config).policy


def test_block_of_a2c_has_the_numbers_of_its_class():
    policy = settings('a2c', {'n_timesteps': 1e5, 'n_envs': 4, 'vf_coef': 0.4})
    learn = policy.learn
    assert (policy.type, policy.collect.n_step, policy.collect.gae_lambda) == ('a2c', 5, 1.0)
    assert (learn.learning_rate, learn.entropy_weight, learn.adv_norm) == (7e-4, 0.0, 'off')
    assert (learn.batch_size, learn.epoch_per_collect, learn.value_weight) == (None, 1, 0.8)  # one step on all samples
    assert learn.optimizer.items() >= {'type': 'rmsprop', 'alpha': 0.99, 'eps': 1e-5}.items()


def test_a2c_without_rms_prop_has_adam():
    learn = settings('a2c', {'n_timesteps': 1e5, 'use_rms_prop': False}).learn
    assert (learn.optimizer, learn.adam_eps) == ('adam', 1e-5)


def test_block_of_trpo_has_the_numbers_of_its_class():
    policy = settings('trpo', {'n_timesteps': 1e5, 'n_steps': 512, 'n_critic_updates': 15, 'normalize_advantage': True})
    learn = policy.learn
    assert (policy.type, learn.max_kl, learn.cg_iter, learn.damping) == ('trpo', 0.01, 15, 0.1)
    assert (learn.epoch_per_collect, learn.batch_size, learn.learning_rate) == (15, 128, 1e-3)
    assert (learn.grad_clip, learn.adv_norm, learn.line_search) == (None, 'batch', 9)  # ten tries: nine after the first


def test_block_of_ppo_lstm_has_the_network_and_sequences_of_recurrent_ppo():
    """The LSTM sees the observation itself, and net_arch follows it; a minibatch of 256 has 8 pieces of 32 steps."""
    arch = 'dict(lstm_hidden_size=32, net_arch=dict(pi=[16], vf=[24]), activation_fn=nn.ReLU)'
    block = {'policy': 'MlpLstmPolicy', 'n_envs': 8, 'n_steps': 32, 'batch_size': 256, 'policy_kwargs': arch}
    policy = settings('ppo_lstm', block)
    model = policy.model
    assert (model.encoder, model.recurrent.hidden_size, model.recurrent.critic) == ('flat', 32, True)
    assert (model.actor_head, model.critic_head, model.activation) == ([16], [24], 'relu')
    assert (policy.learn.sequence.len, policy.learn.batch_size) == (32, 256)


@pytest.mark.parametrize(
    ('n_steps', 'batch_size', 'n_envs', 'sequence', 'minibatch'),
    [
        (1024, 256, 4, 256, 256),  # a part of the rollout of one env
        (16, 128, 16, 16, 128),
        (2048, 64, 8, 64, 64),
        (100, 64, 2, 50, 50),  # 64 / 50 = 1.28, 100 / 64 = 1.56; of 200 in pieces of 50: 50, 100, 200
    ],
)
def test_sequences_of_recurrent_ppo_are_the_steps_of_an_env_in_a_minibatch(
    n_steps, batch_size, n_envs, sequence, minibatch
):
    block = {'policy': 'MlpLstmPolicy', 'n_envs': n_envs, 'n_steps': n_steps, 'batch_size': batch_size}
    learn = settings('ppo_lstm', block).learn
    assert (learn.sequence.len, learn.batch_size) == (sequence, minibatch)


def test_defaults_of_recurrent_ppo_are_its_own():
    policy = settings('ppo_lstm', {'policy': 'MlpLstmPolicy', 'n_timesteps': 1e5, 'n_envs': 2})
    assert (policy.collect.n_step, policy.learn.batch_size) == (128, 128)
    assert (policy.model.recurrent.hidden_size, policy.model.actor_head, policy.model.critic_head) == (
        256,
        [64, 64],
        [64, 64],
    )


def test_images_of_recurrent_ppo_share_a_network_and_a_critic_may_have_no_memory():
    kwargs = 'dict(enable_critic_lstm=False, lstm_hidden_size=128)'
    block = {'policy': 'CnnLstmPolicy', 'n_steps': 128, 'frame_stack': 4, 'policy_kwargs': kwargs}
    model = from_sb3(block, 'PongNoFrameskip-v4', 'ppo_lstm').config['policy']['model']
    assert (model['encoder'], model['shared_encoder'], model['actor_head']) == ('nature', True, [])
    assert model['recurrent'] == {'cell': 'lstm', 'hidden_size': 128, 'n_layer': 1, 'critic': False}


@pytest.mark.parametrize(
    ('block', 'kind'),
    [
        ({'n_steps': 8, 'use_rms_prop': True}, 'a2c'),
        ({'n_steps': 512, 'cg_damping': 0.1}, 'trpo'),
        ({'n_steps': 512, 'algo': 'trpo'}, 'trpo'),
        ({'n_steps': 512, 'policy': 'MlpLstmPolicy'}, 'ppo_lstm'),
        ({'n_steps': 512, 'policy': 'MlpPolicy'}, 'ppo'),
    ],
)
def test_algorithm_of_a_dict_is_known_by_its_keys(block, kind):
    assert algorithm_of(block) == kind
    assert convert({'n_timesteps': 1000, **block}, name='Pendulum-v1').config['policy']['type'] == kind.removesuffix(
        '_lstm'
    )


def test_key_of_another_algorithm_is_refused():
    with pytest.raises(ConfigError, match='cg_damping is 0.1, which is no key'):
        from_sb3({'n_steps': 512, 'cg_damping': 0.1}, 'Pendulum-v1', 'ppo')


def test_block_for_all_other_envs_asks_for_one():
    conversion = from_sb3({'n_timesteps': 1e6, 'policy': 'MlpPolicy'}, 'default', 'ppo')
    assert 'id' not in conversion.config['env'] and 'env.id=CartPole-v1' in dict(conversion.became)['block default']
