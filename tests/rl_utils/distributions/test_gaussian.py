"""'squashed_gaussian': density over the box and entropy, against numerical integration. Colored noise of 'gaussian'."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.rl_utils.distribution_cases import BOX, CPU, generator
from zoo.core.errors import UserError
from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import Box, Discrete, Space
from zoo.rl_utils import Gaussian, SquashedGaussian, make_dist
from zoo.rl_utils.distributions.gaussian import colored

PARAMS = [(0.0, 0.3), (0.0, 1.0), (1.5, 0.7), (-3.0, 2.0), (0.5, math.exp(2)), (4.0, 0.05)]
each_param = pytest.mark.parametrize('mu, sigma', PARAMS)


def box(*bounds: tuple[float, float], dtype: str = 'float32') -> Box:
    low, high = np.array(bounds).T
    return Box(low, high, dtype)


def make(*bounds: tuple[float, float]) -> SquashedGaussian:
    dist = make_dist(box(*bounds), 'squashed_gaussian')
    assert isinstance(dist, SquashedGaussian)
    return dist


def param(mu: float, sigma: float) -> Tensor:
    return torch.tensor([mu, sigma], dtype=torch.float64)


def grid(mu: float, sigma: float) -> Tensor:
    """Grid of u, [n, 1], 9 standard deviations to each side; the probability outside is below 1e-18."""
    return torch.linspace(mu - 9 * sigma, mu + 9 * sigma, 50_001, dtype=torch.float64).unsqueeze(-1)


@each_param
def test_the_density_integrates_to_1_over_the_box(mu, sigma):
    bounds = (-1.0, 1.0) if mu == 0 else (2.0, 7.0)
    dist, u = make(bounds), grid(mu, sigma)
    # tanh is 1 - 2 / (e^2u + 1): in this form the distance to a bound keeps its digits where tanh(u) is 1
    from_low, to_high = (bounds[1] - bounds[0]) / (1 + (-2 * u).exp()), (bounds[1] - bounds[0]) / (1 + (2 * u).exp())
    density = dist.log_prob(param(mu, sigma), u).exp()
    step = torch.where(u[1:] < 0, from_low.diff(dim=0), -to_high.diff(dim=0)).squeeze(-1)
    integral = ((density[1:] + density[:-1]) / 2 * step).sum()
    assert abs(integral - 1) < 1e-3
    torch.testing.assert_close(dist.env_action(u), bounds[0] + from_low)


@pytest.mark.parametrize('sigma', [1e-4, 0.1, 1.0, 7.4, 100.0])
def test_entropy_and_its_gradient_are_exact_to_6_digits_over_a_grid_of_means(sigma):
    dist = make((-2.0, 3.0))
    mu = torch.cat((torch.linspace(-6, 6, 49, dtype=torch.float64), torch.tensor([-30.0, 30.0])))
    both = torch.stack((mu, torch.full_like(mu, sigma)), -1).requires_grad_()
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64).unsqueeze(-1)
    u = both[:, 0] + both[:, 1] * z  # [n, 51]
    weight = (-0.5 * z * z).exp() * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    squash = (weight * 2 * (math.log(2) - u - torch.nn.functional.softplus(-2 * u))).sum(0)
    want = squash + Gaussian(1).entropy(both) + math.log(2.5)  # half the width of the box
    got = dist.entropy(both)
    assert (got - want).abs().max() < 2e-7
    torch.testing.assert_close(dist.entropy(both.float()), want.float(), rtol=1e-6, atol=1e-5)
    grads = [torch.autograd.grad(x.sum(), both)[0] for x in (got, want)]
    assert (grads[0] - grads[1]).abs().max() < 5e-6


def test_entropy_is_that_of_a_normal_in_the_linear_part_of_tanh():
    # sigma is small: tanh(u) = u, and the box of half width 3 scales by 3
    entropy = make((-3.0, 3.0)).entropy(param(0.0, 1e-4))
    wanted = math.log(1e-4) + 0.5 * math.log(2 * math.pi * math.e) + math.log(3)
    assert entropy.item() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize('mu, sigma', PARAMS[2:5])
def test_draws_follow_the_density(mu, sigma):
    # Kolmogorov-Smirnov: of n draws the largest distance to the distribution function, times sqrt(n), exceeds 2.2 once
    # in 8,000 seeds
    dist, n = make((-2.0, 3.0)), 40_000
    drawn = dist.env_action(dist.sample(param(mu, sigma), dist.noise((n,), generator(0), CPU))).squeeze(-1)
    u = ((drawn + 2) / 5 * 2 - 1).clamp(-1 + 1e-15, 1 - 1e-15).atanh().sort().values
    at = ((u - mu) / sigma).clamp(-9, 9)
    inside = drawn.sort().values.sub(0.5).abs() < 2.5 * (1 - 1e-12)  # tanh has rounded the others to a bound
    want = 0.5 * (1 + (at / math.sqrt(2)).erf())
    distance = (want - (torch.arange(n) + 0.5) / n).abs()[inside].max()
    assert distance * math.sqrt(n) < 2.2


def test_log_prob_is_finite_and_exact_far_out():
    # far out 1 - tanh(u)^2 = 4 e^-2|u|, so log p = log N(u) - (ln 4 - 2 |u|); the half width is 1
    dist, u = make((-1.0, 1.0)), torch.tensor([[40.0], [-40.0], [1000.0]])
    want = Gaussian(1).log_prob(torch.tensor([0.0, 10.0]), u) - (math.log(4) - 2 * u.abs().squeeze(-1))
    torch.testing.assert_close(dist.log_prob(torch.tensor([0.0, 10.0]), u), want)


def test_the_mode_is_squashed_to_the_median():
    dist, p = make((0.0, 4.0)), torch.tensor([0.7, 1.3])
    drawn = dist.env_action(dist.sample(p, dist.noise((40_000,), generator(0), CPU)))
    median = dist.env_action(dist.mode(p))
    assert dist.mode(p).tolist() == pytest.approx([0.7])
    assert abs((drawn < median).float().mean() - 0.5) < 2.5 / math.sqrt(40_000)


def test_dimensions_have_their_own_bounds():
    dist, u = make((0.0, 1.0), (-10.0, 30.0)), torch.tensor([[0.0, 0.0], [99.0, 99.0], [-99.0, -99.0]])
    assert dist.env_action(u).tolist() == [[0.5, 10.0], [1.0, 30.0], [0.0, -10.0]]
    # log-densities add up, each with its own scale
    p = torch.tensor([0.3, -0.2, 0.5, 0.8])
    parts = make((0.0, 1.0)).log_prob(p[[0, 2]], u[0, :1]) + make((-10.0, 30.0)).log_prob(p[[1, 3]], u[0, 1:])
    torch.testing.assert_close(dist.log_prob(p, u[0]), parts)


@pytest.mark.parametrize(
    'space',
    [
        Discrete(3),
        box((-1, np.inf)),
        box((-np.inf, np.inf)),
        box((-1, 1), (2, 2)),
        box((-1.7e308, 1.7e308), dtype='float64'),
        Box(np.zeros(0), np.zeros(0)),
    ],
    ids=['discrete', 'half', 'unbounded', 'a point', 'too wide', 'empty'],
)
@pytest.mark.parametrize('name', ['squashed_gaussian', 'beta'])
def test_spaces_without_finite_bounds_are_refused(space: Space, name: str):
    with pytest.raises(UserError, match=f'distribution is {name!r}, which cannot draw the actions'):
        make_dist(space, name)


# --- colored noise


def test_colored_noise_of_an_impulse_by_hand() -> None:
    # T = 4, color 1: frequencies 0 (taken as 1), 1, 2, 1 have power 1, 1, 1/2, 1 over its mean 7/8; amplitudes s: its roots.
    # The impulse 1, 0, 0, 0 has the spectrum 1, 1, 1, 1, so x_t is the sum of s_k cos(2 pi k t / 4) / 4.
    s, s2 = math.sqrt(8 / 7), math.sqrt(4 / 7)
    hand = torch.tensor([3 * s + s2, s - s2, s2 - s, s - s2], dtype=torch.float64) / 4
    impulse = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(colored(impulse.view(4, 1, 1), 1.0).flatten(), hand)
    assert hand.square().sum().item() == pytest.approx(1)  # white noise of variance 1 keeps its variance


@pytest.mark.parametrize('n_step', [1, 2, 63, 64])
@pytest.mark.parametrize('color', [0.5, 1.0, 2.0])
def test_colored_noise_has_variance_1_and_its_power_at_each_frequency(color: float, n_step: int) -> None:
    n = 20_000
    white = torch.randn(n_step, n, 1, generator=generator(0), dtype=torch.float64)
    noise = colored(white, color)
    assert noise.mean().abs() < 6 / math.sqrt(n)  # n, not n * T: a series of strong color is nearly constant
    assert (noise.square().mean((1, 2)) - 1).abs().max() < 6 * math.sqrt(2 / n)
    power = torch.fft.rfft(noise, dim=0).abs().square().mean((1, 2))
    frequency = torch.arange(len(power), dtype=torch.float64).clamp(min=1)
    ratio = power * frequency**color
    assert (ratio / ratio.mean() - 1).abs().max() < 6 * math.sqrt(2 / n)
    other = (noise[:, : n // 2] * noise[:, n // 2 :]).mean((1, 2))  # the series are independent of each other
    assert other.abs().max() < 6 * math.sqrt(2 / n)


@pytest.mark.parametrize('name', ['gaussian', 'squashed_gaussian'])
def test_the_noise_of_a_rollout_is_colored_and_that_of_rows_is_not(name: str) -> None:
    plain, dist = make_dist(BOX, name), make_dist(BOX, name, {'noise_color': 1.0})
    rollout = plain.noise((8, 4), generator(0), CPU)
    assert torch.equal(dist.noise((8, 4), generator(0), CPU), colored(rollout, 1.0))
    assert torch.equal(dist.noise((8,), generator(0), CPU), plain.noise((8,), generator(0), CPU))


@pytest.mark.parametrize('base', [Gaussian, SquashedGaussian])
def test_an_own_subclass_needs_to_know_nothing_of_colors(base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(base):
        name = 'own_of_test'

        def __init__(self, size: Any) -> None:
            super().__init__(size)

    monkeypatch.setitem(DISTRIBUTION_REGISTRY.entries, 'own_of_test', Own)
    dist = make_dist(BOX, 'own_of_test')
    assert torch.equal(dist.noise((8, 4), generator(0), CPU), make_dist(BOX).noise((8, 4), generator(0), CPU))
