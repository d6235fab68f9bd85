"""Encoders: the choice for each observation space, the computations of 'multi' and 'simba', and refused encoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from zoo.config.section import ConfigError, Section, validate
from zoo.core.errors import UserError
from zoo.core.registry import ENCODER_REGISTRY
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, empty_obs
from zoo.model import VAC, VACConfig, make_encoder, make_input
from zoo.model.cnn import ImpalaCNN, NatureCNN
from zoo.model.encoder import MLP, Flat, MultiEncoder, Simba


def box(*shape: int, dtype: str = 'float32') -> Box:
    return Box(np.zeros(shape), np.ones(shape), dtype)


@pytest.mark.slow(first=True)
@pytest.mark.parametrize(
    'space, encoder, kind, n_feature',
    [
        (box(5), 'auto', MLP, 7),
        (box(5), 'mlp', MLP, 7),
        (Discrete(3), 'auto', MLP, 7),
        (box(84, 84, 4), 'auto', NatureCNN, 512),
        (box(80, 210, 3), 'auto', NatureCNN, 512),
        (box(79, 210, 3), 'auto', ImpalaCNN, 256),
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
def test_encoder_follows_the_observations_or_the_name(space: Any, encoder: str, kind: type, n_feature: int) -> None:
    network, n = make_encoder(space, encoder, hidden_sizes=[9, 7])
    assert type(network) is kind and n == network.n_feature == n_feature
    assert network(make_input(space)(empty_obs(space, (1, 2)))).shape == (1, 2, n_feature)


PATH = 'policy.model.encoder'
TWO = Dict({'a': box(4), 'b': Discrete(3)})


def of_entries(join: Any = 'mlp', **encoders: Any) -> dict[str, Any]:
    return {'type': 'multi', 'encoders': encoders, 'join': join}


@pytest.mark.parametrize(
    'space, encoder, words',
    [
        (box(4), 'nature', ["is 'nature', which takes images, but", 'vectors of 4 numbers', "of 'auto'", "'mlp'"]),
        (Discrete(6), 'impala', [f"{PATH} is 'impala'", 'single indices below 6', "one of 'auto'", "'mlp'"]),
        (
            box(64, 64, 3),
            'simba',
            ["'simba', which takes vectors", 'images of shape (64, 64, 3)', "'auto'", "'nature'"],
        ),
        (box(4), 'multi', ["is 'multi', which takes a Dict, but", 'vectors of 4 numbers', "of 'auto'", "'mlp'"]),
        (box(2, 3), 'cnn', ['observations are arrays of numbers of shape (2, 3)']),
        (box(), 'cnn', ['observations are single numbers']),
        (MultiBinary((3,)), 'cnn', ['observations are vectors of 3 bits']),
        (MultiDiscrete((2, 3), (0, 0), (2,)), 'cnn', ['observations are vectors of 2 indices']),
        (box(4), of_entries(a='mlp'), ["names 'a' but the observations are vectors", 'no entries']),
        (Dict({'a': box(4)}), of_entries('nature'), ["join is 'nature'", 'the joined features are vectors of 4']),
        (TWO, 'nature', [f"{PATH} is 'nature'", "'a': vectors of 4 numbers", "use 'auto'"]),
        (TWO, of_entries(c='mlp'), [f"{PATH}.encoders names 'c'", "'a', 'b'"]),
        (TWO, of_entries(a='impala'), [f"{PATH}.encoders.a is 'impala'", "the entry 'a' has vectors of 4 numbers"]),
        (TWO, of_entries(b='nature'), [f"{PATH}.encoders.b is 'nature', which takes images, but the entry 'b' has"]),
    ],
)
def test_encoder_for_other_observations_is_refused(space: Any, encoder: Any, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        make_encoder(space, encoder)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize('space', [box(3, 64, 64, dtype='uint8'), box(3, 64, 64), box(2, 8, 9, 3)])
def test_obs_norm_of_images_and_an_unknown_activation_are_refused(space: Any) -> None:
    said = r'but the observations are images of shape \(.*set policy.model.obs_norm=false'
    with pytest.raises(UserError, match=said):
        make_input(space, obs_norm=True)
    with pytest.raises(ValueError, match="activation is 'sigmoid'; use 'tanh' or 'relu' or 'elu'"):
        make_encoder(box(5), activation='sigmoid')


class MineConfig(Section):
    width: int = Field(3, ge=1, description='width')
    activation: str | None = Field(None, description='null: policy.model.activation')


class Mine(nn.Module):
    """A user-defined encoder, for any observations."""

    config = MineConfig
    value_gain = 0.5

    def __init__(self, cfg, space):
        super().__init__()
        self.n_feature, self.cfg, self.space = cfg.width, cfg, space

    def forward(self, x):
        first = x if isinstance(x, torch.Tensor) else next(iter(x.values()))
        return first.new_ones(*first.shape[:-1], self.n_feature)


def of_images(cls, space):
    return len(space.shape) == 3


@pytest.mark.parametrize(
    ('attributes', 'words'),
    [
        # a Dict has no shape; zoo asks with the space of all observations first
        ({'fits': classmethod(of_images)}, ['fits() raised AttributeError', 'multi, encoders: {image: mine}}']),
        ({'fits': of_images}, ['@classmethod']),
        ({'__init__': lambda self, cfg, space: print(space.shape)}, ['has no fits()', 'encoders: {image: mine}}']),
        ({'__init__': lambda self, cfg, space: nn.Module.__init__(self)}, ['n_feature None', 'width of its output']),
        ({'value_gain': None}, ['value_gain None', 'value_gain = 1.0']),
    ],
)
def test_an_encoder_of_ones_own_with_a_mistake_is_refused_by_its_name(attributes, words, mine, monkeypatch):
    monkeypatch.setitem(ENCODER_REGISTRY.entries, 'mine', type('Mistaken', (Mine,), attributes))
    space = Dict({'image': box(16, 16, 3, dtype='uint8'), 'vector': box(2)})
    with pytest.raises(UserError) as caught:
        make_encoder(space, 'mine')
    assert str(caught.value).startswith("encoder 'mine'") and all(word in str(caught.value) for word in words)


def test_an_encoder_whose_fits_raises_elsewhere_is_left_out_of_the_names_of_another_error(mine, monkeypatch):
    def never(cls, space):
        raise KeyError('oh')

    monkeypatch.setitem(ENCODER_REGISTRY.entries, 'mine', type('Mistaken', (Mine,), {'fits': classmethod(never)}))
    with pytest.raises(
        UserError, match="is 'nature', which takes images, but .* use one of 'auto', 'flat', 'mlp', 'simba'"
    ):
        make_encoder(box(5), 'nature')


@pytest.fixture
def mine(monkeypatch):
    monkeypatch.setitem(ENCODER_REGISTRY.entries, 'mine', Mine)
    monkeypatch.setitem(ENCODER_REGISTRY.places, 'mine', 'my_encoder:7')


@pytest.mark.parametrize('space', [box(5), Dict({'a': box(4), 'b': Discrete(3)})], ids=['vector', 'dict'])
def test_an_encoder_of_ones_own_is_built_by_name_and_by_section(mine, space):
    network, n = make_encoder(space, {'type': 'mine', 'width': 6}, activation='elu')
    assert type(network) is Mine and n == 6 and network.space == space
    assert network.cfg.activation == 'elu'  # null in its section: the model's activation
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


# --- 'multi'

IMAGE = Box(np.zeros((8, 9, 3)), np.full((8, 9, 3), 255.0), 'uint8')
VECTOR = Box(-np.ones(4), np.ones(4))
SPACE = Dict({'image': IMAGE, 'vector': VECTOR, 'index': Discrete(5)})


def multi(encoder: Any = 'auto', space: Dict = SPACE, **fields: Any) -> MultiEncoder:
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


def test_default_is_a_cnn_for_images_and_one_mlp_over_everything_together() -> None:
    encoder = multi(hidden_sizes=[7, 6])
    assert kinds(encoder) == [ImpalaCNN, Flat, Flat] and type(encoder.join) is MLP
    assert [layer.weight.shape for layer in encoder.join.layers] == [(7, 256 + 4 + 5), (6, 7)]
    assert encoder.n_feature == 6 and encoder.value_gain == 1.0
    large = Dict({'image': Box(np.zeros((84, 84, 4)), np.full((84, 84, 4), 255.0), 'uint8'), 'x': VECTOR})
    assert kinds(multi(space=large)) == [NatureCNN, Flat]


@pytest.mark.parametrize('lead', [(), (3, 4)])
def test_features_are_those_of_the_parts_side_by_side_and_joined(lead: tuple[int, ...]) -> None:
    encoder, obs = multi(), observe(*lead)
    x = make_input(SPACE)(obs)
    cnn: Any = encoder.parts['0_image']
    want = encoder.join(torch.cat((cnn(x['image']), obs['vector'], x['index']), -1))
    torch.testing.assert_close(encoder(x), want)
    assert want.shape == (*lead, 64)


def test_vectors_and_indices_alone_are_treated_as_one_vector() -> None:
    parts = {name: SPACE.spaces[name] for name in ('vector', 'index')}
    encoder, obs = multi(space=Dict(parts)), observe(6)
    flat = multi(space=Box(np.zeros(9), np.ones(9)))  # type: ignore[arg-type]
    x = make_input(Dict(parts))({name: obs[name] for name in parts})
    torch.testing.assert_close(encoder(x), flat(torch.cat((x['vector'], x['index']), -1)))


def test_single_entries_get_the_encoders_they_are_given_and_the_smallest_gain() -> None:
    image = {'type': 'cnn', 'channels': [4], 'kernels': [3], 'strides': [2], 'hidden_size': 10}
    spec = of_entries(None, image=image, vector={'type': 'mlp', 'hidden_sizes': [11]}, index='simba')
    encoder = multi(spec)
    assert [part.n_feature for part in encoder.parts.values()] == [10, 11, 128] and encoder.join is None
    assert encoder.n_feature == 10 + 11 + 128
    assert encoder(make_input(SPACE)(observe(3))).shape == (3, 149)
    assert multi(of_entries(None)).value_gain == 0.1  # the gain of impala


@pytest.mark.parametrize(
    'encoder, first, join',
    [
        ('mlp', ImpalaCNN, MLP),
        ({'type': 'simba', 'hidden_size': 32}, ImpalaCNN, Simba),
        ('impala', ImpalaCNN, MLP),
        ({'type': 'cnn', 'channels': [4], 'kernels': [3], 'strides': [1]}, None, MLP),
    ],
)
def test_an_encoder_named_for_all_stands_before_the_images_or_joins_the_vectors(
    encoder: Any, first: type | None, join: type
) -> None:
    network = multi(encoder)
    assert kinds(network)[1:] == [Flat, Flat] and type(network.join) is join
    image: Any = network.parts['0_image']
    assert type(image) is first if first is not None else image.convs[0].weight.shape == (4, 3, 3, 3)


def test_fields_of_the_model_reach_the_encoders_that_do_not_set_them() -> None:
    spec = {**of_entries(vector={'type': 'mlp', 'hidden_sizes': [3]}), 'layer_norm': True}
    encoder = multi(spec, hidden_sizes=[9], activation='elu')
    vector: Any = encoder.parts['1_vector']
    assert vector.activation == encoder.join.activation == 'elu' and vector.n_feature == 3
    assert encoder.join.n_feature == 9 and encoder.join.norms is not None and vector.norms is not None


def test_nested_entries_have_dotted_names() -> None:
    space = Dict({'a': Dict({'image': IMAGE, 'x': VECTOR}), 'index': Discrete(5)})
    encoder = multi(of_entries(**{'a.x': 'mlp'}), space)
    assert kinds(encoder) == [ImpalaCNN, MLP, Flat]
    assert encoder(make_input(space)(empty_obs(space, (2,)))).shape == (2, 64)


# --- 'simba'


def test_simba_is_its_layers_written_out() -> None:
    torch.manual_seed(0)
    network, n = make_encoder(box(5), {'type': 'simba', 'hidden_size': 6, 'n_block': 2})
    w, x = network.state_dict(), torch.randn(7, 5)
    y = x @ w['embed.weight'].T + w['embed.bias']
    for k in range(2):
        inner = F.layer_norm(y, (6,))  # its own scale and shift start at 1 and 0
        inner = (inner @ w[f'blocks.{k}.first.weight'].T).clamp(min=0) @ w[f'blocks.{k}.second.weight'].T
        y = y + inner
    torch.testing.assert_close(network(x), F.layer_norm(y, (6,)))
    assert n == 6


def test_simba_starts_orthogonal_and_with_the_deviation_of_he_in_its_blocks() -> None:
    torch.manual_seed(0)
    network: Any = make_encoder(box(5), {'type': 'simba', 'hidden_size': 128})[0]
    torch.testing.assert_close(torch.linalg.svdvals(network.embed.weight.detach()), torch.ones(5))
    block = network.blocks[0]
    # sqrt(2 / inputs) over 128 * 512 numbers, so to within 1%
    assert abs(block.first.weight.std().item() / (2 / 128) ** 0.5 - 1) < 0.01
    assert abs(block.second.weight.std().item() / (2 / 512) ** 0.5 - 1) < 0.01
    assert not any(p.any() for name, p in network.named_parameters() if name.endswith('bias'))
