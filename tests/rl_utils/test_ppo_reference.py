"""The PPO losses against plain formulas over torch.distributions, with autograd for the gradient; float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, Normal

from zoo.rl_utils import Categorical as ZooCategorical
from zoo.rl_utils.ppo import ppo_data, ppo_error, ppo_policy_data, ppo_policy_error, ppo_value_data, ppo_value_error

SHAPES = [(7,), (3, 4), (2, 3, 2), (1,)]


class Plain(NamedTuple):
    """What `reference` returns, in the order of ppo_loss and ppo_info."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy_loss: Tensor
    kl_div: Tensor
    approx_kl: Tensor
    clipfrac: Tensor


def distribution(logit: Any) -> Distribution:
    if isinstance(logit, Tensor):
        return Categorical(logits=logit)
    return Independent(Normal(logit['mu'], logit['sigma']), 1)


def reference(data: ppo_data, clip_ratio: float, use_value_clip: bool, dual_clip: float | None, kl_type: str) -> Plain:
    """The formulas as they are written, with autograd through every one of them."""
    weight = torch.ones_like(data.adv) if data.weight is None else data.weight
    new = distribution(data.logit_new)
    logp, logp_old = new.log_prob(data.action), distribution(data.logit_old).log_prob(data.action).detach()
    ratio = (logp - logp_old).exp()
    surrogate = torch.min(ratio * data.adv, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * data.adv)
    if dual_clip is not None:
        surrogate = torch.where(data.adv < 0, torch.max(surrogate, dual_clip * data.adv), surrogate)
    square = (data.return_ - data.value_new) ** 2
    if use_value_clip:
        change = data.value_new - data.value_old
        bounded = change.detach().clamp(-clip_ratio, clip_ratio)
        # the gradient is 1 at the edges: that of clamp depends on torch's version
        value_clip = data.value_old + torch.where(change.abs() > clip_ratio, bounded, change)
        square = torch.max(square, (data.return_ - value_clip) ** 2)
    kl = torch.zeros_like(logp)
    if data.logit_pretrained is not None:
        r = (distribution(data.logit_pretrained).log_prob(data.action) - logp).exp()
        kl = {'k1': -r.log(), 'k2': r.log() ** 2 / 2, 'k3': r - 1 - r.log()}[kl_type]
    outside = ((ratio < 1 - clip_ratio) | (ratio > 1 + clip_ratio)).double()
    terms = Plain(-surrogate, 0.5 * square, new.entropy(), kl, (logp_old - logp).detach(), outside)
    losses, info = terms[:4], terms[4:]
    means = ((term * weight).sum() / weight.sum() if weight.any() else torch.zeros_like(term).sum() for term in info)
    return Plain(*((term * weight).mean() for term in losses), *means)


