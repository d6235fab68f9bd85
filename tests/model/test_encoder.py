"""Which encoder observations get, and what is said where the one asked for does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import Field
from torch import nn

from zoo.config.section import ConfigError, Section, validate
from zoo.core.errors import UserError
from zoo.core.registry import ENCODER_REGISTRY
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, empty_obs
from zoo.model import VAC, VACConfig, make_encoder, make_input
from zoo.model.cnn import ImpalaCNN, NatureCNN
from zoo.model.layers import MLP, Flat
from zoo.model.simba import Simba
from zoo.rl_utils.normalizer import RunningMeanStd


def box(*shape: int, dtype: str = 'float32') -> Box:
    return Box(np.zeros(shape), np.ones(shape), dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    'space, encoder, kind, n_feature',
    [
        (box(5), 'auto', MLP, 7),
        (box(5), 'mlp', MLP, 7),
        (Discrete(3), 'auto', MLP, 7),
        (Discrete(3), 'mlp', MLP, 7),
        (box(84, 84, 4), 'auto', NatureCNN, 512),
        (box(4, 84, 84), 'auto', NatureCNN, 512),
        (box(80, 210, 3), 'auto', NatureCNN, 512),
        (box(79, 210, 3), 'auto', ImpalaCNN, 256),
        (box(64, 64, 3), 'auto', ImpalaCNN, 256),
        (box(3, 64, 64), 'auto', ImpalaCNN, 256),
        (box(64, 64, 3), 'nature', NatureCNN, 512),
        (box(84, 84, 4), 'impala', ImpalaCNN, 256),
        (box(7, 9, 3), 'auto', MLP, 7),
        (box(3, 64, 64), 'mlp', MLP, 7),
        (box(4, 84, 84, 1), 'auto', NatureCNN, 512),
        (box(2, 9, 9, 3, dtype='uint8'), 'auto', ImpalaCNN, 256),
        (box(2, 7, 7, 3), 'auto', MLP, 7),
        (box(), 'auto', MLP, 7),
        (box(3, 4), 'auto', MLP, 7),
        (box(2, 2, 2, 2, 2), 'auto', MLP, 7),
        (box(3, 4, 5, dtype='int32'), 'auto', MLP, 7),
        (MultiDiscrete((3, 5), (0, 0), (2,)), 'auto', MLP, 7),
        (MultiBinary((2, 3)), 'auto', MLP, 7),
        (box(5), 'simba', Simba, 128),
        (Discrete(4), 'simba', Simba, 128),
        (box(5), 'flat', Flat, 5),
        (box(7, 9, 3), 'flat', Flat, 189),
    ],
)
@pytest.mark.parametrize('lead', [(), (2,), (2, 3)])
def test_encoder_follows_the_observations_or_the_name(space, encoder, kind, n_feature, lead):
    network, n = make_encoder(space, encoder, hidden_sizes=[9, 7])
    assert type(network) is kind and n == network.n_feature == n_feature
    obs = empty_obs(space, lead)
    assert network(make_input(space)(obs)).shape == (*lead, n_feature)


@pytest.mark.parametrize('space, obs_norm, kind', [(box(5), False, nn.Identity), (box(5), True, RunningMeanStd)])
def test_vectors_go_in_as_they_are_or_normalised(space, obs_norm, kind):
    assert type(make_input(space, obs_norm)) is kind


@pytest.mark.parametrize(
    'space, encoder, words',
    [
        (
            box(4),
            'nature',
            ["encoder is 'nature', which takes images, but", 'vectors of 4 numbers', "of 'auto'", "'mlp'"],
        ),
        (
            Discrete(6),
            'impala',
            ["policy.model.encoder is 'impala'", 'single indices below 6', "one of 'auto'", "'mlp'"],
        ),
        (
            box(64, 64, 3),
            'simba',
            ["is 'simba', which takes vectors", 'images of shape (64, 64, 3)', "'auto'", "'nature'"],
        ),
        (
            box(4),
            'multi',
            ["encoder is 'multi', which takes a Dict, but", 'vectors of 4 numbers', "of 'auto'", "'mlp'"],
        ),
        (box(2, 3), 'cnn', ['observations are arrays of numbers of shape (2, 3)']),
        (box(), 'cnn', ['observations are single numbers']),
        (MultiBinary((3,)), 'cnn', ['observations are vectors of 3 bits']),
        (MultiDiscrete((2, 3), (0, 0), (2,)), 'cnn', ['observations are vectors of 2 indices']),
        (
            box(4),
            {'type': 'multi', 'encoders': {'a': 'mlp'}},
            ["names 'a' but the observations are vectors", 'no entries'],
        ),
        (
            Dict({'a': box(4)}),
            {'type': 'multi', 'join': 'nature'},
            ["join is 'nature'", 'the joined features are vectors of 4'],
        ),
        (
            Dict({'a': box(4), 'b': Discrete(3)}),
            'nature',
            ["policy.model.encoder is 'nature'", "'a': vectors of 4 numbers", "use 'auto'"],
        ),
        (
            Dict({'a': box(4), 'b': Discrete(3)}),
            {'type': 'multi', 'encoders': {'c': 'mlp'}},
            ["policy.model.encoder.encoders names 'c'", "'a', 'b'"],
        ),
        (
            Dict({'a': box(4), 'b': Discrete(3)}),
            {'type': 'multi', 'encoders': {'a': 'impala'}},
            ["policy.model.encoder.encoders.a is 'impala'", "the entry 'a' has vectors of 4 numbers"],
        ),
    ],
)
def test_encoder_for_other_observations_is_refused(space, encoder, words):
    with pytest.raises(UserError) as error:
        make_encoder(space, encoder)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize('dtype', ['uint8', 'float32'])
def test_obs_norm_of_images_is_refused(dtype):
    with pytest.raises(UserError, match=r'images of shape \(3, 64, 64\).*set policy.model.obs_norm=false'):
        make_input(box(3, 64, 64, dtype=dtype), obs_norm=True)


def test_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="activation is 'sigmoid'; use 'tanh' or 'relu' or 'elu'"):
        make_encoder(box(5), activation='sigmoid')


class MineConfig(Section):
    width: int = Field(3, ge=1, description='width')
    activation: str | None = Field(None, description='null: policy.model.activation')


class Mine(nn.Module):
    """An encoder of a user's own, for any observations."""

    config = MineConfig
    value_gain = 0.5

    def __init__(self, cfg, space):
        super().__init__()
        self.n_feature, self.cfg, self.space = cfg.width, cfg, space

    def forward(self, x):
        first = x if isinstance(x, torch.Tensor) else next(iter(x.values()))
        return first.new_ones(*first.shape[:-1], self.n_feature)


