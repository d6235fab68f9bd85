"""The joint loss of PPG's auxiliary phase by hand; its contract is in test_losses.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.rl_utils.loss_formulas import gradient, leaves, map_tensors, random_data
from zoo.rl_utils import FlatAdam, ppg_data, ppg_joint_error


def tensor(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def policy_data(logit_new: Any, logit_old: Any, weight: Tensor | None = None) -> ppg_data:
    """A batch whose values are exact: the auxiliary loss is 0."""
    lead = (logit_new if isinstance(logit_new, Tensor) else logit_new['mu']).shape[:-1]
    zero = torch.zeros(lead, dtype=torch.float64)
    return ppg_data(logit_new, logit_old, None, zero, zero, zero, weight)


@pytest.mark.parametrize(
    'weight, loss, slopes',
    [
        (None, 0.168293, (-0.125, 0.15)),  # d / d logit_new = (p_new - p_old) / N: -.25 / 2 and .3 / 2
        ((3, 1), 0.312134, (-0.375, 0.15)),  # (3 * .143841 + .192745) / 2; slopes * 3 and * 1
    ],
)
def test_cloning_loss_of_two_categoricals_by_hand(weight, loss, slopes):
    # row 0: old (.5, .5), new (.25, .75): .5 ln(.5 / .25) + .5 ln(.5 / .75) = .346574 - .202733 = .143841
    # row 1: old (.2, .8), new (.5, .5): .2 ln .4 + .8 ln 1.6 = -.183258 + .376003 = .192745. The mean is .168293.
    new = torch.stack((tensor(0.25, 0.75), tensor(0.5, 0.5))).log().add(0.7).requires_grad_()
    old = torch.stack((tensor(0.5, 0.5), tensor(0.2, 0.8))).log()
    found = ppg_joint_error(policy_data(new, old, weight and tensor(*weight)))
    found.behavioral_cloning_loss.backward()
    assert found.behavioral_cloning_loss.item() == pytest.approx(loss, abs=1e-6)
    assert found.auxiliary_loss.item() == 0
    torch.testing.assert_close(new.grad, torch.stack((tensor(*slopes), -tensor(*slopes)), -1))


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
def test_equal_policies_have_no_cloning_loss_and_no_gradient_for_any_action(continuous):
    data = random_data(ppg_data, continuous, dtype=torch.float32)
    data = data._replace(logit_old=map_tensors(data, torch.clone).logit_new, action=torch.full((3, 1), 99))
    *parts, _ = leaves(data)
    loss = ppg_joint_error(data).behavioral_cloning_loss
    assert loss.item() == 0
    # categorical: p - p * sum(p) over N = 12 rows, where sum(p) is 1 up to a rounding of 6e-8
    assert all((grad.abs() <= 1e-8).all() for grad in gradient(loss, parts))
