"""Contract of `ppo_error` and `ppg_joint_error`, for both kinds of logits, against plain formulas over torch.distributions.

Numbers worked by hand are in test_ppo.py and test_ppg.py, refused inputs in test_check.py.
"""

from __future__ import annotations

import math
from collections import UserDict

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from tests.rl_utils.loss_formulas import (
    INFO,
    Data,
    assert_equals_formulas,
    distribution,
    gradient,
    leaves,
    map_tensors,
    random_data,
    results,
    total,
)
from zoo.backend.step import LossSpec, StepNumbers
from zoo.rl_utils import (
    Categorical as ZooCategorical,
    ppg_data,
    ppo_data,
    ppo_policy_data,
    ppo_policy_error,
)
from zoo.rl_utils.distribution import from_logits
from zoo.rl_utils.losses import policy_terms_by_kernel


def tensors_of(data: Data) -> list[Tensor]:
    return [x for value in data for x in (value.values() if isinstance(value, dict) else [value]) if x is not None]


KINDS = [(kind, continuous) for kind in (ppo_data, ppg_data) for continuous in (False, True)]
each_kind = pytest.mark.parametrize(
    'kind, continuous', KINDS, ids=[f'{x.__name__[:3]} {"gaussian" if y else "categorical"}' for x, y in KINDS]
)
each_loss = pytest.mark.parametrize('kind', [ppo_data, ppg_data])


# ---- values and gradients


@each_kind
@pytest.mark.parametrize(
    'lead, weight, use_value_clip, others',
    [
        ((7,), True, True, dict(dual_clip=None, kl_type='k1')),
        ((1,), True, False, dict(dual_clip=1.1, kl_type='k2')),
        ((2, 3, 2), False, True, dict(dual_clip=1.3, kl_type='k3')),
    ],
)
def test_losses_and_gradients_equal_the_plain_formulas(kind, continuous, lead, weight, use_value_clip, others):
    options = dict(clip_ratio=0.2, use_value_clip=use_value_clip, **(others if kind is ppo_data else {}))
    assert_equals_formulas(random_data(kind, continuous, lead, weight), **options)


