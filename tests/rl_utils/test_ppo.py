"""The PPO losses by hand: values, gradients, invariances. Two choices, float64 throughout."""

from __future__ import annotations

import math
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor

from zoo.rl_utils.distribution import from_logits
from zoo.rl_utils.ppo import (
    MAX_LOG_RATIO,
    ppo_data,
    ppo_error,
    ppo_error_continuous,
    ppo_policy_data,
    ppo_policy_error,
    ppo_policy_error_continuous,
    ppo_value_data,
    ppo_value_error,
)


def tensor(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def two_choices(p: Tensor) -> Tensor:
    """Logits [N, 2] of policies that take choice 0 with probability p."""
    return torch.stack((p, 1 - p), -1).log()


def ratio_data(ratio: Tensor, adv: Tensor, p_old: float = 0.1) -> ppo_policy_data:
    """Rows in which choice 0 was taken and is now `ratio` times as likely as it was (p_old)."""
    new, old = two_choices(p_old * ratio).requires_grad_(), two_choices(torch.full_like(ratio, p_old))
    return ppo_policy_data(new, old, torch.zeros(len(ratio), dtype=torch.int64), adv)


def slope(loss: Tensor, data: ppo_policy_data) -> Tensor:
    """d(-N * loss) / d logp_new of each row, of d logp(0) / d logit_0 = 1 - p_new."""
    (grad,) = torch.autograd.grad(-len(data.adv) * loss, data.logit_new)
    torch.testing.assert_close(grad[:, 0], -grad[:, 1])  # the logits' gradients of a row add up to 0
    return grad[:, 0] / (1 - data.logit_new.softmax(-1)[:, 0])


# clip_ratio .2: the range is [.8, 1.2]; surrogate = min(ratio * adv, clipped * adv), slope = ratio * adv or 0
CLIP_CASES = [
    (1.1, 2.0, 2.2, 2.2),  # inside
    (0.9, -2.0, -1.8, -1.8),  # inside
    (1.5, 1.0, 1.2, 0.0),  # above and better still: clipped
    (0.5, 1.0, 0.5, 0.5),  # below and worse: min(.5, .8), it may come back
    (1.5, -1.0, -1.5, -1.5),  # above and worse: min(-1.5, -1.2)
    (0.5, -1.0, -0.8, 0.0),  # below and better still: min(-.5, -.8)
    (1.0, 3.0, 3.0, 3.0),
    (1.0, -3.0, -3.0, -3.0),
    (1.5, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize('ratio, adv, surrogate, gradient', CLIP_CASES)
@pytest.mark.parametrize('dual_clip', [None, 4.0])  # 4 * -1 lies below all of these
def test_policy_loss_of_one_row_by_hand(ratio, adv, surrogate, gradient, dual_clip):
    data = ratio_data(tensor(ratio), tensor(adv))
    loss, _ = ppo_policy_error(data, 0.2, dual_clip)
    assert loss.policy_loss.item() == pytest.approx(-surrogate)
    assert slope(loss.policy_loss, data).item() == pytest.approx(gradient)


def test_policy_loss_is_the_mean_over_rows():
    ratio, adv, surrogate, gradient = (tensor(*column) for column in zip(*CLIP_CASES, strict=True))
    data = ratio_data(ratio, adv)
    loss, _ = ppo_policy_error(data, 0.2)
    torch.testing.assert_close(loss.policy_loss, -surrogate.mean())
    torch.testing.assert_close(slope(loss.policy_loss, data), gradient)


@pytest.mark.parametrize(
    'ratio, adv, surrogate, gradient',
    [
        (5.0, -1.0, -3.0, 0.0),  # min(-5, -1.2) = -5, but no lower than 3 * -1
        (2.0, -1.0, -2.0, -2.0),  # not so low
        (5.0, -2.0, -6.0, 0.0),
        (0.5, -1.0, -0.8, 0.0),  # clipped from the other side, the bound -3 does not hold
        (5.0, 1.0, 1.2, 0.0),  # adv > 0: no dual clip, else max(1.2, 3)
        (0.5, 1.0, 0.5, 0.5),
        (5.0, 0.0, 0.0, 0.0),
    ],
)
def test_policy_loss_dual_clip_by_hand(ratio, adv, surrogate, gradient):
    data = ratio_data(tensor(ratio), tensor(adv))
    loss, _ = ppo_policy_error(data, 0.2, dual_clip=3.0)
    assert loss.policy_loss.item() == pytest.approx(-surrogate)
    assert slope(loss.policy_loss, data).item() == pytest.approx(gradient)


@pytest.mark.parametrize('adv, surrogate', [(1.0, 1.2), (-1.0, -3.0)])
def test_policy_gradient_stays_zero_where_a_clipped_ratio_overflows(adv, surrogate):
    # ratio = exp(200) is infinite in float32; clipped, the row is worth 1.2, or by the dual clip -3, without gradient
    new = torch.tensor([[100.0, -100.0]], requires_grad=True)
    data = ppo_policy_data(new, -new.detach(), torch.tensor([0]), torch.tensor([adv]))
    loss, _ = ppo_policy_error(data, dual_clip=3.0)
    loss.policy_loss.backward()
    assert loss.policy_loss.item() == pytest.approx(-surrogate)
    assert new.grad.tolist() == [[0.0, 0.0]]


def test_a_row_of_weight_zero_has_no_influence_even_where_its_ratio_overflows():
    # the second row alone: ratio 1, adv 1, weight 2 of N = 2; d logp / d logit = (.5, -.5)
    new = torch.tensor([[100.0, -100.0], [0.0, 0.0]], requires_grad=True)
    adv, weight = torch.tensor([-1.0, 1.0]), torch.tensor([0.0, 2.0])
    data = ppo_policy_data(new, -new.detach(), torch.tensor([0, 0]), adv, weight)
    loss, _ = ppo_policy_error(data)
    loss.policy_loss.backward()
    assert loss.policy_loss.item() == pytest.approx(-1.0)
    assert new.grad.tolist() == [[0.0, 0.0], [-0.5, 0.5]]


def test_entropy_loss_by_hand_and_its_sign():
    # H(.5, .5) = ln 2 = .693147, H(.25, .75) = .562335; the mean is .627741. More even means more entropy.
    data = ratio_data(tensor(1.0, 0.5), tensor(0.0, 0.0), p_old=0.5)
    loss, _ = ppo_policy_error(data)
    assert loss.entropy_loss.item() == pytest.approx(0.627741, abs=1e-6)
    loss.entropy_loss.backward()
    # d H / d logit_0 of (.25, .75) = -.25 * (ln .25 + .562335) = .205990, halved by the mean
    torch.testing.assert_close(
        data.logit_new.grad, torch.stack((tensor(0, 0), tensor(0.102995, -0.102995))), rtol=0, atol=1e-6
    )


def test_entropy_bonus_off_gives_a_zero_and_the_same_policy_loss():
    data = ratio_data(tensor(1.1, 0.7), tensor(1.0, -1.0))
    with_bonus, _ = ppo_policy_error(data)
    without, _ = ppo_policy_error(data, entropy_bonus=False)
    assert without.entropy_loss.shape == () and without.entropy_loss.item() == 0 != with_bonus.entropy_loss.item()
    assert torch.equal(without.policy_loss, with_bonus.policy_loss)
    grads = [slope(loss.policy_loss, data) for loss in (with_bonus, without)]
    assert torch.equal(*grads)


def test_info_by_hand():
    # mean(log p_old - log p_new) = -(ln 1.5 + ln .5 + ln 1.1 + ln 1) / 4; two of the four lie outside [.8, 1.2]
    data = ratio_data(tensor(1.5, 0.5, 1.1, 1.0), tensor(1.0, -1.0, 2.0, 0.0))
    _, info = ppo_policy_error(data)
    assert info.approx_kl.item() == pytest.approx(-math.log(1.5 * 0.5 * 1.1) / 4)
    assert info.clipfrac.item() == 0.5
    for metric in info:
        assert metric.shape == () and not metric.requires_grad


def test_info_is_a_mean_over_the_weight_by_hand():
    # the second and third row have ratios outside [.8, 1.2]: (1 + 3) / (2 + 1 + 3 + 0) of the weight; the last is not
    # there. sum(w * -ln r) / sum(w) = -(2 ln 1.1 + ln .5 + 3 ln 1.5) / 6
    data = ratio_data(tensor(1.1, 0.5, 1.5, 1.9), tensor(1.0, -1.0, 2.0, 0.0))
    _, info = ppo_policy_error(data._replace(weight=tensor(2, 1, 3, 0)))
    assert info.clipfrac.item() == pytest.approx(4 / 6)
    assert info.approx_kl.item() == pytest.approx(-(2 * math.log(1.1) + math.log(0.5) + 3 * math.log(1.5)) / 6)


def test_info_of_rows_without_any_weight_is_zero():
    data = ratio_data(tensor(1.5, 0.5), tensor(1.0, -1.0))
    _, info = ppo_policy_error(data._replace(weight=tensor(0, 0)))
    assert (info.approx_kl.item(), info.clipfrac.item()) == (0, 0)


# log_r = log(p_pretrained / p_new) with p_new = .5: ln(.25 / .5) = -.693147 and ln(.6 / .5) = .182322
@pytest.mark.parametrize(
    'kl_type, rows, gradient',
    [
        ('k1', (0.693147, -0.182322), (1.0, 1.0)),  # -log_r
        ('k2', (0.240227, 0.016621), (0.693147, -0.182322)),  # log_r^2 / 2, slope -log_r
        ('k3', (0.193147, 0.017678), (0.5, -0.2)),  # r - 1 - log_r, slope 1 - r
    ],
)
@pytest.mark.parametrize('weight', [None, (1.5, 0.5)])
def test_kl_to_a_pretrained_policy_by_hand(kl_type, rows, gradient, weight):
    data = ratio_data(tensor(1.0, 1.0), tensor(1.0, 1.0), p_old=0.5)
    scale = tensor(*(weight or (1.0, 1.0)))
    data = data._replace(logit_pretrained=two_choices(tensor(0.25, 0.6)), weight=None if weight is None else scale)
    loss, _ = ppo_policy_error(data, kl_type=kl_type)
    torch.testing.assert_close(loss.kl_div, (tensor(*rows) * scale).mean(), rtol=0, atol=1e-6)
    torch.testing.assert_close(slope(-loss.kl_div, data), tensor(*gradient) * scale, rtol=0, atol=2e-6)


def test_kl_without_a_pretrained_policy_is_a_zero():
    loss, _ = ppo_policy_error(ratio_data(tensor(1.5), tensor(1.0)), kl_type='k3')
    assert loss.kl_div.shape == () and loss.kl_div.item() == 0


# R, V, V_old, clip .5 -> max((R - V)^2, (R - V_clip)^2) and the slope of half of it in V
@pytest.mark.parametrize(
    'return_, value_new, value_old, square, gradient',
    [
        (1.0, 0.2, 0.0, 0.64, -0.8),  # inside: V_clip = V
        (3.0, 2.0, 0.0, 6.25, 0.0),  # V_clip = .5 is further off: clipped, no gradient
        (-1.0, 2.0, 0.0, 9.0, 3.0),  # V_clip = .5 is nearer: V counts
        (3.0, -2.0, 0.0, 25.0, -5.0),  # moved away from R: V_clip = -.5, (3.5)^2 < 25
        (0.0, -2.0, -1.0, 4.0, -2.0),  # V_clip = -1.5
        (1.0, 4.0, 4.0, 9.0, 3.0),  # V exactly V_old
        (2.0, 2.0, 2.0, 0.0, 0.0),
        (5.0, 0.5, 0.0, 20.25, -4.5),  # at the edge of the range V_clip = V still
        (0.75, 1.0, 0.0, 0.0625, 0.125),  # both errors are .25 but V_clip stands still: torch.max gives half to each
    ],
)
def test_value_loss_of_one_row_by_hand(return_, value_new, value_old, square, gradient):
    value = tensor(value_new).requires_grad_()
    loss = ppo_value_error(ppo_value_data(value, tensor(value_old), tensor(return_)), clip_ratio=0.5)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * square)
    assert value.grad.item() == pytest.approx(gradient)


def test_value_loss_without_clip_by_hand():
    # 0.5 * mean(1 * 4, 3 * 1) with weights 1 and 3; slopes (V - R) * weight / N
    value = tensor(3.0, 1.0).requires_grad_()
    data = ppo_value_data(value, tensor(100.0, -100.0), tensor(1.0, 2.0), tensor(1.0, 3.0))
    loss = ppo_value_error(data, use_value_clip=False)
    loss.backward()
    assert loss.item() == pytest.approx(1.75)
    assert value.grad.tolist() == pytest.approx([1.0, -1.5])


def random_data(n: int = 12, continuous: bool = False, dtype: torch.dtype = torch.float64) -> ppo_data:
    """A batch with a weight and a pretrained policy; ratios on both sides of the clip range."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    def logit() -> Any:
        return {'mu': draw(n, 2), 'sigma': (0.3 * draw(n, 2)).exp()} if continuous else draw(n, 3)

    action = draw(n, 2) if continuous else torch.randint(3, (n,), generator=generator)
    return ppo_data(logit(), logit(), action, draw(n), draw(n), draw(n), draw(n), draw(n).abs(), logit())


def map_tensors(data: Any, function: Any) -> Any:
    """The same named tuple with the function applied to every tensor of it."""
    return data._replace(
        **{
            name: {k: function(v) for k, v in x.items()} if isinstance(x, dict) else function(x)
            for name, x in data._asdict().items()
            if x is not None
        }
    )


def policy_part(data: ppo_data) -> ppo_policy_data:
    return ppo_policy_data(data.logit_new, data.logit_old, data.action, data.adv, data.weight, data.logit_pretrained)


def tensors_of(data: Any) -> list[Tensor]:
    return [x for value in data for x in (value.values() if isinstance(value, dict) else [value]) if x is not None]


def leaves(data: ppo_data) -> list[Tensor]:
    """The inputs that have a gradient, made to require it."""
    parts = [data.logit_new] if isinstance(data.logit_new, Tensor) else list(data.logit_new.values())
    return [x.requires_grad_() for x in (*parts, data.value_new)]


@pytest.mark.parametrize('continuous', [False, True])
def test_ppo_error_is_its_two_parts(continuous):
    data = random_data(continuous=continuous)
    loss, info = ppo_error(data, 0.3, True, 2.0, 'k2')
    policy, policy_info = ppo_policy_error(policy_part(data), 0.3, 2.0, kl_type='k2')
    value = ppo_value_error(ppo_value_data(data.value_new, data.value_old, data.return_, data.weight), 0.3, True)
    assert (loss.policy_loss, loss.entropy_loss, loss.kl_div) == tuple(policy) and loss.value_loss == value
    assert info == policy_info
    assert loss.value_loss != ppo_error(data, 0.3, False)[0].value_loss  # use_value_clip arrives
    assert all(x.shape == () for x in (*loss, *info))


@pytest.mark.parametrize('continuous', [False, True])
def test_continuous_names_are_the_same_losses(continuous):
    data = random_data(continuous=continuous)
    assert ppo_error_continuous(data) == ppo_error(data)
    assert ppo_policy_error_continuous(policy_part(data)) == ppo_policy_error(policy_part(data))


def test_continuous_policy_loss_takes_kl_type_as_its_fourth_argument_as_in_di_engine():
    data = policy_part(random_data(continuous=True))
    want = ppo_policy_error(data, 0.1, 3.0, kl_type='k3')[0]
    got = ppo_policy_error_continuous(data, 0.1, 3.0, 'k3')[0]
    assert got == want and want.kl_div != ppo_policy_error(data, 0.1, 3.0)[0].kl_div
    with pytest.raises(ValueError, match='kl_type'):
        ppo_policy_error_continuous(data, 0.1, 3.0, False)


@pytest.mark.parametrize('continuous', [False, True])
def test_losses_do_not_depend_on_the_order_of_rows(continuous):
    data = random_data(continuous=continuous)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    got, want = ppo_error(map_tensors(data, lambda x: x[order]), dual_clip=2.0), ppo_error(data, dual_clip=2.0)
    torch.testing.assert_close((*got[0], *got[1]), (*want[0], *want[1]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('continuous', [False, True])
def test_losses_scale_with_advantage_and_weight(continuous):
    data = random_data(continuous=continuous)
    loss, info = ppo_error(data, dual_clip=2.0)
    three_adv, _ = ppo_error(data._replace(adv=3 * data.adv), dual_clip=2.0)
    torch.testing.assert_close(three_adv.policy_loss, 3 * loss.policy_loss)
    assert torch.equal(three_adv.entropy_loss, loss.entropy_loss)
    # losses are plain means, not divided by the weights' sum; the metrics are weighted ones
    double, double_info = ppo_error(data._replace(weight=2 * data.weight), dual_clip=2.0)
    torch.testing.assert_close((*double, *double_info), (*(2 * x for x in loss), *info))


def test_weight_of_ones_is_no_weight():
    data = random_data()
    for weight in (torch.ones(12, dtype=torch.float64), torch.ones(12, dtype=torch.bool)):
        got, want = ppo_error(data._replace(weight=weight)), ppo_error(data._replace(weight=None))
        torch.testing.assert_close((*got[0], *got[1]), (*want[0], *want[1]), rtol=1e-12, atol=1e-12)


def test_logits_shifted_by_a_row_constant_change_nothing():
    data = random_data()
    shift = torch.linspace(-5, 5, 12, dtype=torch.float64).unsqueeze(-1)
    got, want = ppo_error(data._replace(logit_new=data.logit_new + shift)), ppo_error(data)
    torch.testing.assert_close((*got[0], *got[1]), (*want[0], *want[1]), rtol=1e-12, atol=1e-12)


def test_value_loss_does_not_change_under_shift_and_mirror():
    data = random_data()
    v, v_old, r = data.value_new, data.value_old, data.return_
    want = ppo_value_error(ppo_value_data(v, v_old, r))
    torch.testing.assert_close(ppo_value_error(ppo_value_data(v + 7, v_old + 7, r + 7)), want)
    torch.testing.assert_close(ppo_value_error(ppo_value_data(-v, -v_old, -r)), want)


@pytest.mark.parametrize('continuous', [False, True])
def test_rows_of_weight_zero_have_no_influence(continuous):
    data = random_data(continuous=continuous)
    zero = torch.arange(12) % 3 == 0
    data = data._replace(weight=data.weight.masked_fill(zero, 0))

    def losses_and_gradients(data: ppo_data) -> list[Tensor]:
        data = map_tensors(data, lambda x: x.clone().requires_grad_() if x.dtype == torch.float64 else x)
        loss, info = ppo_error(data, dual_clip=2.0, kl_type='k3')
        parts = [*(data.logit_new.values() if continuous else [data.logit_new]), data.value_new]
        grads = torch.autograd.grad(sum(loss), parts)
        assert all((grad[zero] == 0).all() for grad in grads)
        return [x.detach() for x in (*loss, *info, *grads)]

    def replaced(x: Tensor) -> Tensor:
        return torch.where(zero.view(-1, *[1] * (x.dim() - 1)), x.flip(0), x)

    other = map_tensors(data, replaced)._replace(weight=data.weight)
    assert not torch.equal(other.adv, data.adv)
    assert all(torch.equal(x, y) for x, y in zip(losses_and_gradients(data), losses_and_gradients(other), strict=True))


@pytest.mark.parametrize('scale', [1.0, 64.0])  # 64: a loss that is scaled up, e.g. for half precision
def test_masked_choices_give_the_loss_and_gradient_of_a_policy_without_them(scale):
    data = map_tensors(random_data(), lambda x: x.float() if x.is_floating_point() else x)
    never = torch.full((12, 1), -torch.inf)
    small = data.logit_new.clone().requires_grad_()
    large = torch.cat((data.logit_new, never), -1).requires_grad_()
    masked = data._replace(
        logit_new=large,
        logit_old=torch.cat((data.logit_old, never), -1),
        logit_pretrained=torch.cat((data.logit_pretrained, never), -1),
    )
    want, got = ppo_error(data._replace(logit_new=small), kl_type='k3'), ppo_error(masked, kl_type='k3')
    for loss in (want[0], got[0]):
        (scale * (loss.policy_loss - loss.entropy_loss + loss.kl_div)).backward()
    torch.testing.assert_close((*got[0], *got[1]), (*want[0], *want[1]))
    torch.testing.assert_close(large.grad, torch.nn.functional.pad(small.grad, (0, 1)))


@pytest.mark.parametrize('continuous', [False, True])
def test_inputs_are_unchanged_by_loss_and_backward(continuous):
    data = map_tensors(random_data(continuous=continuous), lambda x: x.requires_grad_(x.is_floating_point()))
    before = [x.detach().clone() for x in tensors_of(data)]
    loss, _ = ppo_error(data, dual_clip=2.0)
    sum(loss).backward()
    assert all(torch.equal(x, y) for x, y in zip(tensors_of(data), before, strict=True))


@pytest.mark.parametrize('continuous', [False, True])
def test_a_second_backward_over_the_kept_graph_gives_the_same_gradient(continuous):
    data = random_data(continuous=continuous)
    parts = leaves(data)
    total = sum(ppo_error(data, dual_clip=2.0)[0])
    first, second = (torch.autograd.grad(total, parts, retain_graph=True) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_old_policy_may_be_any_mapping():
    data = random_data(continuous=True)
    block = data._replace(logit_old=UserDict(data.logit_old))
    assert ppo_error(block) == ppo_error(data)


@pytest.mark.parametrize('continuous', [False, True])
@pytest.mark.parametrize('lead', [(12, 1), (3, 4), (2, 3, 2)])
def test_losses_of_a_batch_with_more_dimensions_are_those_of_the_flattened_one(continuous, lead):
    flat = random_data(continuous=continuous)
    data = map_tensors(flat, lambda x: x.view(*lead, *x.shape[1:]))
    want, got = ppo_error(flat, dual_clip=2.0, kl_type='k2'), ppo_error(data, dual_clip=2.0, kl_type='k2')
    torch.testing.assert_close((*got[0], *got[1]), (*want[0], *want[1]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize('dtype', [torch.uint8, torch.int32])
def test_an_action_may_have_any_integer_dtype(dtype):
    data = random_data()
    assert ppo_error(data._replace(action=data.action.to(dtype))) == ppo_error(data)


@pytest.mark.parametrize('continuous', [False, True])
def test_advantages_in_float64_with_a_float32_policy_are_taken(continuous):
    # what numpy makes of Python numbers
    data = map_tensors(random_data(continuous=continuous), lambda x: x.float() if x.is_floating_point() else x)
    parts = [x.requires_grad_() for x in (data.logit_new.values() if continuous else [data.logit_new])]
    want, got = (
        torch.autograd.grad(ppo_policy_error(policy_part(x))[0].policy_loss, parts)
        for x in (data, data._replace(adv=data.adv.double()))
    )
    torch.testing.assert_close(got, want)


# NaN in one row, and a number so far off that it is infinite, in every place where either can stand
@pytest.mark.parametrize('wrong', [float('nan'), float('inf'), -float('inf')])
@pytest.mark.parametrize('dual_clip', [None, 3.0])
@pytest.mark.parametrize('adv_sign', [1.0, -1.0])
@pytest.mark.parametrize(
    'continuous, name, key, spoilt',
    [
        (False, 'logit_new', None, 'policy_loss entropy_loss kl_div approx_kl clipfrac'),
        (False, 'logit_old', None, 'policy_loss approx_kl clipfrac'),
        (False, 'logit_pretrained', None, 'kl_div'),
        (False, 'adv', None, 'policy_loss'),
        (False, 'weight', None, 'policy_loss value_loss entropy_loss kl_div approx_kl clipfrac'),
        (False, 'value_new', None, 'value_loss'),
        (False, 'value_old', None, 'value_loss'),
        (False, 'return_', None, 'value_loss'),
        (True, 'logit_new', 'mu', 'policy_loss kl_div approx_kl clipfrac'),
        (True, 'logit_new', 'sigma', 'policy_loss entropy_loss kl_div approx_kl clipfrac'),
        (True, 'logit_old', 'mu', 'policy_loss approx_kl clipfrac'),
        (True, 'logit_old', 'sigma', 'policy_loss approx_kl clipfrac'),
        (True, 'action', None, 'policy_loss kl_div approx_kl clipfrac'),
    ],
)
def test_a_number_that_is_not_finite_never_gives_finite_results(
    wrong, dual_clip, adv_sign, continuous, name, key, spoilt
):
    data = random_data(continuous=continuous)
    data = data._replace(adv=adv_sign * data.adv.abs())
    x = getattr(data, name) if key is None else getattr(data, name)[key]
    x[(3,) if wrong == -math.inf else (3, 1)[: x.dim()]] = wrong  # one choice at -inf is only masked, a row is wrong
    parts = leaves(data)
    loss, info = ppo_error(data, dual_clip=dual_clip, kl_type='k3')
    result = {**loss._asdict(), **info._asdict()}
    if not math.isnan(wrong):  # a density may be 0 or infinite, a ratio of them clipped: the rest says it
        assert not all(result[field].isfinite() for field in spoilt.split())
        return
    assert {field for field, x in result.items() if x.isnan()} == set(spoilt.split())
    fields = set(spoilt.split()) & set(loss._fields)
    if name == 'weight':
        fields -= {'policy_loss', 'value_loss'}  # row 3 is clipped in both: no gradient, with any weight
    for field in fields:
        grads = torch.autograd.grad(result[field], parts, retain_graph=True, allow_unused=True)
        assert any(grad[3].isnan().any() for grad in grads if grad is not None)
        assert all(grad[[0, 1, 2, 4]].isfinite().all() for grad in grads if grad is not None)


def test_kl_to_a_pretrained_policy_ignores_rows_of_weight_zero_that_overflow():
    # exp(800) is infinite; the other row has p = p_pretrained
    new = torch.stack((tensor(-400, 400), tensor(0, 0))).requires_grad_()
    data = ppo_policy_data(
        new,
        torch.zeros_like(new),
        torch.tensor([0, 0]),
        tensor(1, 1),
        tensor(0, 2),
        torch.stack((tensor(400, -400), tensor(0, 0))),
    )
    loss, _ = ppo_policy_error(data, kl_type='k3')
    (grad,) = torch.autograd.grad(loss.kl_div, new)
    assert loss.kl_div.item() == 0 and grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.long
@pytest.mark.parametrize('continuous', [False, True])
def test_losses_compile_as_one_graph_with_the_same_results(continuous):
    data = random_data(continuous=continuous)
    parts = leaves(data)

    def total(data: ppo_data) -> tuple[Tensor, Any]:
        loss, info = ppo_error(data, dual_clip=2.0, kl_type='k3')
        return loss.policy_loss + 0.5 * loss.value_loss - 0.01 * loss.entropy_loss + loss.kl_div, info

    want, want_info = total(data)
    got, got_info = torch.compile(total, fullgraph=True, backend='aot_eager')(data)
    torch.testing.assert_close((got, *got_info), (want, *want_info))
    torch.testing.assert_close(torch.autograd.grad(got, parts), torch.autograd.grad(want, parts))


def test_losses_take_bfloat16_gaussians_in_full_precision():
    data = map_tensors(random_data(continuous=True), lambda x: x.float())
    half = {k: v.bfloat16() for k, v in data.logit_new.items()}
    full = {k: v.float() for k, v in half.items()}
    got, want = (ppo_error(data._replace(logit_new=logit)) for logit in (half, full))
    assert got == want


def test_losses_take_bfloat16_logits():
    # what a network gives under autocast; adv stays float32. 8 bits: a relative error of 2^-8 per logit.
    data = map_tensors(random_data(), lambda x: x.float() if x.is_floating_point() else x)
    half = data.logit_new.bfloat16().requires_grad_()
    loss, _ = ppo_error(data._replace(logit_new=half))
    (loss.policy_loss - loss.entropy_loss).backward()
    full = half.detach().float().requires_grad_()
    want, _ = ppo_error(data._replace(logit_new=full))
    (want.policy_loss - want.entropy_loss).backward()
    torch.testing.assert_close(half.grad.float(), full.grad, rtol=0.1, atol=0.02)


def test_half_precision_advantages_lose_nothing_more():
    data = policy_part(random_data())._replace(logit_pretrained=None)
    for dtype in (torch.float16, torch.bfloat16):
        adv = data.adv.to(dtype)
        got, want = ppo_policy_error(data._replace(adv=adv))[0], ppo_policy_error(data._replace(adv=adv.double()))[0]
        torch.testing.assert_close(got.policy_loss, want.policy_loss, rtol=1e-6, atol=0, check_dtype=False)


@pytest.mark.parametrize('dual_clip', [None, 1.5])
def test_weights_below_zero_multiply_the_surrogate_after_its_minimum(dual_clip):
    # ratio 2, clip .2: adv 1 -> surrogate 1.2, adv -1 -> -2 (dual clip: -1.5); weights -1 and -1
    logit_new, logit_old = torch.tensor([[2.0, 1.0]] * 2).log(), torch.tensor([[1.0, 2.0]] * 2).log()
    data = ppo_policy_data(logit_new, logit_old, torch.tensor([0, 0]), torch.tensor([1.0, -1.0]), -torch.ones(2))
    want = (1.2 - (2 if dual_clip is None else 1.5)) / 2
    assert ppo_policy_error(data, 0.2, dual_clip)[0].policy_loss.item() == pytest.approx(want)


@pytest.mark.parametrize('weight', [None, (2.0, 1.0)])
def test_a_ratio_is_capped_at_the_largest_float_and_has_no_gradient_beyond(weight):
    # p_new = .5 and p_old = e^-a, so that log ratio = a - ln 2 = 87.9 and 88.1; adv -1e-30 keeps the products finite
    a = torch.tensor([[87.9], [88.1]]) + math.log(2)
    new, old = torch.zeros(2, 2, requires_grad=True), torch.cat((-a, torch.zeros(2, 1)), -1)
    adv, scale = torch.full((2,), -1e-30), torch.tensor(weight or (1.0, 1.0))
    data = ppo_policy_data(new, old, torch.tensor([0, 0]), adv, None if weight is None else scale)
    loss, info = ppo_policy_error(data)
    loss.policy_loss.backward()
    # surrogate = min(ratio, 1.2) * adv is ratio * adv for adv < 0; e^88 in float32 has the relative error 88 * 6e-8
    rows = [math.exp(min(x, MAX_LOG_RATIO)) * 1e-30 * w for x, w in zip((87.9, 88.1), scale.tolist(), strict=True)]
    assert loss.policy_loss.item() == pytest.approx(sum(rows) / 2, rel=2e-5)
    uncapped = (87.9 * scale[0] + 88.1 * scale[1]) / scale.sum()
    assert info.approx_kl.item() == pytest.approx(-uncapped.item(), rel=1e-6)
    # d logp / d logit = (.5, -.5), halved by the mean
    assert new.grad[0].tolist() == pytest.approx([rows[0] / 4, -rows[0] / 4], rel=2e-5)
    assert not new.grad[1].any()


@pytest.mark.parametrize('clip_ratio', [math.inf, torch.tensor(math.inf)])
def test_an_infinite_clip_ratio_leaves_ratio_and_value_unclipped(clip_ratio):
    # plain importance weighting: -mean(ratio * adv) = -(1.5 - .5 * 3) / 2 = 0 here, with slopes ratio * adv
    data = ratio_data(tensor(1.5, 0.5), tensor(1.0, -3.0))
    loss, info = ppo_policy_error(data, clip_ratio)
    assert loss.policy_loss.item() == pytest.approx(0.0) and info.clipfrac == 0
    torch.testing.assert_close(slope(loss.policy_loss, data), tensor(1.5, -1.5))
    value = ppo_value_data(tensor(4.0), tensor(0.0), tensor(1.0))
    assert ppo_value_error(value, clip_ratio).item() == 4.5  # 3^2 / 2


@pytest.mark.parametrize('continuous', [False, True])
def test_clip_ratio_and_dual_clip_may_be_tensors(continuous):
    data = random_data(continuous=continuous)
    parts = leaves(data)
    want = ppo_error(data, 0.3, True, 1.5, 'k2')
    for dtype in (torch.float32, torch.float64):
        numbers = torch.tensor(0.3, dtype=dtype), True, torch.tensor(1.5, dtype=dtype)
        got = ppo_error(data, *numbers, 'k2')
        # .3 in float32 is off by 1e-8
        torch.testing.assert_close((*got[0], *got[1]), (*want[0], *want[1]), rtol=1e-6, atol=1e-7)
        grads = [torch.autograd.grad(sum(loss[0]), parts, retain_graph=True) for loss in (got, want)]
        torch.testing.assert_close(*grads, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize('continuous', [False, True])
@pytest.mark.parametrize('lead', [(12,), (3, 4)], ids=str)
def test_flat_parameters_with_dist_give_the_losses_and_gradients_of_the_container(lead, continuous):
    data = map_tensors(random_data(continuous=continuous), lambda x: x.view(lead + x.shape[1:]))
    dist, new, old, pretrained = from_logits(data.logit_new, data.logit_old, data.logit_pretrained)
    new = new.clone()
    parts = leaves(data)
    want, want_info = ppo_error(data, dual_clip=1.5, kl_type='k3')
    flat = data._replace(logit_new=new.requires_grad_(), logit_old=old, logit_pretrained=pretrained)
    got, info = ppo_error(flat, dual_clip=1.5, kl_type='k3', dist=dist)
    assert (*got, *info) == (*want, *want_info)
    for name in want._fields:
        grads = torch.autograd.grad(getattr(want, name), parts, retain_graph=True, allow_unused=True)
        if name == 'value_loss':
            assert grads[:-1] == (None,) * len(grads[:-1])
            continue
        (grad,) = torch.autograd.grad(getattr(got, name), new, retain_graph=True)
        torch.testing.assert_close(grad, torch.cat(grads[:-1], -1), rtol=0, atol=0)


@pytest.mark.parametrize('continuous', [False, True])
def test_losses_have_a_gradient_in_the_new_policy_and_value_alone(continuous):
    data = map_tensors(random_data(continuous=continuous), lambda x: x.requires_grad_(x.is_floating_point()))
    data = data._replace(action=data.action.detach())
    wanted = {id(x) for x in leaves(data)}
    sum(ppo_error(data, dual_clip=2.0)[0]).backward()
    for x in tensors_of(data):
        assert (x.grad is not None) == (id(x) in wanted)


def test_value_error_is_computed_without_gradients_where_nobody_asks_for_them():
    value = torch.tensor([1.0, 2.0], requires_grad=True)
    data = ppo_value_data(value, value.detach(), torch.tensor([0.0, 4.0]), None)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert ppo_value_error(data).item() == pytest.approx((1 / 2 + 4 / 2) / 2)
