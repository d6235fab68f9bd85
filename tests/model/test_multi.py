"""Encoder 'multi': what each leaf goes through, and how a name or a section chooses it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from zoo.core.errors import UserError
from zoo.core.spaces import Box, Dict, Discrete, empty_obs
from zoo.model import make_encoder, make_input
from zoo.model.cnn import ImpalaCNN, NatureCNN
from zoo.model.layers import MLP, Flat
from zoo.model.multi import MultiEncoder
from zoo.model.simba import Simba

IMAGE = Box(np.zeros((8, 9, 3)), np.full((8, 9, 3), 255.0), 'uint8')
SPACE = Dict({'image': IMAGE, 'vector': Box(-np.ones(4), np.ones(4)), 'index': Discrete(5)})
LEADS = [(), (5,), (3, 4)]


def make(encoder: Any = 'auto', space: Dict = SPACE, **fields: Any) -> MultiEncoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make_encoder(space, encoder, **fields)[0]


def observe(*lead: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        'image': torch.randint(256, (*lead, 8, 9, 3), dtype=torch.uint8, generator=generator),
        'vector': torch.randn(*lead, 4, generator=generator),
        'index': torch.randint(5, lead, generator=generator),
    }


def kinds(encoder: MultiEncoder) -> list[type]:
    return [type(part) for part in encoder.parts.values()]


def test_default_is_a_cnn_for_images_and_one_mlp_over_everything_together():
    encoder = make(hidden_sizes=[7, 6])
    assert kinds(encoder) == [ImpalaCNN, Flat, Flat] and type(encoder.join) is MLP
    assert [layer.weight.shape for layer in encoder.join.layers] == [(7, 256 + 4 + 5), (6, 7)]
    assert encoder.n_feature == 6 and encoder.value_gain == 1.0


@pytest.mark.parametrize('lead', LEADS)
def test_features_are_those_of_the_parts_side_by_side_and_joined(lead):
    encoder, stage, obs = make(), make_input(SPACE), observe(*lead)
    x = stage(obs)
    cnn = encoder.parts['0_image']
    want = encoder.join(torch.cat((cnn(x['image']), obs['vector'], x['index']), -1))
    torch.testing.assert_close(encoder(x), want)
    assert want.shape == (*lead, 64)


def test_vectors_and_indices_alone_are_treated_as_one_vector():
    parts = {name: SPACE.spaces[name] for name in ('vector', 'index')}
    encoder, obs = make(space=Dict(parts)), observe(6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        flat = make_encoder(Box(np.zeros(9), np.ones(9)))[0]
    x = make_input(Dict(parts))({name: obs[name] for name in parts})
    torch.testing.assert_close(encoder(x), flat(torch.cat((x['vector'], x['index']), -1)))


def test_rows_are_independent():
    encoder, stage, obs = make(), make_input(SPACE), observe(6)
    whole = encoder(stage(obs))
    for i in range(6):
        torch.testing.assert_close(encoder(stage({name: x[i] for name, x in obs.items()})), whole[i])


def test_single_entries_get_the_encoders_they_are_given():
    spec = {
        'type': 'multi',
        'encoders': {
            'image': {'type': 'cnn', 'channels': [4], 'kernels': [3], 'strides': [2], 'hidden_size': 10},
            'vector': {'type': 'mlp', 'hidden_sizes': [11]},
            'index': 'simba',
        },
        'join': None,
    }
    encoder = make(spec)
    assert [part.n_feature for part in encoder.parts.values()] == [10, 11, 128] and encoder.join is None
    assert encoder.n_feature == 10 + 11 + 128
    assert encoder(make_input(SPACE)(observe(3))).shape == (3, 149)


def test_without_a_join_the_value_head_starts_as_small_as_the_smallest_part_asks():
    assert make({'type': 'multi', 'join': None}).value_gain == 0.1  # of impala


@pytest.mark.parametrize(
    'encoder, first, join',
    [
        ('mlp', ImpalaCNN, MLP),
        ('simba', ImpalaCNN, Simba),
        ({'type': 'simba', 'hidden_size': 32}, ImpalaCNN, Simba),
        ('impala', ImpalaCNN, MLP),
        ({'type': 'cnn', 'channels': [4], 'kernels': [3], 'strides': [1]}, None, MLP),
    ],
)
def test_an_encoder_named_for_all_stands_before_the_images_or_joins_the_vectors(encoder, first, join):
    network = make(encoder)
    assert kinds(network)[1:] == [Flat, Flat] and type(network.join) is join
    if first is not None:
        assert kinds(network)[0] is first
    else:
        assert network.parts['0_image'].convs[0].weight.shape == (4, 3, 3, 3)


def test_fields_of_the_model_reach_the_encoders_that_do_not_set_them():
    spec = {'type': 'multi', 'encoders': {'vector': {'type': 'mlp', 'hidden_sizes': [3]}}, 'layer_norm': True}
    encoder = make(spec, hidden_sizes=[9], activation='elu')
    vector = encoder.parts['1_vector']
    assert vector.activation == encoder.join.activation == 'elu' and vector.n_feature == 3
    assert encoder.join.n_feature == 9 and encoder.join.norms is not None and vector.norms is not None


def test_large_images_beside_vectors_get_the_nature_network():
    space = Dict(
        {'image': Box(np.zeros((84, 84, 4)), np.full((84, 84, 4), 255.0), 'uint8'), 'x': SPACE.spaces['vector']}
    )
    assert kinds(make(space=space)) == [NatureCNN, Flat]


def test_nested_entries_have_dotted_names():
    space = Dict({'a': Dict({'image': IMAGE, 'x': SPACE.spaces['vector']}), 'index': Discrete(5)})
    encoder = make({'type': 'multi', 'encoders': {'a.x': 'mlp'}}, space)
    assert kinds(encoder) == [ImpalaCNN, MLP, Flat]
    assert encoder(make_input(space)(empty_obs(space, (2,)))).shape == (2, 64)


@pytest.mark.parametrize('name', ['vector', 'index'])
def test_an_encoder_for_images_is_refused_for_other_entries(name):
    with pytest.raises(
        UserError,
        match=rf"policy.model.encoder.encoders.{name} is 'nature', which takes images, but the entry '{name}' has",
    ):
        make({'type': 'multi', 'encoders': {name: 'nature'}})


def test_gradients_reach_every_part():
    encoder = make({'type': 'multi', 'encoders': {'vector': 'mlp'}})
    encoder(make_input(SPACE)(observe(5))).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())
