"""Image encoders: layouts, bytes, frame windows, sizes, networks written out layer by layer, initial values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.model.pictures import cnn, images, pixels
from zoo.core.errors import UserError
from zoo.model import make_input
from zoo.model.cnn import ActingWeights, ImpalaCNN, NatureCNN
from zoo.model.images import Pixels, convolve, has_bf16

CNNS = {'nature': NatureCNN, 'impala': ImpalaCNN}


@pytest.mark.parametrize('name', CNNS)
def test_features_of_bytes_are_those_of_scaled_floats_and_of_channels_first_row_by_row(name: str) -> None:
    last, first, obs = cnn(images(40, 37, 4), name), cnn(images(4, 40, 37), name), pixels(3, 2, 40, 37, 4)
    assert all(torch.equal(x, first.state_dict()[key]) for key, x in last.state_dict().items())
    to_float, scaled = Pixels(images(40, 37, 4)), Pixels(images(40, 37, 4, dtype='float32'))(obs / 255)
    whole = last(to_float(obs))
    assert whole.shape == (3, 2, last.n_feature) and last(to_float(obs[:0])).shape == (0, 2, last.n_feature)
    torch.testing.assert_close(whole, last(scaled))
    torch.testing.assert_close(whole, first(Pixels(images(4, 40, 37))(obs.movedim(-1, -3).contiguous())))
    torch.testing.assert_close(last(to_float(obs[2, 1])), whole[2, 1])
    torch.testing.assert_close(last(to_float(obs[:, 1])), whole[:, 1])  # a view whose rows are not adjacent


@pytest.mark.skipif(not has_bf16('cpu', 'auto'), reason='bfloat16 is emulated')
def test_bfloat16_of_bytes_is_no_less_accurate_than_of_scaled_numbers():
    # bytes are exact in bfloat16, numbers from 0 to 1 are rounded to 8 bits
    conv, x = torch.nn.Conv2d(4, 32, 8, 4), pixels(16, 4, 84, 84)
    want = conv.double()(x.double() / 255)
    conv.float()
    with torch.autocast('cpu', torch.bfloat16):
        error, plain = ((y.double() - want).square().mean() for y in (convolve(x, conv), conv(x / 255)))
    assert error < 1.1 * plain


def in_memory_order(maps: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, H*W*C]"""
    return maps.permute(0, 2, 3, 1).reshape(maps.shape[0], -1)


def test_nature_is_its_layers_written_out():
    network, x = cnn(images(4, 84, 84), 'nature'), torch.rand(3, 4, 84, 84, generator=torch.Generator().manual_seed(0))
    w = network.state_dict()
    maps = x
    for i, (stride, size) in enumerate(((4, 20), (2, 9), (1, 7))):
        maps = F.conv2d(maps, w[f'convs.{i}.weight'], w[f'convs.{i}.bias'], stride=stride).clamp(min=0)
        assert maps.shape[2:] == (size, size)
    want = F.linear(in_memory_order(maps), w['dense.weight'], w['dense.bias']).clamp(min=0)
    torch.testing.assert_close(network(x), want)


def test_impala_is_its_layers_written_out():
    network, x = cnn(images(3, 13, 16), 'impala'), torch.rand(3, 3, 13, 16, generator=torch.Generator().manual_seed(0))
    w = network.state_dict()
    maps = x
    for i, size in enumerate(((7, 8), (4, 4), (2, 2))):  # halved, rounded up
        maps = F.conv2d(maps, w[f'stages.{i}.0.weight'], w[f'stages.{i}.0.bias'], padding=1)
        # the maximum over a 3x3 window; the padding is minus infinity
        around = F.pad(maps, (1, 1, 1, 1), value=-math.inf).unfold(2, 3, 2).unfold(3, 3, 2)
        maps = around.amax((-1, -2))
        assert maps.shape[2:] == size
        for block in (2, 3):
            inner = maps
            for part in ('first', 'second'):
                name = f'stages.{i}.{block}.{part}'
                inner = F.conv2d(inner.clamp(min=0), w[f'{name}.weight'], w[f'{name}.bias'], padding=1)
            maps = maps + inner
    want = F.linear(in_memory_order(maps.clamp(min=0)), w['dense.weight'], w['dense.bias']).clamp(min=0)
    torch.testing.assert_close(network(x), want)


