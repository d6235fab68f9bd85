"""Distribution 'gsde': noise that is a function of the state and that an env keeps for a number of steps."""

from __future__ import annotations

import math

import pytest
import torch

from tests.rl_utils.distribution_cases import BOX, CPU, N_FEATURE, draw, generator
from zoo.core.errors import UserError
from zoo.core.spaces import Dict, Discrete
from zoo.rl_utils import GSDE, make_dist


def make(freq: int | None = None) -> GSDE:
    dist = make_dist(BOX, 'gsde', {'n_feature': N_FEATURE, 'sde_sample_freq': freq})
    assert isinstance(dist, GSDE)
    return dist


def test_the_action_is_mu_and_a_linear_function_of_the_features():
    # as in the paper: a = mu + eps' * feature, eps_ld ~ N(0, std_ld^2)
    dist, head, feature = make(), make().make_head(N_FEATURE, {}), draw(6, N_FEATURE).float()
    with torch.no_grad():
        head.log_std.copy_(0.3 * draw(N_FEATURE, 3, seed=1))
    noise = dist.noise((6,), generator(0), CPU)
    got = dist.sample(head(feature), noise)
    weight = noise.view(6, 3, N_FEATURE) * head.log_std.exp().t()
    torch.testing.assert_close(got, head.mu(feature) + torch.einsum('ndl,nl->nd', weight, feature))
    sigma = (feature.square() @ (2 * head.log_std).exp() + 1e-6).sqrt()
    torch.testing.assert_close(dist.split(head(feature))['sigma'], sigma)


def test_draws_over_noise_have_the_mean_and_deviation():
    dist, p, n = make(), draw(18), 40_000
    action, parts = dist.sample(p, dist.noise((n,), generator(0), CPU)), dist.split(p)
    z = (action - parts['mu']) / parts['sigma']
    assert z.mean(0).abs().max() < 5 / math.sqrt(n)  # standard deviation of a mean: 1 / sqrt(n)
    assert (z.square().mean(0) - 1).abs().max() < 5 * math.sqrt(2 / n)
    assert abs((z[:, 0] * z[:, 1]).mean()) < 5 / math.sqrt(n)


@pytest.mark.parametrize('freq, draws', [(None, 1), (0, 1), (-1, 1), (10, 1), (99, 1), (5, 2), (4, 3), (1, 10)])
def test_an_env_keeps_its_noise_for_so_many_steps(freq, draws):
    noise = make(freq).noise((10, 3), generator(0), CPU)
    assert noise.shape == (10, 3, 15)
    step = freq if freq and freq > 0 else 10
    for t in range(10):
        assert torch.equal(noise[t], noise[t - t % step])
    assert len(torch.unique(noise.reshape(-1))) == draws * 3 * 15  # no other two numbers are equal, also between envs


def test_rows_that_are_no_rollout_have_noise_of_their_own():
    assert len(torch.unique(make().noise((50,), generator(0), CPU))) == 50 * 15
    assert len(torch.unique(make().noise((2, 5, 5), generator(0), CPU))) == 50 * 15


def test_features_get_a_gradient_through_mu_alone():
    dist, head = make(), make().make_head(N_FEATURE, {'log_std_init': -1.0})
    feature = draw(6, N_FEATURE).float().requires_grad_()
    dist.entropy(head(feature)).sum().backward()  # the entropy depends on sigma alone
    assert feature.grad is None or not feature.grad.any()
    assert head.log_std.grad.abs().min() > 0
    dist.mode(head(feature)).sum().backward()
    assert feature.grad.any()


def test_the_head_keeps_the_deviation_in_bounds():
    head = make().make_head(N_FEATURE, {'log_std_init': -2.0, 'log_std_min': -3.0, 'log_std_max': 0.5})
    feature = torch.zeros(1, N_FEATURE)
    feature[0, 0] = 1.0
    for value, bound in ((-2.0, -2.0), (-99.0, -3.0), (99.0, 0.5)):
        torch.nn.init.constant_(head.log_std, value)
        sigma = make().split(head(feature))['sigma']
        torch.testing.assert_close(sigma, torch.full((1, 3), math.exp(bound)), rtol=1e-3, atol=0)
    with pytest.raises(UserError, match='log_std_init is 0.0 but must lie between log_std_min'):
        make().make_head(N_FEATURE, {'log_std_min': 1.0})


def test_state_without_features_has_finite_numbers():
    dist, p = make(), torch.zeros(18).requires_grad_()
    results = dist.log_prob(p, torch.zeros(3)), dist.entropy(p), dist.kl(p, p.detach())
    assert all(x.isfinite() and torch.autograd.grad(x, p)[0].isfinite().all() for x in results)


def test_the_number_of_features_must_be_given():
    with pytest.raises(UserError, match="'gsde' has parameters for each feature .* pass options={'n_feature': ...}"):
        make_dist(BOX, 'gsde')


def test_as_a_part_of_a_composite_it_keeps_its_noise_too():
    dist = make_dist(Dict({'a': Discrete(4), 'b': BOX}), 'gsde', {'n_feature': N_FEATURE})
    noise = dist.noise((10, 2), generator(0), CPU)
    assert torch.equal(noise[3, :, 4:], noise[0, :, 4:]) and not torch.equal(noise[3, :, :4], noise[0, :, :4])