@pytest.mark.slow
@given(
    data=st.builds(
        random_data,
        kind=st.sampled_from([ppo_data, ppo_data, ppg_data]),
        lead=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
        continuous=st.booleans(),
        weight=st.booleans(),
        pretrained=st.booleans(),
        seed=st.integers(0, 10**6),
        n_last=st.integers(1, 5),
    ),
    clip_ratio=st.floats(0.01, 2.0),
    use_value_clip=st.booleans(),
    dual_clip=st.none() | st.floats(1.01, 3.0),
    kl_type=st.sampled_from(['k1', 'k2', 'k3']),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_losses_and_gradients_equal_the_plain_formulas_for_any_batch(
    data, clip_ratio, use_value_clip, dual_clip, kl_type
):
    others = dict(dual_clip=dual_clip, kl_type=kl_type) if isinstance(data, ppo_data) else {}
    assert_equals_formulas(data, clip_ratio=clip_ratio, use_value_clip=use_value_clip, **others)


def test_the_batches_above_reach_every_branch():
    # checks the batches themselves: rows clipped and not, of both signs, value clip reached and not
    data = random_data(lead=(40,))
    logp, logp_old = (distribution(logit).log_prob(data.action) for logit in (data.logit_new, data.logit_old))
    ratio = (logp - logp_old).exp()
    for side in (ratio > 1.3, ratio < 0.8, (ratio - 1).abs() < 0.2):
        assert (side & (data.adv > 0)).any() and (side & (data.adv < 0)).any()
    change = data.value_new - data.value_old
    clipped = data.value_old + change.clamp(-0.2, 0.2)
    further, outside = (clipped - data.return_).abs() > (data.value_new - data.return_).abs(), change.abs() > 0.2
    assert (further & outside).any() and (~further & outside).any() and (~outside).any()


@pytest.mark.parametrize('continuous', [False, True])
def test_ratio_exactly_one_has_the_subgradient_of_torch(continuous):
    # the first minibatch of every update: both terms of the minimum are equal, and the gradient is the whole adv
    data = random_data(continuous=continuous)
    same = data._replace(logit_old=map_tensors(data, torch.clone).logit_new)
    assert_equals_formulas(same, clip_ratio=0.2, use_value_clip=True, dual_clip=3.0, kl_type='k1')
    assert results(same)['clipfrac'] == 0


@pytest.mark.parametrize('adv', [1.0, -1.0, 0.0])
@pytest.mark.parametrize('new, bound', [(0.4, 'clip'), (-0.4, 'clip'), (0.4, 'dual'), (3.0, 'dual')])
def test_ratio_exactly_at_the_clip_or_the_dual_clip_has_the_slope_inside(adv, new, bound):
    logit_new, logit_old = torch.tensor([[new, 0.0]], dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    action, adv = torch.zeros(1, dtype=torch.int64), torch.tensor([adv], dtype=torch.float64)
    # the same ratio as the loss's, bit for bit: only then is the bound met exactly
    dist = ZooCategorical(2)
    logp = (dist.log_prob(logit_new, action) - dist.log_prob(logit_old, action)).requires_grad_()  # minus a constant
    ratio = logp.exp()
    # ratio - 1 is exact below 2 (Sterbenz), so that 1 +- clip_ratio is the ratio itself
    clip_ratio, dual_clip = (abs(ratio.item() - 1), None) if bound == 'clip' else (0.1, ratio.item())
    bounded = torch.where(
        (ratio.detach() - 1).abs() <= clip_ratio, ratio, ratio.detach().clamp(1 - clip_ratio, 1 + clip_ratio)
    )
    surrogate = torch.min(ratio * adv, bounded * adv)
    if dual_clip is not None and adv < 0:
        surrogate = torch.max(surrogate, dual_clip * adv)
    (want,) = torch.autograd.grad(-surrogate.mean(), logp)
    data = ppo_policy_data(logit_new.requires_grad_(), logit_old, action, adv)
    loss, _ = ppo_policy_error(data, clip_ratio, dual_clip)
    (grad,) = torch.autograd.grad(loss.policy_loss, logit_new)
    # d logp / d logit_0 = 1 - p
    torch.testing.assert_close(grad[:, 0], want * (1 - logit_new.softmax(-1)[:, 0]), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize('return_', [3.0, -3.0, 0.0])
def test_value_exactly_the_old_one_or_at_the_edge_has_the_gradient_of_the_formulas(return_):
    # in order: V = V_old, the two edges of the range, and errors of equal size on both sides of the return
    value_new = torch.tensor([1.0, 0.5, -0.5, return_ + 1.0], dtype=torch.float64)
    value_old = torch.tensor([1.0, 0.0, 0.0, return_ - 1.5], dtype=torch.float64)
    x, logit = torch.zeros(4, dtype=torch.float64), torch.zeros(4, 2, dtype=torch.float64)
    data = ppo_data(logit, logit.clone(), x.long(), value_new, value_old, x, torch.full_like(x, return_))
    assert_equals_formulas(data, clip_ratio=0.5, use_value_clip=True)


def test_loss_and_metrics_of_a_gradient_step_for_machines_with_kernels_by_hand():
    # p_new is 1/2 and p_old 3/4: ratio 2/3, clipped at .8. min(3 * 2/3, 3 * .8) = 2, and the row of weight 0 has adv 9
    logit = torch.zeros(2, 2, dtype=torch.float64)
    old = torch.tensor([[math.log(3), 0.0]] * 2, dtype=torch.float64)
    adv, weight = torch.tensor([3.0, 9.0], dtype=torch.float64), torch.tensor([2.0, 0.0], dtype=torch.float64)
    minibatch = {'logit': old, 'action': torch.tensor([0, 0]), 'adv': adv, 'weight': weight}
    spec = LossSpec(measure_kl=True)
    loss, metrics = policy_terms_by_kernel(ZooCategorical(2), logit, minibatch, spec, StepNumbers(entropy_weight=0.5))
    want = {'policy_loss': -2, 'entropy': math.log(2), 'approx_kl': math.log(1.5), 'clipfrac': 1}
    want |= {'kl': 2 / 3 - 1 + math.log(1.5), 'ratio_max': 2 / 3}
    assert loss.item() == pytest.approx(-2 - 0.5 * math.log(2))
    assert {name: x.item() for name, x in metrics.items()} == pytest.approx(want)


# ---- dtypes and forms of the inputs


@each_kind
def test_float32_stays_close_to_float64(kind, continuous):
    data = random_data(kind, continuous, (256,))
    got, want = results(map_tensors(data, lambda x: x.float() if x.is_floating_point() else x)), results(data)
    assert all(x.dtype == torch.float32 and x.shape == () for x in got.values())
    # a rounding of 6e-8 on log-probabilities of up to about ten, then means of 256 terms
    torch.testing.assert_close({k: x.double() for k, x in got.items()}, want, rtol=1e-4, atol=1e-5)


@each_kind
def test_half_precision_policies_are_computed_in_float32(kind, continuous):
    data = random_data(kind, continuous, dtype=torch.float32)
    half = map_tensors(data, torch.Tensor.bfloat16).logit_new
    full = map_tensors(data, lambda x: x.bfloat16().float()).logit_new
    assert results(data._replace(logit_new=half)) == results(data._replace(logit_new=full))
    *parts, _ = leaves(data._replace(logit_new=half))
    *wanted, _ = leaves(data._replace(logit_new=full))
    got = gradient(total(data._replace(logit_new=half)), parts)
    want = gradient(total(data._replace(logit_new=full)), wanted)
    # bfloat16 has 8 bits
    torch.testing.assert_close([x.float() for x in got], list(want), rtol=2**-7, atol=1e-4)


@each_kind
def test_flat_parameters_with_dist_give_the_losses_and_gradients_of_the_container(kind, continuous):
    data = random_data(kind, continuous, (3, 4))
    logits = [name for name in data._fields if name.startswith('logit')]
    dist, *flat = from_logits(*(getattr(data, name) for name in logits))
    flat[0] = flat[0].clone().requires_grad_()
    *parts, _ = leaves(data)
    want, got = results(data), results(data._replace(**dict(zip(logits, flat, strict=True))), dist=dist)
    assert got == want
    for name in want.keys() - INFO - {'value_loss', 'auxiliary_loss'}:
        (grad,) = gradient(got[name], flat[:1])
        torch.testing.assert_close(grad, torch.cat(gradient(want[name], parts), -1), rtol=0, atol=0)


@each_loss
def test_the_old_policy_may_be_any_mapping_and_a_weight_of_any_dtype(kind):
    data = random_data(kind, continuous=True)._replace(weight=None)
    block = data._replace(logit_old=UserDict(data.logit_old), weight=torch.ones(12, dtype=torch.bool))
    torch.testing.assert_close(results(block), results(data), rtol=1e-12, atol=1e-12)


# ---- rows, choices and inputs without influence


@each_kind
def test_rows_of_weight_zero_have_no_influence(kind, continuous):
    data = random_data(kind, continuous)
    zero = data.weight == 0
    assert 0 < zero.sum() < 12

    def others(x: Tensor) -> Tensor:
        return torch.where(zero.view(-1, *[1] * (x.dim() - 1)), x.flip(0), x)

    found = []
    for each in (data, map_tensors(data, others)._replace(weight=data.weight)):
        each = map_tensors(each, torch.clone)
        wrt, values = leaves(each), results(each)
        grads = gradient(total(each), wrt)
        assert all((grad[zero] == 0).all() for grad in grads)
        found.append((*values.values(), *grads))
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


@each_loss
@pytest.mark.parametrize('scale', [1.0, 64.0])  # 64: a loss that is scaled up, e.g. for half precision
def test_masked_choices_give_the_losses_and_gradient_of_policies_without_them(kind, scale):
    data = random_data(kind, dtype=torch.float32)
    never = torch.full((12, 1), -torch.inf)
    logits = {name: torch.cat((getattr(data, name), never), -1) for name in data._fields if name.startswith('logit')}
    masked = map_tensors(data._replace(**logits), torch.clone)
    small, large = leaves(data)[0], leaves(masked)[0]
    torch.testing.assert_close(results(masked), results(data))
    (want,), (got,) = gradient(scale * total(data), [small]), gradient(scale * total(masked), [large])
    torch.testing.assert_close(got, torch.nn.functional.pad(want, (0, 1)))
    assert (got[:, 3] == 0).all()


@each_kind
def test_backward_again_gives_the_same_gradient_in_new_policy_and_value_alone_and_changes_no_input(kind, continuous):
    data = map_tensors(random_data(kind, continuous), lambda x: x.requires_grad_(x.is_floating_point()))
    data = data._replace(action=data.action.detach())
    before, wanted = [x.detach().clone() for x in tensors_of(data)], leaves(data)
    loss = total(data)
    first = torch.autograd.grad(loss, wanted, retain_graph=True)
    loss.backward()
    assert all(torch.equal(x, y) for x, y in zip(tensors_of(data), before, strict=True))
    assert [id(x) for x in tensors_of(data) if x.grad is not None] == [id(x) for x in wanted]
    assert all(torch.equal(x.grad, y) for x, y in zip(wanted, first, strict=True))


# ---- numbers that are not finite


# for each input that can hold such a number: the results that can become NaN or infinite
@pytest.mark.parametrize(
    'kind, continuous, name, key, spoilt',
    [
        (ppo_data, False, 'logit_new', None, 'policy_loss entropy_loss kl_div approx_kl clipfrac'),
        (ppo_data, False, 'logit_old', None, 'policy_loss approx_kl clipfrac'),
        (ppo_data, False, 'logit_pretrained', None, 'kl_div'),
        (ppo_data, False, 'adv', None, 'policy_loss'),
        (ppo_data, False, 'weight', None, 'policy_loss value_loss entropy_loss kl_div approx_kl clipfrac'),
        (ppo_data, False, 'value_new', None, 'value_loss'),
        (ppo_data, False, 'value_old', None, 'value_loss'),
        (ppo_data, False, 'return_', None, 'value_loss'),
        (ppo_data, True, 'logit_new', 'mu', 'policy_loss kl_div approx_kl clipfrac'),
        (ppo_data, True, 'logit_new', 'sigma', 'policy_loss entropy_loss kl_div approx_kl clipfrac'),
        (ppo_data, True, 'logit_old', 'mu', 'policy_loss approx_kl clipfrac'),
        (ppo_data, True, 'logit_old', 'sigma', 'policy_loss approx_kl clipfrac'),
        (ppo_data, True, 'action', None, 'policy_loss kl_div approx_kl clipfrac'),
        (ppg_data, False, 'logit_new', None, 'behavioral_cloning_loss'),
        (ppg_data, False, 'logit_old', None, 'behavioral_cloning_loss'),
        (ppg_data, True, 'logit_new', 'mu', 'behavioral_cloning_loss'),
        (ppg_data, True, 'logit_new', 'sigma', 'behavioral_cloning_loss'),
        (ppg_data, True, 'logit_old', 'mu', 'behavioral_cloning_loss'),
        (ppg_data, True, 'logit_old', 'sigma', 'behavioral_cloning_loss'),
        (ppg_data, False, 'weight', None, 'auxiliary_loss behavioral_cloning_loss'),
        (ppg_data, False, 'value_new', None, 'auxiliary_loss'),
        (ppg_data, False, 'value_old', None, 'auxiliary_loss'),
        (ppg_data, False, 'return_', None, 'auxiliary_loss'),
    ],
)
@pytest.mark.parametrize('wrong', [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_never_gives_finite_results(wrong, kind, continuous, name, key, spoilt):
    fields = set(spoilt.split())
    for sign, dual_clip in [(1, None), (-1, None), (1, 3.0), (-1, 3.0)] if kind is ppo_data else [(1, None)]:
        data, options = random_data(kind, continuous)._replace(weight=torch.ones(12, dtype=torch.float64)), {}
        if kind is ppo_data:
            data, options = data._replace(adv=sign * data.adv.abs()), dict(dual_clip=dual_clip, kl_type='k3')
        x = getattr(data, name) if key is None else getattr(data, name)[key]
        x[(3,) if wrong == -math.inf else (3, 1)[: x.dim()]] = wrong  # -inf in a choice is a mask, in a row an error
        wrt, found = leaves(data), results(data, **options)
        broken = {field for field, x in found.items() if not x.isfinite()}
        if not math.isnan(wrong):  # a clip may hide an infinite ratio from some of the results
            assert fields & broken
            continue
        assert {field for field, x in found.items() if x.isnan()} == broken == fields
        grads = {field: gradient(found[field], wrt) for field in fields - INFO}
        assert all(grad[[0, 1, 2, 4]].isfinite().all() for each in grads.values() for grad in each)
        # the gradient of a clipped row does not contain the weight
        assert name == 'weight' or all(any(grad[3].isnan().any() for grad in each) for each in grads.values())


@pytest.mark.long
def test_losses_compile_as_one_graph_with_the_same_results():
    batches = [random_data(*kind) for kind in KINDS]

    def sum_of(batches: list[Data]) -> Tensor:
        return sum(
            total(data, **(dict(dual_clip=2.0, kl_type='k3') if isinstance(data, ppo_data) else {})) for data in batches
        )

    wrt = [x for data in batches for x in leaves(data)]
    want, got = sum_of(batches), torch.compile(sum_of, fullgraph=True, backend='aot_eager')(batches)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, wrt), torch.autograd.grad(want, wrt))
