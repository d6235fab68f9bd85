"""The PPO losses by hand for two choices, mostly in float64; the accepted forms of their arguments."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.rl_utils.loss_formulas import gradient, leaves, random_data
from zoo.rl_utils import surrogates, value_losses
from zoo.rl_utils.ppo import (
    MAX_LOG_RATIO,
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
    """Rows in which choice 0 was taken; its probability was p_old and is now `ratio` times as large."""
    new, old = two_choices(p_old * ratio).requires_grad_(), two_choices(torch.full_like(ratio, p_old))
    return ppo_policy_data(new, old, torch.zeros(len(ratio), dtype=torch.int64), adv)


def slope(loss: Tensor, data: ppo_policy_data) -> Tensor:
    """d(-N * loss) / d logp_new of each row; uses d logp(0) / d logit_0 = 1 - p_new."""
    (grad,) = torch.autograd.grad(-len(data.adv) * loss, data.logit_new)
    torch.testing.assert_close(grad[:, 0], -grad[:, 1])  # the logits' gradients of a row add up to 0
    return grad[:, 0] / (1 - data.logit_new.softmax(-1)[:, 0])


# clip_ratio .2: the range is [.8, 1.2]; surrogate = min(ratio * adv, clipped * adv), slope = ratio * adv or 0
CLIP_ROWS = [
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
DUAL_CLIP_ROWS = [  # dual_clip 3
    (5.0, -1.0, -3.0, 0.0),  # min(-5, -1.2) = -5, but no lower than 3 * -1
    (2.0, -1.0, -2.0, -2.0),  # above the bound -3
    (5.0, -2.0, -6.0, 0.0),
    (0.5, -1.0, -0.8, 0.0),  # clipped at the lower edge; the bound -3 has no effect
    (5.0, 1.0, 1.2, 0.0),  # adv > 0: no dual clip, which would give max(1.2, 3)
    (0.5, 1.0, 0.5, 0.5),
    (5.0, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize(
    'dual_clip, rows',
    [(None, CLIP_ROWS), (4.0, CLIP_ROWS), (3.0, DUAL_CLIP_ROWS)],  # 4 * adv is below every surrogate where adv < 0
    ids=['off', 'out of reach', 'reached'],
)
def test_policy_loss_with_clip_and_dual_clip_by_hand(dual_clip, rows):
    ratio, adv, surrogate, gradient = (tensor(*column) for column in zip(*rows, strict=True))
    data = ratio_data(ratio, adv)
    loss, _ = ppo_policy_error(data, 0.2, dual_clip)
    torch.testing.assert_close(loss.policy_loss, -surrogate.mean())
    torch.testing.assert_close(slope(loss.policy_loss, data), gradient)
    for i, each in enumerate(surrogate.tolist()):  # each row alone: errors may cancel in a mean
        row = ppo_policy_data(*(x[i : i + 1] for x in data[:4]))
        assert ppo_policy_error(row, 0.2, dual_clip)[0].policy_loss.item() == pytest.approx(-each)


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


@pytest.mark.parametrize(
    'weight, share, kl',
    [
        # the second and third row have ratios outside [.8, 1.2]
        (None, 0.5, -math.log(1.1 * 0.5 * 1.5) / 4),
        # (1 + 3) / (2 + 1 + 3 + 0) of the weight; the last row has no weight. sum(w * -ln r) / sum(w)
        ((2, 1, 3, 0), 4 / 6, -(2 * math.log(1.1) + math.log(0.5) + 3 * math.log(1.5)) / 6),
        ((0, 0, 0, 0), 0.0, 0.0),
    ],
)
def test_info_is_a_mean_over_the_weight_by_hand(weight, share, kl):
    data = ratio_data(tensor(1.1, 0.5, 1.5, 1.0), tensor(1.0, -1.0, 2.0, 0.0))
    _, info = ppo_policy_error(data._replace(weight=weight and tensor(*weight)))
    assert (info.clipfrac.item(), info.approx_kl.item()) == (pytest.approx(share), pytest.approx(kl))
    assert not any(x.requires_grad for x in info)


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
VALUE_ROWS = [
    (1.0, 0.2, 0.0, 0.64, -0.8),  # inside: V_clip = V
    (3.0, 2.0, 0.0, 6.25, 0.0),  # V_clip = .5 is further off: clipped, no gradient
    (-1.0, 2.0, 0.0, 9.0, 3.0),  # V_clip = .5 is nearer: V counts
    (3.0, -2.0, 0.0, 25.0, -5.0),  # moved away from R: V_clip = -.5, (3.5)^2 < 25
    (0.0, -2.0, -1.0, 4.0, -2.0),  # V_clip = -1.5
    (1.0, 4.0, 4.0, 9.0, 3.0),  # V exactly V_old
    (2.0, 2.0, 2.0, 0.0, 0.0),
    (5.0, 0.5, 0.0, 20.25, -4.5),  # at the edge of the range V_clip is still V
    (0.75, 1.0, 0.0, 0.0625, 0.125),  # both errors are .25 but V_clip is constant: torch.max gives half to each
]


def test_value_loss_of_each_row_by_hand():
    for return_, value_new, value_old, square, wanted in VALUE_ROWS:
        value = tensor(value_new).requires_grad_()
        data = ppo_value_data(value, tensor(value_old), tensor(return_))
        loss = ppo_value_error(data, clip_ratio=0.5)
        loss.backward()
        assert (loss.item(), value.grad.item()) == (pytest.approx(0.5 * square), pytest.approx(wanted))
        with torch.inference_mode():
            assert ppo_value_error(data, clip_ratio=0.5) == loss


def test_value_loss_without_clip_by_hand():
    # 0.5 * mean(1 * 4, 3 * 1) with weights 1 and 3; slopes (V - R) * weight / N
    value = tensor(3.0, 1.0).requires_grad_()
    data = ppo_value_data(value, tensor(100.0, -100.0), tensor(1.0, 2.0), tensor(1.0, 3.0))
    loss = ppo_value_error(data, use_value_clip=False)
    loss.backward()
    assert loss.item() == pytest.approx(1.75)
    assert value.grad.tolist() == pytest.approx([1.0, -1.5])


def test_kl_to_a_pretrained_policy_ignores_rows_of_weight_zero_that_overflow():
    # exp(800) is infinite; the other row has p = p_pretrained
    new = torch.stack((tensor(-400, 400), tensor(0, 0))).requires_grad_()
    data = ppo_policy_data(new, 0 * new.detach(), torch.tensor([0, 0]), tensor(1, 1), tensor(0, 2), -new.detach())
    loss, _ = ppo_policy_error(data, kl_type='k3')
    (grad,) = torch.autograd.grad(loss.kl_div, new)
    assert loss.kl_div.item() == 0 and grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


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


def test_another_surrogate_and_value_loss_replace_the_clipped_ones():
    # without a clip the surrogate is ratio * adv = 1.5 instead of 1.2; errors 3 and .5: huber 3 - .5 and .5 * .25
    loss, _ = ppo_policy_error(ratio_data(tensor(1.5), tensor(1.0)), surrogate=surrogates.none)
    assert loss.policy_loss.item() == pytest.approx(-1.5)
    data = ppo_value_data(tensor(4.0, 1.5), tensor(0.0, 0.0), tensor(1.0, 1.0))
    assert ppo_value_error(data, value_loss=value_losses.huber).item() == pytest.approx((2.5 + 0.125) / 2)


# ---- forms of the arguments; the contract of both kinds of policies is in test_losses.py


def test_names_for_continuous_actions_are_the_same_losses_in_the_order_of_di_engine():
    data = random_data(continuous=True)
    policy = ppo_policy_data(*(getattr(data, name) for name in ppo_policy_data._fields))
    assert ppo_error_continuous(data) == ppo_error(data)
    assert ppo_policy_error_continuous(policy) == ppo_policy_error(policy)
    got = ppo_policy_error_continuous(policy, 0.1, 3.0, 'k3')[0]
    want = ppo_policy_error(policy, 0.1, 3.0, kl_type='k3')[0]
    assert got == want and want.kl_div != ppo_policy_error(policy, 0.1, 3.0)[0].kl_div
    with pytest.raises(ValueError, match='kl_type'):
        ppo_policy_error_continuous(policy, 0.1, 3.0, False)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_clip_ratio_and_dual_clip_may_be_tensors(dtype):
    data = random_data()
    wrt = leaves(data)
    want = ppo_error(data, clip_ratio=0.3, dual_clip=1.5, kl_type='k2')
    got = ppo_error(data, torch.tensor(0.3, dtype=dtype), True, torch.tensor(1.5, dtype=dtype), 'k2')
    # .3 in float32 is off by 1e-8
    torch.testing.assert_close((*got[0], *got[1]), (*want[0], *want[1]), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(*(gradient(sum(loss), wrt) for loss, _ in (got, want)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize('dtype', [torch.uint8, torch.int32])
def test_an_action_may_have_any_integer_dtype(dtype):
    data = random_data()
    assert ppo_error(data._replace(action=data.action.to(dtype))) == ppo_error(data)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float64])
def test_an_advantage_may_have_any_floating_dtype_and_loses_nothing_more(dtype):
    data = random_data(dtype=torch.float32, pretrained=False)
    wrt, adv = leaves(data)[:1], data.adv.to(dtype)
    got, want = (ppo_error(data._replace(adv=x))[0].policy_loss for x in (adv, adv.float()))
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0, check_dtype=False)
    torch.testing.assert_close(gradient(got, wrt), gradient(want, wrt))