def random_data(
    lead: tuple[int, ...], continuous: bool, weight: bool, pretrained: bool, seed: int = 0, n_last: int = 3
) -> ppo_data:
    """A batch with leading shape `lead`; its ratios fall inside the clip range and on both sides of it."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def logit() -> Any:
        first, second = 0.5 * draw(*lead, n_last), 0.3 * draw(*lead, n_last)
        return {'mu': first, 'sigma': second.exp()} if continuous else first

    action = draw(*lead, n_last) if continuous else torch.randint(n_last, lead, generator=generator)
    return ppo_data(
        logit(),
        logit(),
        action,
        draw(*lead),
        0.2 * draw(*lead),
        draw(*lead),
        draw(*lead),
        (draw(*lead) > 0) * draw(*lead).abs() if weight else None,
        logit() if pretrained else None,
    )


def leaves(data: ppo_data) -> tuple[Tensor, ...]:
    """The inputs that have a gradient, made to require it."""
    logit = data.logit_new
    parts = (logit,) if isinstance(logit, Tensor) else tuple(logit.values())
    return tuple(x.requires_grad_() for x in (*parts, data.value_new))


def assert_equals_reference(data: ppo_data, **options: Any) -> None:
    """Values, and the gradient of each loss alone and of a mixture as a policy uses it."""
    wrt = leaves(data)
    loss, info = ppo_error(data, **options)
    want = reference(data, **options)
    torch.testing.assert_close((*loss, *info), tuple(want), rtol=1e-10, atol=1e-12)
    mixed = [x.policy_loss + 0.5 * x.value_loss - 0.01 * x.entropy_loss + 0.2 * x.kl_div for x in (loss, want)]
    single = [(got, plain) for got, plain in zip(loss, want[:4], strict=True) if got.requires_grad]
    for got, plain in (mixed, *single):
        torch.testing.assert_close(gradient(got, wrt), gradient(plain, wrt), rtol=1e-9, atol=1e-12)


def gradient(loss: Tensor, wrt: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, wrt, retain_graph=True, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize('lead', SHAPES)
@pytest.mark.parametrize('continuous', [False, True])
@pytest.mark.parametrize('weight', [False, True])
@pytest.mark.parametrize(
    'options',
    [
        dict(use_value_clip=True, dual_clip=None, kl_type='k1'),
        dict(use_value_clip=False, dual_clip=1.1, kl_type='k2'),
        dict(use_value_clip=True, dual_clip=1.3, kl_type='k3'),
    ],
)
def test_losses_and_gradients_equal_the_plain_formulas(lead, continuous, weight, options):
    assert_equals_reference(random_data(lead, continuous, weight, pretrained=True), clip_ratio=0.2, **options)


@pytest.mark.slow
@given(
    data=st.builds(
        random_data,
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
@settings(max_examples=60, deadline=None, derandomize=True)
def test_losses_and_gradients_equal_the_plain_formulas_for_any_batch(data, **options):
    assert_equals_reference(data, **options)


def test_the_batches_above_reach_every_branch():
    # an oracle of the tests themselves: rows clipped and not, of both signs, value clip reached and not
    data = random_data((40,), continuous=False, weight=False, pretrained=False)
    logp, logp_old = (distribution(logit).log_prob(data.action) for logit in (data.logit_new, data.logit_old))
    ratio = (logp - logp_old).exp()
    for side in (ratio > 1.3, ratio < 0.8, (ratio - 1).abs() < 0.2):
        assert (side & (data.adv > 0)).any() and (side & (data.adv < 0)).any()
    change = data.value_new - data.value_old
    clipped = data.value_old + change.clamp(-0.2, 0.2)
    further, outside = (clipped - data.return_).abs() > (data.value_new - data.return_).abs(), change.abs() > 0.2
    assert (further & outside).any() and (~further & outside).any() and (~outside).any()


@pytest.mark.parametrize('continuous', [False, True])
@pytest.mark.parametrize('sign', [1.0, -1.0])
def test_ratio_exactly_one_has_the_subgradient_of_torch(continuous, sign):
    # the first minibatch of every update: both terms of the minimum are equal, and the gradient is the whole adv
    data = random_data((6,), continuous, weight=True, pretrained=False)
    logit = data.logit_new
    same = logit.clone() if isinstance(logit, Tensor) else {k: v.clone() for k, v in logit.items()}
    data = data._replace(logit_old=same, adv=sign * data.adv.abs())
    assert_equals_reference(data, clip_ratio=0.2, use_value_clip=True, dual_clip=3.0, kl_type='k1')
    assert ppo_error(data)[1].clipfrac == 0


@pytest.mark.parametrize('adv', [1.0, -1.0, 0.0])
@pytest.mark.parametrize('new, bound', [(0.4, 'clip'), (-0.4, 'clip'), (0.4, 'dual'), (3.0, 'dual')])
def test_ratio_exactly_at_the_clip_or_the_dual_clip_has_the_slope_inside(adv, new, bound):
    logit_new, logit_old = torch.tensor([[new, 0.0]], dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    action, adv = torch.zeros(1, dtype=torch.int64), torch.tensor([adv], dtype=torch.float64)
    # bit for bit the loss's own ratio: only so can it be met exactly
    dist = ZooCategorical(2)
    logp = (dist.log_prob(logit_new, action) - dist.log_prob(logit_old, action)).requires_grad_()  # less a constant
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
def test_value_exactly_the_old_one_or_at_the_edge_has_the_gradient_of_the_reference(return_):
    # in order: V = V_old, the two edges of the range, and errors of equal size on both sides of the return
    value_new = torch.tensor([1.0, 0.5, -0.5, return_ + 1.0], dtype=torch.float64)
    value_old = torch.tensor([1.0, 0.0, 0.0, return_ - 1.5], dtype=torch.float64)
    x = torch.zeros(4, dtype=torch.float64)
    logit = torch.zeros(4, 2, dtype=torch.float64)
    data = ppo_data(logit, logit.clone(), x.long(), value_new, value_old, x, torch.full_like(x, return_))
    assert_equals_reference(data, clip_ratio=0.5, use_value_clip=True, dual_clip=None, kl_type='k1')


@pytest.mark.parametrize('continuous', [False, True])
@pytest.mark.parametrize('dual_clip', [None, 1.3])
def test_policy_gradient_passes_gradcheck(continuous, dual_clip):
    data = random_data((5,), continuous, weight=True, pretrained=True, seed=2)
    *parts, _ = leaves(data)

    def losses(*parts: Tensor) -> tuple[Tensor, ...]:
        logit = dict(zip(('mu', 'sigma'), parts, strict=True)) if continuous else parts[0]
        policy_data = ppo_policy_data(logit, data.logit_old, data.action, data.adv, data.weight, data.logit_pretrained)
        return ppo_policy_error(policy_data, dual_clip=dual_clip, kl_type='k3')[0]

    assert torch.autograd.gradcheck(losses, parts)


@pytest.mark.parametrize('use_value_clip', [False, True])
def test_value_gradient_passes_gradcheck(use_value_clip):
    data = random_data((9,), False, weight=True, pretrained=False, seed=3)
    *_, value = leaves(data)

    def loss(value: Tensor) -> Tensor:
        return ppo_value_error(ppo_value_data(value, data.value_old, data.return_, data.weight), 0.2, use_value_clip)

    assert torch.autograd.gradcheck(loss, (value,))


@pytest.mark.parametrize('continuous', [False, True])
def test_float32_stays_close_to_float64(continuous):
    data = random_data((256,), continuous, weight=True, pretrained=True)

    def to_float(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: v.float() for k, v in x.items()}
        return x.float() if x is not None and x.is_floating_point() else x

    want, got = ppo_error(data), ppo_error(ppo_data(*map(to_float, data)))
    assert all(x.dtype == torch.float32 for x in (*got[0], *got[1]))
    # a rounding of 6e-8 on log-probabilities of up to about ten, then means of 256 terms
    torch.testing.assert_close([x.double() for x in (*got[0], *got[1])], [*want[0], *want[1]], rtol=1e-4, atol=1e-5)
