"""Distribution 'beta': its density over the box, its draws against the distribution function."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.rl_utils.distribution_cases import CPU, generator
from zoo.core.spaces import Box
from zoo.rl_utils import Beta, make_dist

PARAMS = [(1.0, 1.0), (1.0, 3.0), (1.7, 1.7), (5.0, 2.0), (30.0, 4.0), (400.0, 700.0)]


def make(*bounds: tuple[float, float]) -> Beta:
    low, high = np.array(bounds).T
    dist = make_dist(Box(low, high), 'beta')
    assert isinstance(dist, Beta)
    return dist


def param(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize('alpha, beta', PARAMS)
def test_the_density_integrates_to_1_over_the_box(alpha, beta):
    n, bounds = 100_000, (0.0, 1.0) if alpha == beta else (-3.0, 2.0)
    dist = make(bounds)
    x = ((torch.arange(n, dtype=torch.float64) + 0.5) / n).unsqueeze(-1)
    env = dist.env_action(x)
    density = dist.log_prob(param(alpha, beta), x).exp()
    assert abs((density * (bounds[1] - bounds[0]) / n).sum() - 1) < 1e-3
    torch.testing.assert_close(env.squeeze(-1)[[0, -1]], torch.tensor(bounds, dtype=torch.float64), atol=1e-4, rtol=0)


@pytest.mark.parametrize('alpha, beta', PARAMS[1::2])
def test_draws_follow_the_distribution(alpha, beta):
    # Kolmogorov-Smirnov: the largest distance to the distribution function, times sqrt(n), exceeds 2.2 once in 8,000 seeds
    n, dist, m = 40_000, make((0.0, 1.0)), 400_000
    drawn = dist.sample(param(alpha, beta).float(), dist.noise((n,), generator(0), CPU)).squeeze(-1).sort().values
    x = (torch.arange(m, dtype=torch.float64) + 0.5) / m
    density = torch.distributions.Beta(param(alpha), param(beta)).log_prob(x).exp()
    function = torch.cat((torch.zeros(1), density.cumsum(0) / m))  # at the cells' ends
    want = torch.from_numpy(np.interp(drawn.numpy(), np.linspace(0, 1, m + 1), function.numpy()))
    distance = (want - (torch.arange(n) + 0.5) / n).abs().max()
    assert distance * math.sqrt(n) < 2.2


def test_draws_of_dimensions_and_rows_are_independent():
    n, dist = 40_000, make((0.0, 1.0), (0.0, 1.0))
    drawn = dist.sample(torch.tensor([2.0, 2.0, 3.0, 3.0]), dist.noise((n,), generator(0), CPU))
    z = (drawn - drawn.mean(0)) / drawn.std(0)
    assert abs((z[:, 0] * z[:, 1]).mean()) < 5 / math.sqrt(n)
    assert abs((z[1:, 0] * z[:-1, 0]).mean()) < 5 / math.sqrt(n)


def test_numbers_by_hand():
    # Beta(2, 1) has the density 2x: at x = .25, in a box of width 4, ln(.5 / 4); entropy .5 - ln 2, and ln 4
    dist = make((-1.0, 3.0))
    assert dist.log_prob(param(2, 1), param(0.25)).item() == pytest.approx(math.log(0.125))
    assert dist.entropy(param(2, 1)).item() == pytest.approx(0.5 - math.log(2) + math.log(4))
    # KL(2x || 1) = int 2x ln(2x) = ln 2 - 1/2; the reverse is -int ln(2x) = 1 - ln 2; the width of the box does not matter
    assert dist.kl(param(2, 1), param(1, 1)).item() == pytest.approx(math.log(2) - 0.5)
    assert dist.kl(param(1, 1), param(2, 1)).item() == pytest.approx(1 - math.log(2))


@pytest.mark.parametrize(
    'alpha, beta, mode', [(1, 1, 0.5), (2, 2, 0.5), (2, 1, 1.0), (1, 2, 0.0), (3, 2, 2 / 3), (1000, 3, 999 / 1001)]
)
def test_the_mode_by_hand(alpha, beta, mode):
    assert make((0.0, 1.0)).mode(param(alpha, beta)).item() == pytest.approx(mode, abs=2e-6)
    assert make((0.0, 1.0)).mode(param(alpha, beta).float()).item() == pytest.approx(mode, abs=2e-6)


@pytest.mark.parametrize('action', [0.0, 1.0])
def test_actions_at_the_bounds_have_finite_numbers_and_gradients(action):
    p = torch.tensor([1.0, 3.0]).requires_grad_()
    logp = make((0.0, 1.0)).log_prob(p, torch.tensor([action]))
    assert logp.isfinite() and torch.autograd.grad(logp, p)[0].isfinite().all()


def test_log_prob_of_float32_keeps_its_digits_where_log_gamma_is_large():
    # lgamma(1e5) is about 1e6, which float32 rounds by up to 1/16: too much for a ratio of probabilities
    dist, p = make((0.0, 1.0)), torch.tensor([1e5, 1.2e5])
    want = torch.distributions.Beta(p[:1].double(), p[1:].double()).log_prob(param(0.45454545))
    assert dist.log_prob(p, param(0.45454545)).item() == pytest.approx(want.item(), abs=1e-5)


def test_parameters_below_1_are_named():
    dist = make((0.0, 1.0))
    assert not dist.problem_of(torch.ones(2))
    assert dist.problem_of(torch.tensor([2.0, 0.5])).startswith('an alpha or beta that is not 1 or more; give')
