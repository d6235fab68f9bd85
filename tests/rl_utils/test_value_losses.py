"""Every registered value loss: errors and gradients against numbers by hand and finite differences; histograms of returns."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import Tensor

from zoo.config.components import make_part, summary_of
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.core.registry import VALUE_LOSS_REGISTRY
from zoo.rl_utils.ppo import ppo_value_data, ppo_value_error
from zoo.rl_utils.value_losses import HLGauss, TwoHot

NAMES = VALUE_LOSS_REGISTRY.names()
HISTOGRAMS = [name for name in NAMES if isinstance(VALUE_LOSS_REGISTRY.get(name), type)]
FUNCTIONS = [name for name in NAMES if name not in HISTOGRAMS]
RETURN, OLD, CLIP = 1.0, 0.5, 0.2


def tensor(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def error_and_slope(spec, value: float, old: float = OLD) -> tuple[float, float]:
    """Error and d error / d value for a return of 1, a value that was `old`, clip_ratio .2."""
    x = tensor(value).requires_grad_()
    error = make_part(VALUE_LOSS_REGISTRY, spec)(x, tensor(RETURN), tensor(old), CLIP)
    return error.item(), torch.autograd.grad(error.sum(), x)[0].item()


# (name, options, value, error, slope); return 1, value before .5, clip_ratio .2
HAND = [
    ('mse', {}, 4.0, 4.5, 3.0),  # .5 * 3^2
    ('mse', {}, 1.0, 0.0, 0.0),
    ('huber', {}, 1.5, 0.125, 0.5),  # as mse within delta
    ('huber', {}, 4.0, 2.5, 1.0),  # 3 - .5
    ('huber', {'delta': 2.0}, -4.0, 8.0, -2.0),  # 2 * (5 - 1)
    ('huber', {'range': 2.0}, 4.0, 2.0, 0.0),  # 2.5 is beyond the range
    ('huber', {'range': 2.0}, 2.0, 0.5, 1.0),
    ('clip', {}, 0.6, 0.08, -0.4),  # within .2 of .5: .5 * .4^2
    ('clip', {}, 0.9, 0.045, 0.0),  # clipped at .7, whose error .5 * .3^2 is the larger one
    ('clip', {}, 0.1, 0.405, -0.9),  # clipped at .3, but its own error .5 * .9^2 is the larger one
    ('clip', {'range': 0.5}, 0.9, 0.005, -0.1),  # within .5 of .5
    ('error_clip', {}, 4.0, 4.5, 3.0),  # 3^2 is within 10
    ('error_clip', {}, 5.0, 5.0, 0.0),  # .5 * min(4^2, 10): sqrt(10) = 3.16
    ('error_clip', {'range': 16.0}, 5.0, 8.0, 4.0),  # on the limit the gradient is whole
]


@pytest.mark.parametrize(('name', 'options', 'value', 'error', 'slope'), HAND)
def test_error_and_slope_by_hand(name, options, value, error, slope):
    assert error_and_slope({'type': name, **options}, value) == pytest.approx((error, slope), abs=1e-12)


def test_every_built_in_value_loss_has_numbers_by_hand():
    built_in = {name for name in FUNCTIONS if VALUE_LOSS_REGISTRY.where(name).startswith('zoo.')}
    assert built_in == {name for name, *_ in HAND}


@pytest.mark.parametrize('name', FUNCTIONS)
# far out, below and on the edge of the value clip (.3, .7), inside it, at the return, on huber's edges (0, 2), far out
@pytest.mark.parametrize('value', [-4.0, 0.0, 0.1, 0.3, 0.5, 0.6, 0.7, 0.9, 1.0, 1.3, 1.7, 2.0, 1 + math.sqrt(10), 6.0])
def test_slope_lies_between_the_finite_differences_of_the_two_sides(name, value):
    step = 1e-6  # second derivatives are 1, so the error is 5e-7; rounding adds 1e-9
    low, (middle, slope), high = (error_and_slope(name, value + x) for x in (-step, 0.0, step))
    sides = ((middle - low[0]) / step, (high[0] - middle) / step)  # equal but at a kink, where any slope between is one
    assert min(sides) - 1e-5 <= slope <= max(sides) + 1e-5


@pytest.mark.parametrize('name', FUNCTIONS)
def test_nan_is_not_hidden(name):
    x = torch.full((1,), math.nan, requires_grad=True)
    error = make_part(VALUE_LOSS_REGISTRY, name)(x, torch.ones(1), torch.ones(1), CLIP)
    error.sum().backward()
    assert error.isnan().all() and x.grad.isnan().all()


@pytest.mark.parametrize('name', FUNCTIONS)
def test_clip_ratio_in_a_tensor_gives_the_same_bits(name):
    part, x = make_part(VALUE_LOSS_REGISTRY, name), torch.linspace(-2, 2, 41)
    rest = torch.ones(41), torch.zeros(41)
    assert torch.equal(part(x, *rest, 0.25), part(x, *rest, torch.tensor(0.25)))


@pytest.mark.parametrize('name', NAMES)
def test_has_a_summary(name):
    assert summary_of(VALUE_LOSS_REGISTRY.get(name)).endswith('.')


@pytest.mark.parametrize('use_clip', [True, False])
def test_mse_and_clip_are_the_losses_of_ppo(use_clip):
    generator = torch.Generator().manual_seed(0)
    value, return_, old = (torch.randn(1000, generator=generator) for _ in range(3))
    value = (old + 0.3 * value).requires_grad_()
    name = 'clip' if use_clip else 'mse'
    found = make_part(VALUE_LOSS_REGISTRY, name)(value, return_, old, CLIP).mean()
    wanted = ppo_value_error(ppo_value_data(value, old, return_), CLIP, use_clip)
    torch.testing.assert_close(found, wanted)  # the half may be inside or outside of the mean
    gradients = [torch.autograd.grad(loss, value)[0] for loss in (found, wanted)]
    torch.testing.assert_close(*gradients)


def histogram(name: str, **options):
    return make_part(VALUE_LOSS_REGISTRY, {'type': name, **options})


@pytest.mark.parametrize('name', HISTOGRAMS)
def test_targets_are_probabilities(name):
    loss = histogram(name, n_bin=51, low=-5.0, high=5.0)
    target = loss.target(torch.tensor([-100.0, -5.0, -4.99, 0.0, 0.123, 3.0, 5.0, 1e6]))
    assert target.shape == (8, 51) and (target >= 0).all()
    torch.testing.assert_close(target.sum(-1), torch.ones(8))


def test_hl_gauss_three_bins_by_hand():
    # bins [0, 1], [1, 2], [2, 3], sigma .75; return 1.5. F normal: F(.5 / .75) = F(.666667) = .747507, F(2) = .977250
    # middle: 2 * .747507 - 1 = .495015; all: 2 * .977250 - 1 = .954500; .495015 / .954500 = .518612, the rest by halves
    loss = histogram('hl_gauss', n_bin=3, low=0.0, high=3.0, sigma_ratio=0.75)
    target = loss.target(tensor(1.5))
    torch.testing.assert_close(target, tensor(0.240694, 0.518612, 0.240694).unsqueeze(0), atol=1e-6, rtol=0)
    assert loss.decode(target.log()).item() == pytest.approx(1.5)
    # a uniform softmax: log 3, and the mean of the centres .5, 1.5, 2.5
    logits = torch.zeros(1, 3, dtype=torch.float64)
    assert loss(logits, tensor(1.5), None, CLIP).item() == pytest.approx(math.log(3))
    assert loss.decode(logits).item() == pytest.approx(1.5)
    # logits (0, log 2, 0) are probabilities .25, .5, .25: -(.481388 log .25 + .518612 log .5) = 1.026818
    logits = tensor(0.0, math.log(2), 0.0).unsqueeze(0)
    assert loss(logits, tensor(1.5), None, CLIP).item() == pytest.approx(1.026818, abs=1e-5)


def test_hl_gauss_is_cut_off_at_its_ends():
    # return 0 on the low end: F(4/3) - F(0) = .408789, F(8/3) - F(4/3) = .087380, F(4) - F(8/3) = .003799, sum .499968
    target = histogram('hl_gauss', n_bin=3, low=0.0, high=3.0, sigma_ratio=0.75).target(tensor(0.0))
    torch.testing.assert_close(target, tensor(0.817629, 0.174772, 0.007599).unsqueeze(0), atol=2e-6, rtol=0)


def test_hl_gauss_target_decodes_to_the_return():
    loss = histogram('hl_gauss', n_bin=101, low=-10.0, high=10.0)
    width = 20 / 101
    return_ = torch.linspace(-9.2, 9.2, 777, dtype=torch.float64)  # 4 bins, so 5 deviations, from the ends
    assert (loss.decode(loss.target(return_).log()) - return_).abs().max() < 0.01 * width
    ends = tensor(-10.0, 10.0)  # what is left of the normal distribution has its mean inside
    inside = (loss.decode(loss.target(ends).log()) - ends).abs()
    torch.testing.assert_close(
        inside, tensor(0.69, 0.69) * width, atol=0.005 * width, rtol=0
    )  # as with the three bins above


def test_two_hot_by_hand():
    # centres 0, 1, 2; 1.25 is a quarter of the way from 1 to 2; beyond the ends all is in the last bin
    loss = histogram('two_hot', n_bin=3, low=0.0, high=2.0)
    assert loss.target(tensor(1.25, 2.0, 7.0, -1.0)).tolist() == [[0, 0.75, 0.25], [0, 0, 1], [0, 0, 1], [1, 0, 0]]
    # probabilities .25, .5, .25: -(.75 log .5 + .25 log .25) = 1.25 log 2; the mean is 1
    logits = tensor(0.0, math.log(2), 0.0).unsqueeze(0)
    assert loss(logits, tensor(1.25), None, CLIP).item() == pytest.approx(1.25 * math.log(2))
    assert loss.decode(logits).item() == pytest.approx(1.0)


@pytest.mark.parametrize('symlog', [False, True])
def test_two_hot_target_decodes_to_exactly_the_return(symlog):
    loss = histogram('two_hot', n_bin=41, symlog=symlog)
    return_ = torch.linspace(-10, 10, 333, dtype=torch.float64) * (2000 if symlog else 1)  # symlog(20000) = 9.9
    torch.testing.assert_close(loss.decode(loss.target(return_).log()), return_, rtol=1e-10, atol=1e-10)


def test_two_hot_symlog_by_hand():
    # centres -2, 0, 2 of symlog: e - 1 has symlog 1, halfway from 0 to 2; a decoded mean of 1 is e - 1 again
    loss = histogram('two_hot', n_bin=3, low=-2.0, high=2.0, symlog=True)
    target = loss.target(tensor(math.e - 1, 1 - math.e))
    torch.testing.assert_close(target, tensor(0, 0.5, 0.5, 0.5, 0.5, 0).view(2, 3))
    torch.testing.assert_close(loss.decode(target.log()), tensor(math.e - 1, 1 - math.e))


@pytest.mark.parametrize('name', HISTOGRAMS)
def test_gradient_of_a_histogram_equals_finite_differences(name):
    loss = histogram(name, n_bin=7, low=-2.0, high=2.0)
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    return_ = tensor(-3.0, -2.0, 0.1, 1.7, 9.0)
    assert torch.autograd.gradcheck(lambda x: loss(x, return_, None, CLIP), logits)
    assert torch.autograd.gradcheck(loss.decode, logits)


@pytest.mark.parametrize('name', HISTOGRAMS)
def test_gradient_of_a_histogram_is_softmax_less_target(name):
    loss = histogram(name, n_bin=7, low=-2.0, high=2.0)
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    return_ = tensor(-3.0, -2.0, 0.1, 1.7, 9.0)
    (gradient,) = torch.autograd.grad(loss(logits, return_, None, CLIP).sum(), logits)
    torch.testing.assert_close(gradient, logits.detach().softmax(-1) - loss.target(return_))


@pytest.mark.parametrize('name', HISTOGRAMS)
def test_half_precision_logits_are_computed_in_float32(name):
    loss = histogram(name)
    logits = torch.randn(6, loss.n_output, generator=torch.Generator().manual_seed(0)).bfloat16()
    return_ = torch.linspace(-3, 3, 6)
    assert loss.decode(logits).dtype == torch.float32
    assert torch.equal(loss(logits, return_, None, CLIP), loss(logits.float(), return_, None, CLIP))


@pytest.mark.parametrize('name', HISTOGRAMS)
def test_histograms_are_values_that_a_compiled_step_may_depend_on(name):
    one, same, other = histogram(name), histogram(name), histogram(name, n_bin=11)
    assert one == same and hash(one) == hash(same) and one != other
    assert pickle.loads(pickle.dumps(one)) == one
    assert (one.kind, one.name, one.n_output, other.n_output) == ('value loss', name, 101, 11)


def test_histograms_of_two_kinds_differ():
    assert HLGauss() != TwoHot()


@pytest.mark.parametrize('name', HISTOGRAMS)
def test_histogram_of_another_width_is_refused(name):
    with pytest.raises(ValueError, match=r'\(4, 7\) but return_ \(4,\).*101 bins; give logits \(4, 101\)'):
        histogram(name)(torch.zeros(4, 7), torch.zeros(4), None, CLIP)
    with pytest.raises(ValueError, match=r'give logits \(4, 1, 101\)'):  # would broadcast
        histogram(name)(torch.zeros(4, 101), torch.zeros(4, 1), None, CLIP)


@pytest.mark.parametrize('name', HISTOGRAMS)
def test_bounds_in_the_wrong_order_are_refused(name):
    with pytest.raises(UserError, match=f"'{name}': low is 3.0 and high 3.0"):
        histogram(name, low=3.0, high=3.0)


@pytest.mark.parametrize(
    'spec', [{'type': 'huber', 'delta': 0.0}, {'type': 'hl_gauss', 'n_bin': 1}, {'type': 'mse', 'delta': 1.0}]
)
def test_options_out_of_range_are_refused(spec):
    with pytest.raises(ConfigError):
        make_part(VALUE_LOSS_REGISTRY, spec)


@pytest.mark.parametrize('name', NAMES)
def test_can_be_traced_without_a_look_at_the_numbers(name):
    torch._dynamo.reset()
    part = make_part(VALUE_LOSS_REGISTRY, name)
    lead = (9, part.n_output) if name in HISTOGRAMS else (9,)
    x = torch.randn(lead, generator=torch.Generator().manual_seed(0))
    traced = torch.compile(lambda x, r, v, c: part(x, r, v, c), backend='eager', fullgraph=True, dynamic=False)
    rest = torch.linspace(-1, 1, 9), torch.zeros(9), torch.tensor(CLIP)
    assert torch.equal(traced(x, *rest), part(x, *rest))