@pytest.fixture
def mine(monkeypatch):
    ENCODER_REGISTRY.names()
    monkeypatch.setitem(ENCODER_REGISTRY._items, 'mine', Mine)
    monkeypatch.setitem(ENCODER_REGISTRY._places, 'mine', 'my_encoder:7')


@pytest.mark.parametrize('space', [box(5), Dict({'a': box(4), 'b': Discrete(3)})], ids=['vector', 'dict'])
def test_an_encoder_of_ones_own_is_built_by_name_and_by_section(mine, space):
    network, n = make_encoder(space, {'type': 'mine', 'width': 6}, activation='elu')
    assert type(network) is Mine and n == 6 and network.space == space
    assert network.cfg.activation == 'elu'  # null in its section: that of the model
    assert network(make_input(space)(empty_obs(space, (2,)))).shape == (2, 6)
    model = VAC(validate(VACConfig, {'encoder': 'mine'}), space, Discrete(2))
    torch.testing.assert_close(model.value_head.layer.weight.norm(), torch.tensor(0.5))
    assert model.compute_actor_critic(empty_obs(space, (2, 4)))['logit'].shape == (2, 4, 2)


def test_an_encoder_of_ones_own_joins_others_in_multi(mine):
    space = Dict({'a': box(4), 'b': Discrete(3)})
    network, n = make_encoder(space, {'type': 'multi', 'encoders': {'b': 'mine'}, 'join': None})
    assert n == 4 + 3 and network.value_gain == 0.5


def test_fields_of_an_encoder_of_ones_own_are_checked(mine):
    with pytest.raises(ConfigError, match='policy.model.encoder.width is 0'):
        validate(VACConfig, {'encoder': {'type': 'mine', 'width': 0}}, 'policy.model')


def test_an_encoder_without_a_section_is_named_with_its_place(mine, monkeypatch):
    monkeypatch.setattr(Mine, 'config', None)
    with pytest.raises(ConfigError, match="encoder 'mine' of my_encoder:7 has no class attribute `config`"):
        make_encoder(box(5), 'mine')
