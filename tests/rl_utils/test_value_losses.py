"""Every registered value loss by hand; histograms of returns. test_surrogates_contract.py has the contract of all functions."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import Tensor, nn

from zoo.config.components import make_component
from zoo.core.errors import UserError
from zoo.core.registry import VALUE_LOSS_REGISTRY
from zoo.model.layers import ValueHead
from zoo.rl_utils.value_losses import HLGauss, TwoHot, widened

NAMES = VALUE_LOSS_REGISTRY.names()
HISTOGRAMS = [name for name in NAMES if isinstance(VALUE_LOSS_REGISTRY.get(name), type)]
FUNCTIONS = [name for name in NAMES if name not in HISTOGRAMS]
RETURN, OLD, CLIP = 1.0, 0.5, 0.2


def tensor(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def error_and_slope(spec, value: float, old: float = OLD) -> tuple[float, float]:
    """Error and d error / d value for a return of 1, a value that was `old`, clip_ratio .2."""
    x = tensor(value).requires_grad_()
    error = make_component(VALUE_LOSS_REGISTRY, spec)(x, tensor(RETURN), tensor(old), CLIP)
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


def histogram(name: str, **options):
    return make_component(VALUE_LOSS_REGISTRY, {'type': name, **options})


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
    return_ = torch.linspace(-9.2, 9.2, 777, dtype=torch.float64)  # 4 bins (5 standard deviations) from the ends
    assert (loss.decode(loss.target(return_).log()) - return_).abs().max() < 0.01 * width
    ends = tensor(-10.0, 10.0)  # the remaining part of the normal distribution has its mean inside
    inside = (loss.decode(loss.target(ends).log()) - ends).abs()
    torch.testing.assert_close(
        inside, tensor(0.69, 0.69) * width, atol=0.005 * width, rtol=0
    )  # as with the three bins above


def test_two_hot_by_hand():
    # centres 0, 1, 2; 1.25 is a quarter of the way from 1 to 2; a return beyond the ends is all in the end bin
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
def test_return_on_a_bound_is_not_outside(name):
    loss = histogram(name, low=-2.0, high=3.0)
    assert loss.is_outside(tensor(-2.5, -2.0, 0.0, 3.0, 3.5)).tolist() == [True, False, False, False, True]


def test_two_hot_symlog_bounds_are_of_the_symlog():
    loss = histogram('two_hot', low=0.0, high=2.0, symlog=True)
    assert loss.is_outside(tensor(3.0, 7.0)).tolist() == [False, True]  # log 4 = 1.39, log 8 = 2.08


def test_widened_head_keeps_its_hidden_layer_and_predicts_equally_likely_bins():
    hidden = nn.Linear(3, 5)
    head = widened(nn.Sequential(hidden, ValueHead(5)), 7)
    assert head[0] is hidden and len(head) == 2
    assert head(torch.ones(2, 4, 3)).tolist() == torch.zeros(2, 4, 7).tolist()


@pytest.mark.parametrize('name', HISTOGRAMS)
def test_gradient_of_a_histogram_is_softmax_less_target(name):
    loss = histogram(name, n_bin=7, low=-2.0, high=2.0)
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    return_ = tensor(-3.0, -2.0, 0.1, 1.7, 9.0)
    (gradient,) = torch.autograd.grad(loss(logits, return_, None, CLIP).sum(), logits)
    torch.testing.assert_close(gradient, logits.detach().softmax(-1) - loss.target(return_))
    assert torch.autograd.gradcheck(loss.decode, logits)


@pytest.mark.parametrize('name', HISTOGRAMS)
def test_half_precision_logits_are_computed_in_float32_also_where_traced(name):
    loss = histogram(name)
    logits = torch.randn(6, loss.n_output, generator=torch.Generator().manual_seed(0)).bfloat16()
    return_ = torch.linspace(-3, 3, 6)
    assert loss.decode(logits).dtype == torch.float32
    wanted = loss(logits.float(), return_, None, CLIP)
    assert torch.equal(loss(logits, return_, None, CLIP), wanted)
    torch.compiler.reset()
    traced = torch.compile(lambda x, r: loss(x, r, None, CLIP), backend='eager', fullgraph=True, dynamic=False)
    assert torch.equal(traced(logits, return_), wanted)


@pytest.mark.parametrize('name', HISTOGRAMS)
def test_histograms_are_values_that_a_compiled_step_may_depend_on(name):
    one, same, other = histogram(name), histogram(name), histogram(name, n_bin=11)
    assert one == same and hash(one) == hash(same) and one != other
    assert pickle.loads(pickle.dumps(one)) == one
    assert (one.kind, one.name, one.n_output, other.n_output) == ('value loss', name, 101, 11)
    assert HLGauss() != TwoHot()


@pytest.mark.parametrize('name', HISTOGRAMS)
def test_histogram_of_another_width_is_refused(name):
    with pytest.raises(ValueError, match=r'\(4, 7\) but return_ \(4,\).*101 bins; give logits \(4, 101\)'):
        histogram(name)(torch.zeros(4, 7), torch.zeros(4), None, CLIP)
    with pytest.raises(ValueError, match=r'give logits \(4, 1, 101\)'):  # would broadcast
        histogram(name)(torch.zeros(4, 101), torch.zeros(4, 1), None, CLIP)


@pytest.mark.parametrize(
    'spec, sentence',
    [
        ({'type': 'hl_gauss', 'low': 3.0, 'high': 3.0}, "'hl_gauss': low is 3.0 and high 3.0"),
        ({'type': 'two_hot', 'low': 3.0, 'high': 3.0}, "'two_hot': low is 3.0 and high 3.0"),
        ({'type': 'huber', 'delta': 0.0}, 'delta is 0.0 .* but must be a number > 0'),
        ({'type': 'hl_gauss', 'n_bin': 1}, 'n_bin is 1 .* but must be'),
        ({'type': 'mse', 'delta': 1.0}, 'delta'),
    ],
)
def test_options_out_of_range_are_refused(spec, sentence):
    with pytest.raises(UserError, match=sentence):
        make_component(VALUE_LOSS_REGISTRY, spec)