@pytest.mark.slow
def test_nature_starts_orthogonal_with_gain_sqrt_2():
    network = cnn(images(84, 84, 4), 'nature')
    for layer in (*network.convs, network.dense):
        values = torch.linalg.svdvals(layer.weight.detach().flatten(1))
        torch.testing.assert_close(values, torch.full_like(values, math.sqrt(2)), rtol=1e-4, atol=0)
        assert not layer.bias.any()


def test_impala_starts_with_residual_blocks_that_add_up_to_their_input():
    network = cnn(images(64, 64, 3), 'impala')
    norms = {name: p.flatten(1).norm(dim=1) for name, p in network.named_parameters() if name.endswith('weight')}
    # six blocks with gains g that satisfy 6 * g^2 = 1; each block has two convolutions with gain sqrt(g)
    block = (1 / math.sqrt(6)) ** 0.5
    for name, norm in norms.items():
        gain = math.sqrt(2) if name == 'dense.weight' else 1.0 if name.endswith('.0.weight') else block
        torch.testing.assert_close(norm, torch.full_like(norm, gain))
    assert len(norms) == 3 + 12 + 1
    assert not any(p.any() for name, p in network.named_parameters() if name.endswith('bias'))


@pytest.mark.parametrize(
    'shape, name', [((36, 36, 3), 'nature'), ((3, 36, 50), 'nature'), ((8, 8, 3), 'impala'), ((1, 8, 30), 'impala')]
)
def test_smallest_images_of_an_encoder_are_taken(shape, name):
    x = Pixels(images(*shape))(pixels(2, *shape))
    network = cnn(images(*shape), name)
    assert network(x).shape == (2, network.n_feature)


@pytest.mark.parametrize(
    'shape, name, words',
    [
        (
            (35, 36, 3),
            'nature',
            ["'nature' takes images of 36x36 or more", '35x36', "use policy.model.encoder='impala'"],
        ),
        ((3, 84, 35), 'nature', ['36x36', '84x35', '[C, H, W]']),
        ((7, 7, 3), 'impala', ['8x8', '7x7', '[H, W, C]', "use policy.model.encoder='mlp' or larger images"]),
        ((20, 35, 3), 'cnn', ["'cnn' takes images of 36x36 or more", '20x35']),
        # (1 - 1) * 2 + 5 = 5, (5 - 1) * 3 + 4 = 16
        (
            (15, 30, 3),
            dict(type='cnn', channels=[8, 8], kernels=[4, 5], strides=[3, 2]),
            ["'cnn' takes images of 16x16 or more", '15x30'],
        ),
    ],
)
def test_images_too_small_are_refused_with_both_sizes(shape, name, words):
    with pytest.raises(UserError) as error:
        cnn(images(*shape), name)
    assert all(word in str(error.value) for word in words), str(error.value)


# ---- windows, scaling, custom sizes, pooling


@pytest.mark.parametrize('name', CNNS)
def test_without_normalisation_bytes_are_numbers_from_0_to_255(name):
    network, obs = cnn(images(40, 37, 4), name), pixels(5, 40, 37, 4)
    plain = make_input(images(40, 37, 4), normalize_images=False)
    torch.testing.assert_close(network(plain(obs)), network(obs.permute(0, 3, 1, 2).float()))
    floats = images(40, 37, 4, dtype='float32')
    assert torch.equal(make_input(floats, normalize_images=False)(obs.float()), make_input(floats)(obs.float()))


ACTIVATIONS = {'tanh': torch.tanh, 'relu': F.relu, 'elu': F.elu, 'gelu': F.gelu, 'silu': F.silu}


@pytest.mark.parametrize('activation', ACTIVATIONS)
def test_cnn_is_its_layers_written_out(activation):
    spec = dict(type='cnn', channels=[6, 7], kernels=[4, 3], strides=[2, 1], hidden_size=5, activation=activation)
    network, x = cnn(images(3, 12, 14), spec), torch.rand(4, 3, 12, 14, generator=torch.Generator().manual_seed(0))
    w, activate = network.state_dict(), ACTIVATIONS[activation]
    maps = activate(F.conv2d(x, w['convs.0.weight'], w['convs.0.bias'], stride=2))
    maps = activate(F.conv2d(maps, w['convs.1.weight'], w['convs.1.bias']))
    assert maps.shape == (4, 7, 3, 4)  # (12 - 4) / 2 + 1 = 5, 5 - 3 + 1 = 3; (14 - 4) / 2 + 1 = 6, 6 - 3 + 1 = 4
    want = activate(F.linear(in_memory_order(maps), w['dense.weight'], w['dense.bias']))
    torch.testing.assert_close(network(x), want)
    assert network.n_feature == 5


