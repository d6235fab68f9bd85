"""Heads with hidden layers, the distribution they belong to, and the fields of `policy.model` that shape them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zoo.config.section import ConfigError, validate
from zoo.core.spaces import Box, Discrete, Space
from zoo.model import PPG, VAC, PPGConfig, VACConfig, make_policy_head
from zoo.model.layers import ACTIVATIONS, Layers
from zoo.rl_utils import Categorical, Gaussian

VECTOR = Box(-np.ones(4), np.ones(4))
IMAGE = Box(np.zeros((36, 36, 1)), np.full((36, 36, 1), 255.0), 'uint8')


def make(action_space: Space | None = None, name: str = 'vac', obs_space: Space = VECTOR, **fields: Any) -> Any:
    cls, config = {'vac': (VAC, VACConfig), 'ppg': (PPG, PPGConfig)}[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(validate(config, fields), obs_space, action_space or Discrete(3))


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def rows() -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize('name', ['vac', 'ppg'])
def test_without_widths_heads_are_plain_layers(name):
    model = make(name=name)
    assert type(model.policy_head) is nn.Linear
    assert {key.split('.')[0] for key in model.state_dict()} <= {
        'input',
        'actor_encoder',
        'critic_encoder',
        'policy_head',
        'value_head',
        'aux_head',
    }
    assert 'policy_head.weight' in model.state_dict() and 'value_head.layer.weight' in model.state_dict()


def test_hidden_layers_of_heads_are_layers_written_out():
    model, obs = make(actor_head=[5], critic_head=[7, 6], activation='relu'), rows()
    w = model.state_dict()
    feature = model.actor_encoder(obs)
    hidden = F.relu(F.linear(feature, w['policy_head.0.layers.0.weight'], w['policy_head.0.layers.0.bias']))
    want = F.linear(hidden, w['policy_head.1.weight'], w['policy_head.1.bias'])
    torch.testing.assert_close(model.compute_actor(obs), want)
    hidden = model.critic_encoder(obs)
    for k in (0, 1):
        hidden = F.relu(F.linear(hidden, w[f'value_head.0.layers.{k}.weight'], w[f'value_head.0.layers.{k}.bias']))
    want = F.linear(hidden, w['value_head.1.layer.weight'], w['value_head.1.layer.bias']).squeeze(-1)
    torch.testing.assert_close(model.compute_critic(obs), want)


# an encoder of 4*64 + 64 = 320 and 64*64 + 64 = 4160; heads of 64*3 + 3 = 195 and 64 + 1 = 65
@pytest.mark.parametrize(
    'name, action_space, fields, want',
    [
        ('vac', Discrete(3), {}, 2 * 4480 + 195 + 65),
        # 64*16 + 16 = 1040, 16*3 + 3 = 51; 64*8 + 8 = 520, 8 + 1 = 9
        ('vac', Discrete(3), dict(actor_head=[16], critic_head=[8]), 2 * 4480 + 1040 + 51 + 520 + 9),
        # 2*64 factors and shifts a layer
        ('vac', Discrete(3), dict(layer_norm=True, shared_encoder='both'), 4480 + 2 * 128 + 195 + 65),
        # two means and two free deviations
        ('vac', Box(-np.ones(2), np.ones(2)), dict(shared_encoder='detach'), 4480 + 130 + 2 + 65),
        ('vac', Box(-np.ones(2), np.ones(2)), dict(state_dependent_std=True), 2 * 4480 + 2 * 130 + 65),
        ('vac', Discrete(3), dict(encoder='flat'), 4 * 3 + 3 + 4 + 1),
        # the auxiliary head is a plain layer on the trunk
        ('ppg', Discrete(3), dict(critic_head=[8], arch='detach'), 4480 + 195 + 520 + 9 + 65),
        # 4*128 + 128 = 640; 256, 128*512 + 512 = 66048, 512*128 + 128 = 65664; 256; heads of 128*3 + 3, 129, 129
        ('ppg', Discrete(3), dict(encoder='simba'), 2 * (640 + 256 + 66048 + 65664 + 256) + 387 + 2 * 129),
    ],
)
def test_parameters_are_those_of_the_layers(name, action_space, fields, want):
    assert count(make(action_space, name, **fields)) == want


def test_critic_head_over_a_cnn_starts_with_gain_1():
    model = make(obs_space=IMAGE, encoder='impala', critic_head=[8])
    torch.testing.assert_close(model.value_head[1].layer.weight.norm(), torch.tensor(1.0))
    assert model.policy_head.weight.shape == (3, 256)


@pytest.mark.parametrize('name', ACTIVATIONS)
def test_each_activation_is_that_of_torch(name):
    layers, x = Layers(4, [5], name), torch.linspace(-4, 4, 400).view(100, 4)
    reference = {'tanh': nn.Tanh(), 'relu': nn.ReLU(), 'elu': nn.ELU(), 'gelu': nn.GELU(), 'silu': nn.SiLU()}[name]
    layer = layers.layers[0]
    want = reference(x @ layer.weight.T + layer.bias)
    assert (layers(x) - want).abs().max() <= 1e-6


def test_layer_norm_stands_before_each_activation():
    layers, x = Layers(4, [5, 6], 'silu', layer_norm=True), rows()
    y = x
    for layer, norm in zip(layers.layers, layers.norms, strict=True):
        with torch.no_grad():
            norm.weight.uniform_(0.5, 2)
            norm.bias.uniform_(-1, 1)
        y = y @ layer.weight.T + layer.bias
        y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        y = F.silu(y * norm.weight + norm.bias)
    torch.testing.assert_close(layers(x), y)


def test_the_model_has_the_distribution_of_its_actions():
    assert type(make().dist) is Categorical and make().dist.n_param == 3
    assert type(make(Box(-np.ones(2), np.ones(2))).dist) is Gaussian
    assert type(make(distribution='categorical').dist) is Categorical


def test_make_policy_head_gives_what_the_action_space_asks_for():
    assert make_policy_head(6, Discrete(3)).weight.shape == (3, 6)
    head = make_policy_head(6, Box(-np.ones(2), np.ones(2)), log_std_init=-1.0)
    torch.testing.assert_close(head(torch.zeros(1, 6)), torch.tensor([[0.0, 0.0, math.exp(-1), math.exp(-1)]]))


@pytest.mark.parametrize('name', ['vac', 'ppg'])
@pytest.mark.parametrize('fields', [{}, dict(actor_head=[5], critic_head=[6])], ids=['plain', 'heads'])
def test_detach_stops_the_gradient_of_the_critic_at_the_trunk(name, fields):
    model = make(name=name, **fields, **{'vac': dict(shared_encoder='detach'), 'ppg': dict(arch='detach')}[name])
    for value in (model.compute_critic(rows()), model.compute_actor_critic(rows())['value']):
        model.zero_grad(set_to_none=True)
        value.square().sum().backward()
        touched = {key for key, p in model.named_parameters() if p.grad is not None}
        assert touched == {key for key, _ in model.critic_parameters()}
        assert {key.split('.')[0] for key in touched} == {'value_head'}
    model.zero_grad(set_to_none=True)
    model.compute_actor_critic(rows())['logit'].square().sum().backward()
    assert all(p.grad.any() for p in model.actor_encoder.parameters())


@pytest.mark.parametrize('value, arch', [(False, 'dual'), ('off', 'dual'), (True, 'shared'), ('both', 'shared')])
def test_shared_encoder_takes_words_and_what_it_took_before(value, arch):
    model = make(shared_encoder=value)
    assert model.arch == arch and model.one_trunk == (arch == 'shared')


# ---- config


@pytest.mark.parametrize(
    'fields, words',
    [
        (dict(encoder=dict(type='cnn', channels=[0])), ['policy.model.encoder.channels', 'integers >= 1']),
        (
            dict(encoder=dict(type='cnn', chanels=[8])),
            ['policy.model.encoder.chanels', 'policy.model.encoder.channels'],
        ),
        (dict(encoder=dict(type='cnn', channels=[8])), ['policy.model.encoder', 'channels has 1', 'kernels has 3']),
        (dict(encoder=dict(type='simba', n_block=0)), ['policy.model.encoder.n_block', '>= 1']),
        (dict(encoder=dict(hidden_sizes=[8])), ['policy.model.encoder has no type but', 'cnn, flat, impala, mlp']),
        (dict(encoder=dict(type='cnnn')), ["unknown encoder 'cnnn'", "'cnn'"]),
        (dict(encoder='resnet'), ["unknown encoder 'resnet'", 'auto, cnn, flat, impala, mlp, multi, nature, simba']),
        (dict(encoder=3), ['policy.model.encoder is 3', 'a name or {type: name, its options}']),
        (
            dict(encoder=dict(type='multi', encoders=dict(image=3))),
            ['policy.model.encoder.encoders.image is 3 but must be the name of an encoder, or {type: its name'],
        ),
        (
            dict(encoder=dict(type='multi', encoders=dict(image=dict(type='impala', pool=True)))),
            ['policy.model.encoder.encoders.image.pool'],
        ),
        (dict(encoder=dict(type='multi', join='mlpp')), ["unknown encoder 'mlpp'"]),
        (dict(activation='sigmoid'), ['policy.model.activation', "'gelu', 'silu'"]),
        (dict(shared_encoder='yes'), ['policy.model.shared_encoder', 'true or false', "'off', 'both', 'detach'"]),
        (dict(distribution='gausian'), ["unknown distribution 'gausian'", "'gaussian'"]),
        (dict(log_std_init=3.0), ['policy.model', 'log_std_init is 3 but', 'log_std_max, 2']),
        (dict(log_std_min=-1.0, log_std_init=-2.0), ['log_std_init is -2 but', 'log_std_min, -1']),
        (dict(log_std_min=1.0, log_std_max=0.0), ['must lie between']),
        (dict(actor_head=[0]), ['policy.model.actor_head', 'integers >= 1']),
        (dict(actor_obs=[]), ['policy.model.actor_obs', 'a list of one or more texts or null;']),
        (dict(sde_sample_freq=0), ['policy.model.sde_sample_freq', '>= 1']),
    ],
    ids=str,
)
def test_config_names_the_key_that_is_wrong(fields, words):
    for config in (VACConfig, PPGConfig):
        if 'shared_encoder' in fields and config is PPGConfig:
            continue
        with pytest.raises(ConfigError) as error:
            validate(config, fields, 'policy.model')
        assert all(word in str(error.value) for word in words), str(error.value)


def test_a_section_of_an_encoder_is_completed_once():
    spec = validate(VACConfig, dict(encoder=dict(type='simba', hidden_size=32))).encoder
    assert spec == {'type': 'simba', 'hidden_size': 32, 'n_block': 1}
    assert validate(VACConfig, dict(encoder=spec)).encoder == spec
    assert validate(VACConfig, dict(encoder=dict(type='auto'))).encoder == 'auto'
