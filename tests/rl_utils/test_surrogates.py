"""Every registered surrogate: gain and slope by hand, at and beyond the clip; its contract is in test_surrogates_contract.py."""

from __future__ import annotations

import math

import pytest
import torch

from zoo.config.components import make_component
from zoo.core.registry import SURROGATE_REGISTRY
from zoo.rl_utils.ppo import MAX_LOG_RATIO

NAMES = SURROGATE_REGISTRY.names()
E = math.e


def gain_and_slope(name: str, ratio: float, adv: float, **options) -> tuple[float, float]:
    """Gain and d gain / d log p_new of one sample whose ratio is exactly `ratio`, float64."""
    part = make_component(SURROGATE_REGISTRY, {'type': name, **options})
    change = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    gain = part(math.log(ratio) + change, ratio * change.exp(), torch.full_like(change, adv), 0.2)
    return gain.item(), torch.autograd.grad(gain.sum(), change)[0].item()


# (name, options, ratio, adv, gain, slope); clip_ratio .2
HAND = [
    ('clip', {}, 1.1, 2.0, 2.2, 2.2),  # inside; the other rows are in test_ppo.py
    ('asymmetric_clip', {'high': 0.3}, 1.25, 2.0, 2.5, 2.5),  # 'clip' would have cut it
    ('asymmetric_clip', {'high': 0.3}, 1.5, 1.0, 1.3, 0.0),
    ('asymmetric_clip', {'high': 0.3}, 0.7, -1.0, -0.8, 0.0),  # the lower bound is 1 - .2
    ('asymmetric_clip', {'high': 0.2}, 1.5, 1.0, 1.2, 0.0),  # equal to 'clip'
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
    ('rollback', {'slope': 0.0}, 1.5, 1.0, 1.2, 0.0),  # equal to 'clip'
    ('rollback', {'slope': 0.0}, 0.5, -1.0, -0.8, 0.0),
    ('none', {}, 1.5, -2.0, -3.0, -3.0),
    ('a2c', {}, E, -2.0, -2.0, -2.0),  # log ratio 1
    ('cispo', {}, 1.1, 2.0, 2.2, 2.2),
    ('cispo', {}, 0.5, 3.0, 1.5, 1.5),
    ('cispo', {}, 1.2 * E, -1.0, -2.4, -1.2),  # 1.2 * (1 + log e)
    ('cispo', {}, 1.5, 2.0, 2.93554452, 2.4),  # 2.4 * (1 + log 1.25)
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


@pytest.mark.parametrize('name', sorted(set(NAMES) - {'awr'}))  # its slope is its weight
def test_slope_at_ratio_1_is_the_advantage(name):
    # sums such as .5 A + .5 A and A - 0 are exact
    assert [gain_and_slope(name, 1.0, adv)[1] for adv in (2.0, -1.5, 0.0)] == [2.0, -1.5, 0.0]


@pytest.mark.parametrize('name', NAMES)
def test_no_nan_at_extreme_ratios(name):
    x = torch.tensor([[0.0, -200.0, 44.5, 87.0, 1000.0]] * 3, requires_grad=True)  # a float32 ratio of 1, 0, and huge
    ratio, adv = x.masked_fill(x > MAX_LOG_RATIO, MAX_LOG_RATIO).exp(), torch.tensor([[3.0], [-3.0], [0.0]])
    for clip_ratio in (0.2, math.inf):
        gain = make_component(SURROGATE_REGISTRY, name)(x, ratio, adv.expand(3, 5), clip_ratio)
        (slope,) = torch.autograd.grad(gain.sum(), x, retain_graph=True)
        assert not gain.isnan().any() and not slope.isnan().any()
