"""Images as inputs: channels, windows, the scale of bytes, and convolutions of bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.model.pictures import bytes_to, cnn, images, pixels
from zoo.core.spaces import Box, Dict, Discrete, obs_dtype
from zoo.model import make_input
from zoo.model.images import LISTED_IMAGES, ImageForm, Pixels, convolve, image_shape

LEADS = [(), (3, 4), (0,)]
CONVOLUTIONS = [  # height, width, channels, kernel, stride, padding
    (84, 84, 4, 8, 4, 0),
    (20, 20, 32, 4, 2, 0),
    (9, 9, 64, 3, 1, 0),
    (16, 16, 3, 3, 1, 1),
    (41, 37, 1, 8, 4, 0),
    (21, 23, 5, 4, 2, 0),
    (8, 8, 4, 8, 4, 0),
    (17, 16, 2, 5, 2, 0),
]


@pytest.mark.parametrize(
    'shape, want',
    [
        ((84, 96, 4), (84, 96, 4, False)),
        ((4, 84, 96), (84, 96, 4, True)),
        ((64, 64, 3), (64, 64, 3, False)),
        ((9, 64, 64), (64, 64, 9, True)),
        ((1, 84, 84), (84, 84, 1, True)),
        ((84, 3, 84), (84, 3, 84, False)),
    ],
)
def test_channels_are_the_smaller_of_first_and_last_dimension_or_the_last(shape, want):
    assert image_shape(images(*shape)) == want


@pytest.mark.parametrize(
    'space, want',
    [
        (images(8, 8, 3), torch.uint8),
        (images(8, 8, 3, dtype='float32'), torch.float32),
        (Box(np.zeros(128), np.full(128, 255.0), 'uint8'), torch.float32),
        (Discrete(3), torch.int64),
    ],
)
def test_only_bytes_of_images_reach_a_model_as_bytes(space, want):
    assert obs_dtype(space) == want


@pytest.mark.parametrize('lead', LEADS)
@pytest.mark.parametrize('shape', [(6, 7, 3), (3, 6, 7)])
@pytest.mark.parametrize('dtype', ['uint8', 'float32'])
def test_pixels_are_the_same_with_channels_first(shape, lead, dtype):
    obs = pixels(*lead, *shape).to(getattr(torch, dtype))
    x = Pixels(images(*shape, dtype=dtype))(obs)
    assert x.data_ptr() == obs.data_ptr()
    assert torch.equal(x, obs if shape[0] == 3 else obs.movedim(-1, -3))


@pytest.mark.parametrize('as_bytes, channels_last', [(True, False), (True, True), (False, False), (False, True)])
@pytest.mark.parametrize('height, width, n_channel, kernel, stride, padding', CONVOLUTIONS)
def test_convolution_and_its_gradients_are_those_of_conv2d(
    height, width, n_channel, kernel, stride, padding, as_bytes, channels_last, monkeypatch
):
    # block convolution is for bfloat16; here float64 takes the place of bfloat16, so that only the arithmetic is tested
    monkeypatch.setattr(torch, 'is_autocast_enabled', lambda device: True)
    monkeypatch.setattr(torch, 'bfloat16', torch.float64)
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(n_channel, 6, kernel, stride, padding).double()
    x = pixels(3, n_channel, height, width)
    number = x.double() / 255 if as_bytes else x.double()
    x = (x if as_bytes else x.double().requires_grad_()).contiguous(
        memory_format=torch.channels_last if channels_last else torch.contiguous_format
    )
    want = conv(number)
    slope = torch.randn_like(want)
    parts = list(conv.parameters())
    got = convolve(x, conv)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(
        torch.autograd.grad(got, parts, slope, retain_graph=True), torch.autograd.grad(want, parts, slope)
    )
    if not as_bytes:
        back = torch.ops.aten.convolution_backward(
            slope, number, conv.weight, [6], [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, [True, False, False]
        )[0]
        torch.testing.assert_close(torch.autograd.grad(got, x, slope)[0], back)


def test_bytes_that_are_no_whole_words_are_moved_too():
    conv, x = torch.nn.Conv2d(2, 6, 8, 4), pixels(3, 2, 30, 41)
    for view in (x[..., 1:37], x[..., ::2], x[:, :, 1:], x.transpose(2, 3), x[1:, :, :, :40]):
        with torch.autocast('cpu', torch.bfloat16):
            got = convolve(view, conv)
        want = conv(view / 255)
        assert (got - want).abs().max() < 0.02 * want.abs().max()  # bfloat16 has 8 bits, and about 100 terms are summed


@pytest.mark.parametrize('n', [3, LISTED_IMAGES + 1])
def test_blocks_of_words_are_those_of_pixel_unshuffle(n):
    conv, x = torch.nn.Conv2d(2, 1, 8, 4), pixels(n, 2, 8, 12)
    form = ImageForm.of(x, conv, is_half=True)
    want = torch.nn.functional.pixel_unshuffle(x.float(), 4)  # [N, C * y * x, H / 4, W / 4]
    assert torch.equal(form.pixels(x).float(), want) and want.shape == (n, 32, 2, 3)


@pytest.mark.parametrize('shape', [(3, 6, 7, 2), (3, 2, 6, 7)], ids=['channels last', 'channels first'])
@pytest.mark.parametrize('dtype', ['uint8', 'float32'])
def test_frames_of_a_window_become_channels(shape, dtype):
    obs = pixels(5, *shape).to(getattr(torch, dtype))
    x = Pixels(images(*shape, dtype=dtype))(obs)
    frames = [obs[:, i] if shape[1] == 2 else obs[:, i].permute(0, 3, 1, 2) for i in range(3)]
    assert torch.equal(x, torch.cat(frames, 1)) and x.dtype == obs.dtype
    assert image_shape(images(*shape, dtype=dtype)) == (6, 7, 6, shape[1] == 2)


def test_bytes_that_come_as_floats_are_scaled():
    obs = pixels(5, 3, 6, 7, 2)
    torch.testing.assert_close(Pixels(images(3, 6, 7, 2))(obs.float()), Pixels(images(3, 6, 7, 2))(obs) / 255)


@pytest.mark.parametrize('shape', [(8, 8, 4), (4, 8, 9), (7, 7, 3), (2, 8, 8, 3), (2, 3, 8, 9)], ids=str)
@pytest.mark.parametrize('high', [1, 10, 254])
def test_bytes_are_divided_by_the_upper_bound_of_their_space(shape, high):
    """Oracle: the same pictures as floats from 0 to 1, which no stage scales."""
    obs = torch.randint(high + 1, (5, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    space, floats = bytes_to(high, *shape), images(*shape, dtype='float32')
    x, want = make_input(space)(obs), make_input(floats)(obs / high)
    torch.testing.assert_close(x, want)
    network = cnn(space, 'mlp')
    torch.testing.assert_close(network(x), network(want))
    torch.testing.assert_close(make_input(space)(obs.float()), want)  # bytes that come as floats
    assert make_input(space, normalize_images=False)(obs).max() == high


def test_each_channel_has_its_own_upper_bound():
    # channels last: the first ends at 2, the second at 255, the third is always 0
    space = bytes_to([2, 255, 0], 8, 9, 3)
    x = make_input(space)(torch.tensor([2, 51, 0], dtype=torch.uint8).expand(8, 9, 3))
    assert torch.equal(x, torch.tensor([1.0, 0.2, 0.0])[:, None, None].expand(3, 8, 9))


def test_bytes_that_end_at_255_stay_bytes_and_add_nothing_to_the_state():
    stage = make_input(images(8, 8, 3))
    assert stage(pixels(2, 8, 8, 3)).dtype == torch.uint8 and stage.state_dict() == {}


def test_weights_of_an_older_version_keep_the_scale_that_they_were_trained_with(caplog):
    obs = torch.ones(8, 8, 3, dtype=torch.uint8)
    stage = make_input(bytes_to(5, 8, 8, 3))
    saved = {name: x.clone() for name, x in stage.state_dict().items()}
    stage.load_state_dict({})  # it had no scale in its state, and divided by 255
    assert stage(obs).dtype == torch.uint8  # the networks divide bytes by 255, with the same rounding as before
    assert 'divided by 255 by an older version' in caplog.text
    again = make_input(bytes_to(5, 8, 8, 3))
    again.load_state_dict(stage.state_dict())  # and is saved without it
    assert again(obs).dtype == torch.uint8
    again.load_state_dict(saved)
    torch.testing.assert_close(again(obs), torch.full((3, 8, 8), 0.2))


def test_images_of_several_leaves_have_one_warning_of_an_older_version_for_each_load(caplog):
    space = Dict({'front': bytes_to(5, 8, 8, 3), 'back': bytes_to(9, 8, 8, 3), 'map': bytes_to(7, 8, 8, 1)})
    for n_load in (1, 2):
        stage = make_input(space)
        assert len(stage.state_dict()) == 3
        stage.load_state_dict({})
        assert caplog.text.count('divided by 255 by an older version') == n_load
