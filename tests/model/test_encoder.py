"""Which encoder observations get, and what is said where the one asked for does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from zoo.core.errors import UserError
from zoo.core.spaces import Box, Discrete
from zoo.model import make_encoder, make_input
from zoo.model.cnn import ImpalaCNN, NatureCNN
from zoo.model.mlp import MLP
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
    ],
)
@pytest.mark.parametrize('lead', [(), (2,), (2, 3)])
def test_encoder_follows_the_observations_or_the_name(space, encoder, kind, n_feature, lead):
    network, n = make_encoder(space, encoder, hidden_sizes=[9, 7])
    assert type(network) is kind and n == network.n_feature == n_feature
    obs = torch.zeros(lead, dtype=torch.int64) if isinstance(space, Discrete) else torch.zeros(*lead, *space.shape)
    assert network(make_input(space)(obs)).shape == (*lead, n_feature)


@pytest.mark.parametrize('space, obs_norm, kind', [(box(5), False, nn.Identity), (box(5), True, RunningMeanStd)])
def test_vectors_go_in_as_they_are_or_normalised(space, obs_norm, kind):
    assert type(make_input(space, obs_norm)) is kind


@pytest.mark.parametrize(
    'space, encoder, words',
    [
        (box(4), 'nature', ["policy.model.encoder is 'nature'", 'vectors of 4 numbers', "use 'auto' or 'mlp'"]),
        (Discrete(6), 'impala', ["policy.model.encoder is 'impala'", 'one of 6 indices', "use 'auto' or 'mlp'"]),
        (box(64, 64, 3), 'mlp', ["policy.model.encoder is 'mlp'", '(64, 64, 3)', "use 'auto', 'nature' or 'impala'"]),
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
    with pytest.raises(ValueError, match="activation is 'gelu'; use 'tanh' or 'relu'"):
        make_encoder(box(5), activation='gelu')
