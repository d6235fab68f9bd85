"""Distribution 'bernoulli': numbers by hand, draws, masks."""

from __future__ import annotations

import math

import pytest
import torch

from tests.rl_utils.distribution_cases import CPU, generator
from zoo.core.spaces import MultiBinary
from zoo.rl_utils import Bernoulli, make_dist


def log_odds(*p: float) -> torch.Tensor:
    return torch.tensor(p, dtype=torch.float64).logit()


@pytest.mark.parametrize(
    'function, args, number',
    [
        ('log_prob', (log_odds(0.25, 0.5), torch.tensor([1, 0])), -2.079442),  # ln .25 + ln .5 = -1.386294 - .693147
        ('entropy', (log_odds(0.25, 0.5),), 0.562335 + 0.693147),  # a categorical (.25, .75), plus ln 2
        # KL(.5 || .25) = .5 ln(4/3), KL(.25 || .5) = .130812
        ('kl', (log_odds(0.25, 0.5), log_odds(0.5, 0.25)), 0.130812 + 0.5 * math.log(4 / 3)),
    ],
)
def test_numbers_by_hand(function, args, number):
    assert getattr(Bernoulli(2), function)(*args).item() == pytest.approx(number, abs=1e-6)


def test_draws_have_the_probabilities():
    p, n, dist = torch.tensor([0.5, 0.9, 0.01, 0.0]), 40_000, Bernoulli(4)
    action = dist.sample(p.logit(), dist.noise((n,), generator(0), CPU))
    count, deviation = action.sum(0), (n * p * (1 - p)).sqrt()
    assert ((count - n * p).abs() <= 5 * deviation).all() and action.dtype == torch.int64
    same = (action[:, 0] == action[:, 1]).double().mean()  # independent: .5 * .9 + .5 * .1
    assert abs(same - 0.5) < 2.5 / math.sqrt(n)


def test_the_mode_is_the_likelier_bit():
    assert Bernoulli(4).mode(torch.tensor([0.1, -0.1, 30.0, -torch.inf])).tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize('size', [20.0, 100.0, 1e5, 1e30])
def test_bits_that_are_nearly_certain_have_finite_numbers_and_gradients(size):
    # at log-odds +-x the rare bit has log-probability -x; the divergence from fair bits is x/2 - ln 2 for each bit
    param = torch.tensor([size, -size]).requires_grad_()
    dist, fair = Bernoulli(2), torch.zeros(2)
    results = [dist.log_prob(param, torch.tensor([0, 0])), dist.entropy(param), dist.kl(fair, param)]
    assert results[0].item() == pytest.approx(-size) and results[1].item() == pytest.approx(0, abs=1e-6)
    assert results[2].item() == pytest.approx(size - 2 * math.log(2), rel=1e-5)
    assert all(torch.autograd.grad(x, param)[0].isfinite().all() for x in results)


def test_a_bit_that_the_mask_forbids_is_always_0():
    dist = make_dist(MultiBinary((2, 2)))
    param = dist.masked(torch.full((1000, 4), 9.0), torch.tensor([True, False, True, False]))
    action = dist.sample(param, dist.noise((1000,), generator(0), CPU))
    assert not action[:, [1, 3]].any() and action[:, [0, 2]].float().mean() > 0.99
    # the other bits count as they do without a mask
    assert torch.equal(dist.entropy(param), Bernoulli(2).entropy(torch.full((1000, 2), 9.0)))
    assert dist.kl(torch.zeros(4), param[0]) == torch.inf  # the fair policy can set a masked bit


def test_actions_that_are_no_bits_are_found_in_debug_mode(monkeypatch):
    monkeypatch.setenv('ZOO_DEBUG', '1')
    with pytest.raises(ValueError, match='action holds 0 to 2 but must hold bits; give zeros and ones'):
        Bernoulli(2).check_action(torch.tensor([[0, 2]]), torch.Size((1,)))
