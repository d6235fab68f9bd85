"""Every registered surrogate: gain and slope against numbers by hand and finite differences, at and beyond the clip."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from zoo.config.components import make_part, summary_of
from zoo.core.registry import SURROGATE_REGISTRY
from zoo.rl_utils import surrogates
from zoo.rl_utils.ppo import MAX_LOG_RATIO

NAMES = SURROGATE_REGISTRY.names()
SLOPE_IS_NOT_ADV = {'awr'}  # at ratio 1
CLIP, HIGH = 0.2, 0.28
E = math.e


def gain_and_slope(
    name: str, ratio: float, adv: float, clip_ratio: float | Tensor = CLIP, **options
) -> tuple[float, float]:
    """Gain and d gain / d log p_new of one sample whose ratio is exactly `ratio`, float64."""
    part = make_part(SURROGATE_REGISTRY, {'type': name, **options})
    return _gain_and_slope(part, ratio, adv, clip_ratio)


def _gain_and_slope(part, ratio: float, adv: float, clip_ratio: float | Tensor = CLIP) -> tuple[float, float]:
    change = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    gain = _gain(part, ratio, change, adv, clip_ratio)
    (slope,) = torch.autograd.grad(gain.sum(), change)
    return gain.item(), slope.item()


def _gain(part, ratio: float, change: Tensor, adv: float, clip_ratio: float | Tensor = CLIP) -> Tensor:
    """At log ratio + change."""
    return part(math.log(ratio) + change, ratio * change.exp(), torch.full_like(change, adv), clip_ratio)


# (name, options, ratio, adv, gain, slope); clip_ratio .2
HAND = [
    ('clip', {}, 1.1, 2.0, 2.2, 2.2),  # inside
    ('clip', {}, 1.5, 1.0, 1.2, 0.0),  # above and better still: clipped
    ('clip', {}, 0.5, 1.0, 0.5, 0.5),  # below and worse: it may come back
    ('clip', {}, 1.5, -1.0, -1.5, -1.5),  # above and worse: min(-1.5, -1.2)
    ('clip', {}, 0.5, -1.0, -0.8, 0.0),  # below and better still: min(-.5, -.8)
    ('asymmetric_clip', {'high': 0.3}, 1.25, 2.0, 2.5, 2.5),  # 'clip' would have cut it
    ('asymmetric_clip', {'high': 0.3}, 1.5, 1.0, 1.3, 0.0),
    ('asymmetric_clip', {'high': 0.3}, 0.7, -1.0, -0.8, 0.0),  # below the bound is 1 - .2
    ('spo', {}, 1.1, 2.0, 2.15, 1.1),  # 2.2 - 2 * .01 / .4; 2.2 - 1.1 * 2 * .1 / .2
    ('spo', {}, 1.2, 2.0, 2.2, 0.0),  # the best ratio: 2.4 - 2 * .04 / .4; 2.4 - 1.2 * 2 * .2 / .2
    ('spo', {}, 1.5, 1.0, 0.875, -2.25),  # 1.5 - .25 / .4; 1.5 - 1.5 * .5 / .2
    ('spo', {}, 0.5, -1.0, -1.125, 0.75),  # -.5 - .25 / .4; -.5 + .5 * .5 / .2
    # u = (1.5 - 1) * 2 = 1: 3 - (1 - 2 tanh(.5)); 3 (1 - tanh(.5)^2), tanh(.5) = .46211716
    ('dpo', {'alpha': 2.0}, 1.5, 2.0, 2.92423431, 2.35934320),
    ('dpo', {}, 0.5, 2.0, 1.0, 1.0),
    # v = log 2, v / .6 = 1.15524530, its tanh is (2^(10/3) - 1) / (2^(10/3) + 1) = 9.0793684 / 11.0793684 = .81948429
    # -.5 - (.69314718 - .6 * .81948429); -.5 + .81948429^2
    ('dpo', {'beta': 0.6}, 0.5, -1.0, -0.70145660, 0.17155451),
    ('dpo', {}, 1.5, -1.0, -1.5, -1.5),
    ('rollback', {'slope': 0.3}, 1.1, 2.0, 2.2, 2.2),
    ('rollback', {'slope': 0.3}, 1.5, 1.0, 1.11, -0.45),  # 1.2 - .3 * .3; -.3 * 1.5
    ('rollback', {'slope': 0.3}, 0.5, -1.0, -0.89, 0.15),  # -(.8 + .3 * .3); .3 * .5
    ('rollback', {'slope': 0.3}, 0.5, 1.0, 0.5, 0.5),
    ('none', {}, 1.5, -2.0, -3.0, -3.0),
    ('a2c', {}, E, -2.0, -2.0, -2.0),  # log ratio 1
    ('cispo', {}, 1.1, 2.0, 2.2, 2.2),
    ('cispo', {}, 0.5, 3.0, 1.5, 1.5),
    ('cispo', {}, 1.2 * E, -1.0, -2.4, -1.2),  # 1.2 * (1 + log e)
    ('awr', {'temperature': 2.0}, E, 2 * math.log(3), 3.0, 3.0),  # weight exp(log 3)
    ('awr', {'temperature': 2.0}, E, -2 * math.log(2), 0.5, 0.5),
    ('awr', {'max_weight': 20.0}, 1.0, 1000.0, 0.0, 20.0),
]


@pytest.mark.parametrize(('name', 'options', 'ratio', 'adv', 'gain', 'slope'), HAND)
def test_gain_and_slope_by_hand(name, options, ratio, adv, gain, slope):
    assert gain_and_slope(name, ratio, adv, **options) == pytest.approx((gain, slope), abs=1e-8)


def test_every_built_in_surrogate_has_numbers_by_hand():
    built_in = {name for name in NAMES if SURROGATE_REGISTRY.where(name).startswith('zoo.')}
    assert built_in == {name for name, *_ in HAND}


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('adv', [2.0, -1.5, 0.0])
# far below, the lower edge, inside, 1, inside, the upper edges of 'clip' and 'asymmetric_clip', far above
@pytest.mark.parametrize('ratio', [0.3, 1 - CLIP, 0.95, 1.0, 1.1, 1 + CLIP, 1 + HIGH, 3.0])
def test_slope_lies_between_the_finite_differences_of_the_two_sides(name, adv, ratio):
    part = make_part(SURROGATE_REGISTRY, name)
    _, slope = _gain_and_slope(part, ratio, adv)
    step = 1e-7  # second derivatives are at most some 100 here, so the error is 1e-5; rounding adds 1e-8
    low, middle, high = (
        _gain(part, ratio, torch.tensor(x, dtype=torch.float64), adv).item() for x in (-step, 0.0, step)
    )
    sides = ((middle - low) / step, (high - middle) / step)  # equal but at a kink, where any slope between is one
    assert min(sides) - 1e-4 <= slope <= max(sides) + 1e-4


@pytest.mark.parametrize('name', sorted(set(NAMES) - SLOPE_IS_NOT_ADV))
@pytest.mark.parametrize('adv', [2.0, -1.5, 0.0])
def test_slope_at_ratio_1_is_the_advantage(name, adv):
    # sums such as .5 A + .5 A and A - 0 are exact
    assert gain_and_slope(name, 1.0, adv)[1] == adv


@pytest.mark.parametrize('ratio', [0.5, 1.0, 2.0])
@pytest.mark.parametrize('adv', [-3.0, 0.0, 0.7])
def test_awr_has_the_slope_of_its_weight_at_every_ratio(adv, ratio):
    assert gain_and_slope('awr', ratio, adv)[1] == pytest.approx(math.exp(adv))


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('log_ratio', [0.0, -200.0, 44.5, 87.0, 1000.0])  # a float32 ratio of 1, 0, and huge
@pytest.mark.parametrize('adv', [3.0, -3.0, 0.0])
@pytest.mark.parametrize('clip_ratio', [0.2, math.inf])
def test_no_nan_at_extreme_ratios(name, log_ratio, adv, clip_ratio):
    x = torch.tensor([log_ratio], requires_grad=True)
    ratio = x.masked_fill(x > MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    gain = make_part(SURROGATE_REGISTRY, name)(x, ratio, torch.tensor([adv]), clip_ratio)
    gain.sum().backward()
    assert not gain.isnan().any() and not x.grad.isnan().any()


@pytest.mark.parametrize('name', NAMES)
def test_nan_is_not_hidden(name):
    x = torch.full((1,), math.nan, requires_grad=True)
    gain = make_part(SURROGATE_REGISTRY, name)(x, x.exp(), torch.ones(1), CLIP)
    assert gain.isnan().all()  # the step is then skipped and counted


@pytest.mark.parametrize('name', NAMES)
def test_clip_ratio_in_a_tensor_gives_the_same_bits(name):
    x = torch.linspace(-2, 2, 41)
    part, adv = make_part(SURROGATE_REGISTRY, name), torch.linspace(-1, 1, 41).flip(0)
    assert torch.equal(part(x, x.exp(), adv, 0.25), part(x, x.exp(), adv, torch.tensor(0.25)))


@pytest.mark.parametrize('name', NAMES)
def test_works_element_by_element_in_any_shape_and_changes_no_input(name):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    adv, part = x.flip(0).clone(), make_part(SURROGATE_REGISTRY, name)
    before = x.clone(), adv.clone()
    gain = part(x, x.exp(), adv, CLIP)
    assert gain.shape == x.shape and gain.dtype == x.dtype
    torch.testing.assert_close(gain[1, 2], part(x[1, 2], x[1, 2].exp(), adv[1, 2], CLIP))
    assert torch.equal(x, before[0]) and torch.equal(adv, before[1])


@pytest.mark.parametrize('name', NAMES)
def test_has_a_summary(name):
    assert summary_of(SURROGATE_REGISTRY.get(name)).endswith('.')


def test_clip_is_bit_equal_to_the_formula_of_ppo():
    generator = torch.Generator().manual_seed(0)
    log_ratio, adv = (torch.randn(1000, generator=generator) for _ in range(2))
    log_ratio[:3], adv[3:6] = 0.0, 0.0

    def both(function) -> tuple[Tensor, Tensor]:
        x = (0.3 * log_ratio).requires_grad_()
        gain = function(x, x.exp())
        return gain, torch.autograd.grad(gain.sum(), x)[0]

    found = both(lambda x, r: surrogates.clip(x, r, adv, CLIP))
    wanted = both(lambda x, r: torch.min(r * adv, r.clamp(1 - CLIP, 1 + CLIP) * adv))
    assert all(map(torch.equal, found, wanted))


def test_rollback_without_slope_is_clip():
    for ratio in (0.5, 0.9, 1.5):
        for adv in (1.0, -1.0):
            assert gain_and_slope('rollback', ratio, adv, slope=0.0) == gain_and_slope('clip', ratio, adv)


def test_asymmetric_clip_with_the_same_bounds_is_clip():
    for ratio in (0.5, 0.8, 0.9, 1.2, 1.5):
        for adv in (1.0, -1.0):
            assert gain_and_slope('asymmetric_clip', ratio, adv, high=CLIP) == gain_and_slope('clip', ratio, adv)


@pytest.mark.parametrize('name', NAMES)
def test_can_be_traced_without_a_look_at_the_numbers(name):
    torch._dynamo.reset()  # the function below is one and the same to it for all parts, and it keeps a few graphs of each
    part = make_part(SURROGATE_REGISTRY, name)
    traced = torch.compile(lambda x, r, a, c: part(x, r, a, c), backend='eager', fullgraph=True, dynamic=False)
    x, adv = torch.linspace(-1, 1, 9), torch.linspace(1, -1, 9)
    assert torch.equal(traced(x, x.exp(), adv, torch.tensor(CLIP)), part(x, x.exp(), adv, torch.tensor(CLIP)))
