"""The joint loss of PPG's auxiliary phase: by hand, against torch.distributions, and what must not matter."""

from __future__ import annotations

import math
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from zoo.rl_utils import FlatAdam, ppg_data, ppg_joint_error, ppo_value_data, ppo_value_error
from zoo.rl_utils.distribution import from_logits

LEADS = [(6,), (1,), (3, 4), (2, 3, 2)]


def tensor(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def policy_data(logit_new: Any, logit_old: Any, weight: Tensor | None = None) -> ppg_data:
    """A batch whose values are all right: the auxiliary loss is 0."""
    lead = (logit_new if isinstance(logit_new, Tensor) else logit_new['mu']).shape[:-1]
    zero = torch.zeros(lead, dtype=torch.float64)
    return ppg_data(logit_new, logit_old, None, zero, zero, zero, weight)


def random_data(
    lead: tuple[int, ...] = (12,), continuous: bool = False, seed: int = 0, dtype: torch.dtype = torch.float64
) -> ppg_data:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    def logit() -> Any:
        return {'mu': draw(*lead, 3), 'sigma': (0.5 * draw(*lead, 3)).exp()} if continuous else draw(*lead, 3)

    return ppg_data(logit(), logit(), None, 0.3 * draw(*lead), 0.3 * draw(*lead), draw(*lead), draw(*lead).abs())


def map_tensors(data: ppg_data, function: Any) -> ppg_data:
    return ppg_data(
        *(
            {k: function(v) for k, v in x.items()} if isinstance(x, dict) else None if x is None else function(x)
            for x in data
        )
    )


def leaves(data: ppg_data) -> tuple[Tensor, ...]:
    """The inputs that have a gradient, made to require it."""
    logit = data.logit_new
    parts = (logit,) if isinstance(logit, Tensor) else tuple(logit.values())
    return tuple(x.requires_grad_() for x in (*parts, data.value_new))


def plain(data: ppg_data, clip_ratio: float, use_value_clip: bool) -> tuple[Tensor, Tensor]:
    """The formulas as they are written, with autograd through every one of them."""

    def distribution(logit: Any) -> Any:
        return (
            Categorical(logits=logit)
            if isinstance(logit, Tensor)
            else Independent(Normal(logit['mu'], logit['sigma']), 1)
        )

    weight = torch.ones_like(data.return_) if data.weight is None else data.weight
    square = (data.return_ - data.value_new) ** 2
    if use_value_clip:
        value_clip = data.value_old + (data.value_new - data.value_old).clamp(-clip_ratio, clip_ratio)
        square = torch.max(square, (data.return_ - value_clip) ** 2)
    kl = kl_divergence(distribution(data.logit_old), distribution(data.logit_new))
    return (0.5 * square * weight).mean(), (kl * weight).mean()


def test_cloning_loss_of_two_categoricals_by_hand():
    # row 0: old (.5, .5), new (.25, .75): .5 ln(.5 / .25) + .5 ln(.5 / .75) = .346574 - .202733 = .143841
    # row 1: old (.2, .8), new (.5, .5): .2 ln .4 + .8 ln 1.6 = -.183258 + .376003 = .192745. The mean is .168293.
    # d / d logit_new = (p_new - p_old) / N: (-.25, .25) / 2 and (.3, -.3) / 2
    new = torch.stack((tensor(0.25, 0.75), tensor(0.5, 0.5))).log().add(0.7).requires_grad_()
    old = torch.stack((tensor(0.5, 0.5), tensor(0.2, 0.8))).log()
    loss = ppg_joint_error(policy_data(new, old))
    loss.behavioral_cloning_loss.backward()
    assert loss.behavioral_cloning_loss.item() == pytest.approx(0.168293, abs=1e-6)
    assert loss.auxiliary_loss.item() == 0
    torch.testing.assert_close(new.grad, torch.stack((tensor(-0.125, 0.125), tensor(0.15, -0.15))))


def test_cloning_loss_with_weights_by_hand():
    # the rows above with weights 3 and 1: (3 * .143841 + .192745) / 2 = .312134; slopes * 3 and * 1
    new = torch.stack((tensor(0.25, 0.75), tensor(0.5, 0.5))).log().requires_grad_()
    old = torch.stack((tensor(0.5, 0.5), tensor(0.2, 0.8))).log()
    loss = ppg_joint_error(policy_data(new, old, tensor(3, 1))).behavioral_cloning_loss
    loss.backward()
    assert loss.item() == pytest.approx(0.312134, abs=1e-6)
    torch.testing.assert_close(new.grad, torch.stack((tensor(-0.375, 0.375), tensor(0.15, -0.15))))


def test_cloning_loss_of_two_gaussians_by_hand():
    # old N(0, 1), new N(1, 2): ln 2 + (1 + 1) / 8 - 1/2 = .443147
    # d / d m_new = (m_new - m_old) / s_new^2 = 1/4;  d / d s_new = (1 - (1 + 1) / 4) / 2 = 1/4
    mu, sigma = tensor(1.0).unsqueeze(0).requires_grad_(), tensor(2.0).unsqueeze(0).requires_grad_()
    old = {'mu': tensor(0.0).unsqueeze(0), 'sigma': tensor(1.0).unsqueeze(0)}
    loss = ppg_joint_error(policy_data({'mu': mu, 'sigma': sigma}, old)).behavioral_cloning_loss
    loss.backward()
    assert loss.item() == pytest.approx(0.443147, abs=1e-6)
    assert mu.grad.item() == pytest.approx(0.25) and sigma.grad.item() == pytest.approx(0.25)


@pytest.mark.parametrize('use_value_clip, square', [(True, (9.0, 6.25)), (False, (9.0, 1.0))])
def test_auxiliary_loss_by_hand(use_value_clip, square):
    # row 0: R -1, V 2, V_old 0, clip .5: V_clip .5 is nearer, 3^2 counts; row 1: R 3, V 2: V_clip .5 is further, 2.5^2
    data = ppg_data(torch.zeros(2, 2), torch.zeros(2, 2), None, tensor(2, 2), tensor(0, 0), tensor(-1, 3))
    loss = ppg_joint_error(data, 0.5, use_value_clip)
    assert loss.auxiliary_loss.item() == pytest.approx(0.25 * sum(square))
    assert loss.behavioral_cloning_loss.item() == 0


@pytest.mark.parametrize('use_value_clip', [False, True])
@pytest.mark.parametrize('weight', [False, True])
def test_auxiliary_loss_is_that_of_ppo_value_error(use_value_clip, weight):
    data = random_data()
    data = data if weight else data._replace(weight=None)
    (value,) = leaves(data)[-1:]
    want = ppo_value_error(ppo_value_data(value, data.value_old, data.return_, data.weight), 0.1, use_value_clip)
    got = ppg_joint_error(data, 0.1, use_value_clip).auxiliary_loss
    assert torch.equal(got, want)
    assert torch.equal(*(torch.autograd.grad(x, value)[0] for x in (got, want)))


@pytest.mark.parametrize('lead', LEADS)
@pytest.mark.parametrize('continuous', [False, True])
@pytest.mark.parametrize('weight', [False, True])
@pytest.mark.parametrize('use_value_clip', [False, True])
def test_losses_and_gradients_equal_the_plain_formulas(lead, continuous, weight, use_value_clip):
    data = random_data(lead, continuous)
    data = data if weight else data._replace(weight=None)
    wrt = leaves(data)
    got, want = ppg_joint_error(data, 0.1, use_value_clip), plain(data, 0.1, use_value_clip)
    torch.testing.assert_close(tuple(got), want, rtol=1e-12, atol=1e-14)
    for weights in ((1, 0), (0, 1), (0.5, 2)):  # each alone, and a mixture as a policy uses it
        grads = [
            torch.autograd.grad(sum(w * x for w, x in zip(weights, losses, strict=True)), wrt, retain_graph=True)
            for losses in (got, want)
        ]
        torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize('continuous', [False, True])
def test_gradients_pass_gradcheck(continuous):
    data = random_data((5,), continuous)
    wrt = leaves(data)

    def losses(*wrt: Tensor) -> tuple[Tensor, ...]:
        logit = dict(zip(('mu', 'sigma'), wrt[:-1], strict=True)) if continuous else wrt[0]
        return ppg_joint_error(data._replace(logit_new=logit, value_new=wrt[-1]), 0.1)

    assert torch.autograd.gradcheck(losses, wrt)


@pytest.mark.parametrize('continuous', [False, True])
@pytest.mark.parametrize('lead', [(12, 1), (3, 4), (2, 3, 2)])
def test_losses_of_a_batch_with_more_dimensions_are_those_of_the_flattened_one(continuous, lead):
    flat = random_data((12,), continuous)
    got = ppg_joint_error(map_tensors(flat, lambda x: x.view(*lead, *x.shape[1:])))
    torch.testing.assert_close(tuple(got), tuple(ppg_joint_error(flat)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize('continuous', [False, True])
def test_equal_policies_have_no_cloning_loss_and_no_gradient(continuous):
    data = random_data(continuous=continuous, dtype=torch.float32)
    logit = data.logit_new
    data = data._replace(logit_old={k: v.clone() for k, v in logit.items()} if continuous else logit.clone())
    *parts, _ = leaves(data)
    loss = ppg_joint_error(data)
    grads = torch.autograd.grad(loss.behavioral_cloning_loss, parts)
    assert loss.behavioral_cloning_loss.item() == 0
    # categorical: p - p * sum(p) over N = 12 rows, where sum(p) is 1 but for a rounding of 6e-8
    assert all((grad.abs() <= 1e-8).all() for grad in grads)


def test_a_cloning_step_raises_the_probability_of_what_the_old_policy_preferred():
    # with log-probabilities as the divergence's target the loss is NaN, and every taken action loses probability
    logit = torch.nn.Parameter(torch.zeros(1, 3))
    old = torch.tensor([[0.7, 0.2, 0.1]]).log()
    zero = torch.zeros(1)
    optimizer = FlatAdam([('logit', logit)])
    optimizer.lr = 0.1
    before, kl_before = logit.softmax(-1).detach(), torch.inf
    for _ in range(3):
        loss = ppg_joint_error(ppg_data(logit, old, torch.tensor([0]), zero, zero, zero)).behavioral_cloning_loss
        assert loss.item() < kl_before
        kl_before = loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(None)
    after = logit.softmax(-1).detach()
    assert after[0, 0] > before[0, 0] and after[0, 2] < before[0, 2]


@pytest.mark.parametrize('continuous', [False, True])
def test_cloning_gradient_is_in_the_new_policy_alone(continuous):
    data = map_tensors(random_data(continuous=continuous), lambda x: x.requires_grad_())
    parts_old = list(data.logit_old.values()) if continuous else [data.logit_old]
    loss = ppg_joint_error(data)
    (loss.auxiliary_loss + loss.behavioral_cloning_loss).backward()
    assert all(x.grad is None for x in (*parts_old, data.value_old, data.return_, data.weight))
    (grad,) = torch.autograd.grad(ppg_joint_error(data).behavioral_cloning_loss, data.value_new, allow_unused=True)
    assert grad is None


@pytest.mark.parametrize('action', [None, torch.full((12,), 99), torch.zeros(3, 1)])
def test_the_action_is_not_read(action):
    data = random_data()
    assert ppg_joint_error(data._replace(action=action)) == ppg_joint_error(data)


@pytest.mark.parametrize('continuous', [False, True])
def test_losses_do_not_depend_on_the_order_of_rows(continuous):
    data = random_data(continuous=continuous)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    got = ppg_joint_error(map_tensors(data, lambda x: x[order]))
    torch.testing.assert_close(tuple(got), tuple(ppg_joint_error(data)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize('continuous', [False, True])
def test_losses_scale_with_weight_and_ones_are_no_weight(continuous):
    data = random_data(continuous=continuous)
    # a plain mean: not divided by the weights' sum
    double = ppg_joint_error(data._replace(weight=2 * data.weight))
    torch.testing.assert_close(tuple(double), tuple(2 * x for x in ppg_joint_error(data)))
    want = tuple(ppg_joint_error(data._replace(weight=None)))
    for weight in (torch.ones(12, dtype=torch.float64), torch.ones(12, dtype=torch.bool)):
        torch.testing.assert_close(tuple(ppg_joint_error(data._replace(weight=weight))), want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize('continuous', [False, True])
def test_rows_of_weight_zero_have_no_influence(continuous):
    data = random_data(continuous=continuous)
    zero = torch.arange(12) % 3 == 0
    data = data._replace(weight=data.weight.masked_fill(zero, 0))

    def replaced(x: Tensor) -> Tensor:
        return torch.where(zero.view(-1, *[1] * (x.dim() - 1)), x.flip(0), x)

    results = []
    for each in (data, map_tensors(data, replaced)._replace(weight=data.weight)):
        each = map_tensors(each, torch.clone)
        wrt, loss = leaves(each), ppg_joint_error(each)
        grads = torch.autograd.grad(sum(loss), wrt)
        assert all((grad[zero] == 0).all() for grad in grads)
        results.append((*loss, *grads))
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


@pytest.mark.parametrize('scale', [1.0, 64.0])  # 64: a loss that is scaled up, e.g. for half precision
def test_masked_choices_give_the_loss_and_gradient_of_policies_without_them(scale):
    data = random_data(dtype=torch.float32)
    never = torch.full((12, 1), -torch.inf)
    small = data.logit_new.clone().requires_grad_()
    large = torch.cat((data.logit_new, never), -1).requires_grad_()
    want = ppg_joint_error(data._replace(logit_new=small)).behavioral_cloning_loss
    masked = data._replace(logit_new=large, logit_old=torch.cat((data.logit_old, never), -1))
    got = ppg_joint_error(masked).behavioral_cloning_loss
    for loss in (want, got):
        (scale * loss).backward()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(large.grad, torch.nn.functional.pad(small.grad, (0, 1)))
    assert (large.grad[:, 3] == 0).all()


@pytest.mark.parametrize('continuous', [False, True])
def test_inputs_are_unchanged_by_loss_and_backward(continuous):
    data = map_tensors(random_data(continuous=continuous), lambda x: x.requires_grad_())
    before = map_tensors(data, lambda x: x.detach().clone())
    sum(ppg_joint_error(data)).backward()
    torch.testing.assert_close(data, before, rtol=0, atol=0)


@pytest.mark.parametrize('continuous', [False, True])
def test_a_second_backward_over_the_kept_graph_gives_the_same_gradient(continuous):
    data = random_data(continuous=continuous)
    wrt = leaves(data)
    total = sum(ppg_joint_error(data))
    first, second = (torch.autograd.grad(total, wrt, retain_graph=True) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_the_old_policy_may_be_any_mapping():
    data = random_data(continuous=True)
    block = data._replace(logit_old=UserDict(data.logit_old))
    assert ppg_joint_error(block) == ppg_joint_error(data)


@pytest.mark.parametrize('continuous', [False, True])
def test_bfloat16_policies_are_compared_in_float32(continuous):
    data = random_data(continuous=continuous, dtype=torch.float32)
    half = {k: v.bfloat16() for k, v in data.logit_new.items()} if continuous else data.logit_new.bfloat16()
    full = {k: v.float() for k, v in half.items()} if continuous else half.float()
    assert ppg_joint_error(data._replace(logit_new=half)) == ppg_joint_error(data._replace(logit_new=full))


@pytest.mark.parametrize('wrong', [float('nan'), float('inf')])
@pytest.mark.parametrize(
    'continuous, name, key, spoilt',
    [
        (False, 'logit_new', None, 'behavioral_cloning_loss'),
        (False, 'logit_old', None, 'behavioral_cloning_loss'),
        (True, 'logit_new', 'mu', 'behavioral_cloning_loss'),
        (True, 'logit_new', 'sigma', 'behavioral_cloning_loss'),
        (True, 'logit_old', 'mu', 'behavioral_cloning_loss'),
        (True, 'logit_old', 'sigma', 'behavioral_cloning_loss'),
        (False, 'weight', None, 'auxiliary_loss behavioral_cloning_loss'),
        (False, 'value_new', None, 'auxiliary_loss'),
        (False, 'value_old', None, 'auxiliary_loss'),
        (False, 'return_', None, 'auxiliary_loss'),
    ],
)
def test_a_number_that_is_not_finite_never_gives_finite_results(wrong, continuous, name, key, spoilt):
    data = random_data(continuous=continuous)
    x = getattr(data, name) if key is None else getattr(data, name)[key]
    x[(3, 1)[: x.dim()]] = wrong
    wrt, loss = leaves(data), ppg_joint_error(data)
    assert {field for field, x in loss._asdict().items() if not x.isfinite()} == set(spoilt.split())
    if math.isnan(wrong):
        for field in spoilt.split():
            grads = torch.autograd.grad(getattr(loss, field), wrt, retain_graph=True, allow_unused=True)
            assert any(grad[3].isnan().any() for grad in grads if grad is not None)
            assert all(grad[[0, 1, 2, 4]].isfinite().all() for grad in grads if grad is not None)


@pytest.mark.slow
@pytest.mark.parametrize('continuous', [False, True])
def test_losses_compile_as_one_graph_with_the_same_results(continuous):
    data = random_data(continuous=continuous)
    wrt, want = leaves(data), ppg_joint_error(data)
    got = torch.compile(lambda data: ppg_joint_error(data), fullgraph=True, backend='aot_eager')(data)
    torch.testing.assert_close(tuple(got), tuple(want))
    torch.testing.assert_close(torch.autograd.grad(sum(got), wrt), torch.autograd.grad(sum(want), wrt))


@pytest.mark.parametrize('continuous', [False, True])
@pytest.mark.parametrize('lead', LEADS, ids=str)
def test_flat_parameters_with_dist_give_the_losses_and_gradients_of_the_container(lead, continuous):
    data = random_data(lead, continuous)
    dist, new, old = from_logits(data.logit_new, data.logit_old)
    new = new.clone().requires_grad_()
    *parts, _ = leaves(data)
    want, got = ppg_joint_error(data), ppg_joint_error(data._replace(logit_new=new, logit_old=old), dist=dist)
    assert got == want
    (grad,) = torch.autograd.grad(got.behavioral_cloning_loss, new)
    grads = torch.autograd.grad(want.behavioral_cloning_loss, parts)
    torch.testing.assert_close(grad, torch.cat(grads, -1), rtol=0, atol=0)