@pytest.mark.slow
def test_cnn_of_the_default_sizes_is_nature():
    one, other = cnn(images(84, 84, 4), 'cnn'), cnn(images(84, 84, 4), 'nature')
    assert all(torch.equal(x, other.state_dict()[key]) for key, x in one.state_dict().items())
    x = Pixels(images(84, 84, 4))(pixels(2, 84, 84, 4))
    assert torch.equal(one(x), other(x))


def test_global_pooling_gives_the_dense_layer_the_means_of_the_maps():
    network = cnn(images(3, 40, 40), {'type': 'impala', 'global_pool': True})
    assert network.dense.weight.shape == (256, 32)
    x = torch.rand(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    means = network.maps(x).mean((2, 3))
    torch.testing.assert_close(network(x), F.linear(means, network.dense.weight, network.dense.bias).clamp(min=0))


# ---- bytes with another upper bound than 255


IN_BF16 = pytest.mark.skipif(not has_bf16('cpu', 'auto'), reason='bfloat16 is emulated')
TANH = {'type': 'cnn', 'channels': [8, 16], 'kernels': [8, 3], 'strides': [4, 2], 'activation': 'tanh'}


def acting_cnn(shape: tuple[int, ...], encoder: dict[str, Any], dtype: str = 'uint8') -> tuple[Any, ActingWeights]:
    """A network in bfloat16 with biases, and its features as acting computes them."""
    network: Any = cnn(images(*shape, dtype=dtype), {**encoder, 'precision': 'auto'})
    with torch.no_grad():
        for p in network.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)), alpha=0.05)
    return network, ActingWeights(network, ActingWeights.nets_of(network))


@IN_BF16
@pytest.mark.parametrize('encoder', [{'type': 'nature'}, TANH], ids=['nature', 'tanh'])
@pytest.mark.parametrize('order', ['bytes', 'bytes, channels last', 'odd bytes', 'floats'])
def test_kept_weights_give_the_bits_of_weights_converted_in_each_pass(encoder: dict[str, Any], order: str) -> None:
    shape = (4, 43, 46) if order == 'odd bytes' else (4, 44, 48)
    network, acting = acting_cnn(shape, encoder)
    x = pixels(2, 3, *shape)
    if order == 'floats':
        x = x / 255
    if order == 'bytes, channels last':
        x = x.movedim(2, -1).contiguous().movedim(-1, 2)
    with torch.no_grad():
        assert torch.equal(acting(x), network(x))
        assert torch.equal(acting(x[:1]), network(x[:1]))


@IN_BF16
def test_kept_weights_follow_changes_in_place_and_those_of_a_buffer_from_the_next_rollout_on() -> None:
    network, acting = acting_cnn((4, 44, 48), {'type': 'nature'})
    flat = torch.nn.utils.parameters_to_vector(network.parameters()).detach()
    start = 0
    for p in network.parameters():  # views of one buffer, as an optimiser makes them
        p.data = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    x = pixels(2, 4, 44, 48)
    with torch.no_grad():
        before = acting(x)
        network.convs[1].weight.mul_(2)
        assert torch.equal(acting(x), network(x)) and not torch.equal(network(x), before)
        before = acting(x)
        flat.mul_(1.5)
        acting.renew()
        assert torch.equal(acting(x), network(x)) and not torch.equal(network(x), before)
    assert network.kept is None  # outside of acting each pass converts the weights


@IN_BF16
def test_kept_weights_leave_gradients_hooks_and_float32_alone() -> None:
    network, acting = acting_cnn((4, 44, 48), {'type': 'nature'})
    x = pixels(2, 4, 44, 48)
    acting(x).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in network.parameters())
    seen: list[Tensor] = []
    with torch.no_grad():
        acting(x)
        with network.convs[1].register_forward_hook(lambda module, args, output: seen.append(output)):
            acting(x)
        assert len(seen) == 1
        network.precision = 'fp32'
        assert torch.equal(acting(x), network(x))
        assert not torch.equal(acting(x), acting_cnn((4, 44, 48), {'type': 'nature'})[1](x))
    assert ActingWeights.nets_of(network) == []


def test_a_function_of_acting_that_fails_leaves_no_kept_weights() -> None:
    network: Any = cnn(images(4, 44, 48), 'nature')

    def fails() -> None:
        assert network.kept is not None
        raise KeyError('mine')

    with pytest.raises(KeyError, match='mine'):
        ActingWeights(fails, [network])()
    assert network.kept is None
