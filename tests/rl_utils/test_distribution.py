"""Distributions 'categorical' and 'gaussian' by hand-worked numbers in float64, and the lookup of a distribution."""

from __future__ import annotations

import math
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.policy.test_device import Crossings
from tests.rl_utils.distribution_cases import CASES, CPU, generator
from zoo.core.errors import UserError
from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from zoo.rl_utils import Categorical, Gaussian, distribution_of, make_dist
from zoo.rl_utils.distribution import Bounds, from_logits
from zoo.rl_utils.distributions.gaussian import LOG_STD_MAX, LOG_STD_MIN, bounded_log_std


def log(*p: float) -> Tensor:
    """Logits of the probabilities p, shifted by a constant that must not matter."""
    return torch.tensor(p, dtype=torch.float64).log() + 0.7


def normal(mu: list[float], sigma: list[float]) -> Tensor:
    return torch.tensor(mu + sigma, dtype=torch.float64)


@pytest.mark.parametrize('name', ['categorical', 'gaussian'])
def test_split_gives_views_that_the_losses_read_back(name):
    case = CASES[name]
    param = case.param(5)
    parts = case.dist.split(param)
    tensors = [parts] if isinstance(parts, Tensor) else list(parts.values())
    assert all(x.untyped_storage().data_ptr() == param.untyped_storage().data_ptr() for x in tensors)
    dist, again, none = from_logits(parts, None)
    assert torch.equal(again, param) and none is None
    assert (type(dist), dist.n_param, dist.n_action) == (type(case.dist), case.dist.n_param, case.dist.n_action)


@pytest.mark.parametrize('name', sorted(set(CASES) - {'categorical', 'gaussian', 'gsde'}))
def test_split_of_what_the_losses_cannot_know_is_refused_without_dist(name):
    parts = CASES[name].dist.split(CASES[name].param(5))
    with pytest.raises(ValueError, match='give|pass .* of another distribution that one as dist='):
        from_logits(parts)


# ---- numbers by hand

HALF, QUARTER, MASKED = log(0.5, 0.5), log(0.25, 0.75), torch.tensor([0.0, -torch.inf], dtype=torch.float64)
NARROW, WIDE = normal([0.0], [1.0]), normal([1.0], [2.0])
TWO = normal([0.0, 1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    'dist, function, args, number',
    [
        (Categorical(2), 'log_prob', (QUARTER, torch.tensor(0)), -math.log(4)),
        (Categorical(2), 'entropy', (QUARTER,), 0.562335),  # -(.25 ln .25 + .75 ln .75) = .346574 + .215762
        # .5 ln 2 + .5 ln(2/3) = .5 ln(4/3); the other way .25 ln .5 + .75 ln 1.5
        (Categorical(2), 'kl', (HALF, QUARTER), 0.5 * math.log(4 / 3)),
        (Categorical(2), 'kl', (QUARTER, HALF), 0.130812),
        # q = (1, e^-50000): .5 ln .5 + .5 (ln .5 + 50000); the large term is not cut off
        (Categorical(2), 'kl', (0 * HALF, torch.tensor([0.0, -50_000.0], dtype=torch.float64)), 25_000 - math.log(2)),
        # infinite if q forbids a choice that p may take; the reverse is 1 * (ln 1 - ln .5)
        (Categorical(2), 'kl', (HALF, MASKED), math.inf),
        (Categorical(2), 'kl', (MASKED, HALF), math.log(2)),
        # z = (1, -1): -.5 - .5 - ln 1 - ln 2 - ln(2 pi) = -1 - .693147 - 1.837877
        (Gaussian(2), 'log_prob', (TWO, torch.tensor([1.0, -1.0], dtype=torch.float64)), -3.531024),
        (Gaussian(2), 'entropy', (TWO,), 3.531024),  # .5 ln(2 pi e) = 1.418939 each, and ln 2
        # ln(2/1) + (1 + (0 - 1)^2) / (2 * 4) - 1/2; the reverse: -ln 2 + (4 + 1) / 2 - 1/2
        (Gaussian(1), 'kl', (NARROW, WIDE), 0.443147),
        (Gaussian(1), 'kl', (WIDE, NARROW), 1.306853),
        # dimensions are independent: two copies have twice the divergence
        (Gaussian(2), 'kl', tuple(x.repeat_interleave(2) for x in (NARROW, WIDE)), 0.886294),
    ],
)
def test_numbers_by_hand(dist, function, args, number):
    assert getattr(dist, function)(*args).item() == pytest.approx(number, abs=1e-6)


# ---- categorical


def test_categorical_gradients_by_hand():
    # p = (.25, .75), action 0, H = .562335. d logp / d logit = (1 - .25, -.75);
    # d H / d logit_j = -p_j (ln p_j + H): -.25 * (-1.386294 + .562335) = .205990 and
    # -.75 * (-.287682 + .562335) = -.205990;  d KL(q || p) / d logit = p - q
    dist, logit = Categorical(2), log(0.25, 0.75).requires_grad_()
    for result, want in (
        (dist.log_prob(logit, torch.tensor(0)), [0.75, -0.75]),
        (dist.entropy(logit), [0.205990, -0.205990]),
        (dist.kl(log(0.5, 0.5), logit), [-0.25, 0.25]),
    ):
        assert torch.autograd.grad(result, logit)[0].tolist() == pytest.approx(want, abs=1e-6)


def test_categorical_mode_is_the_likeliest_choice():
    assert Categorical(3).mode(torch.tensor([[0.1, 3.0, 2.0], [5.0, -torch.inf, 4.0]])).tolist() == [1, 0]


def test_categorical_sample_frequencies_match_the_probabilities():
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.01, 0.0, 0.09, 0.9]])
    n, dist = 40_000, Categorical(4)
    action = dist.sample(p.log() + 3, dist.noise((n, 2), generator(3), CPU))
    assert action.shape == (n, 2) and action.dtype == torch.int64
    for row in range(2):
        count = torch.bincount(action[:, row], minlength=4)
        possible = p[row] > 0
        assert count[~possible].sum() == 0  # a logit of -inf is never drawn
        chi_square = ((count - n * p[row]).square() / (n * p[row]))[possible].sum()
        assert chi_square < 25  # 3 degrees of freedom (2 in the second row): exceeded once in 60,000 seeds


def test_categorical_rows_and_steps_are_drawn_independently():
    # two fair coins agree in half of n steps, and so does one coin with its next step: n/2 +- 5 * sqrt(n)/2
    n, dist = 20_000, Categorical(2)
    action = dist.sample(torch.zeros(2, 2), dist.noise((n, 2), generator(0), CPU))
    bound = 2.5 * math.sqrt(n)
    assert abs(int((action[:, 0] == action[:, 1]).sum()) - n / 2) < bound
    assert abs(int((action[1:, 0] == action[:-1, 0]).sum()) - n / 2) < bound


# ---- Gaussian


@pytest.mark.parametrize('state_dependent_std', [False, True])
@pytest.mark.parametrize('low, high', [(LOG_STD_MIN, LOG_STD_MAX), (-3.0, -0.5)])
def test_gaussian_head_starts_with_the_given_deviation_and_keeps_it_in_bounds(state_dependent_std, low, high):
    options = {'state_dependent_std': state_dependent_std, 'log_std_init': -1.0}
    if (low, high) != (LOG_STD_MIN, LOG_STD_MAX):  # else the defaults
        options |= {'log_std_min': low, 'log_std_max': high}
    head = Gaussian(2).make_head(4, options)
    sigma = Gaussian(2).split(head(torch.zeros(3, 4)))['sigma']
    torch.testing.assert_close(sigma, torch.full((3, 2), math.exp(-1)))
    free = head.log_std_layer.bias if state_dependent_std else head.log_std
    for value, bound in ((-99.0, low), (99.0, high)):
        torch.nn.init.constant_(free, value)
        sigma = Gaussian(2).split(head(torch.zeros(3, 4)))['sigma']
        torch.testing.assert_close(sigma, torch.full((3, 2), math.exp(bound)))


def test_log_std_has_a_gradient_on_its_bounds_and_none_beyond_them():
    log_std = torch.tensor([-3.5, -3.0, -1.0, 0.5, 0.75], requires_grad=True)
    bounded = bounded_log_std(log_std, -3.0, 0.5)
    bounded.sum().backward()
    assert bounded.tolist() == [-3.0, -3.0, -1.0, 0.5, 0.5] and log_std.grad.tolist() == [0, 1, 1, 1, 0]


@pytest.mark.parametrize('log_std_min, log_std_max', [(-1.0, 2.0), (-10.0, -3.0), (1.0, 0.0)])
def test_gaussian_head_that_would_start_outside_its_bounds_is_refused(log_std_min, log_std_max):
    options = {'log_std_init': -2.0, 'log_std_min': log_std_min, 'log_std_max': log_std_max}
    wanted = (
        f'log_std_init is -2.0 but must lie between log_std_min {log_std_min} and log_std_max {log_std_max}; change'
    )
    with pytest.raises(UserError, match=wanted):
        Gaussian(2).make_head(4, options)


def test_gaussian_head_has_the_parameter_names_of_old_checkpoints():
    names = {name for name, _ in Gaussian(2).make_head(4, {}).named_parameters()}
    assert names == {'mu.weight', 'mu.bias', 'log_std'}
    names = {name for name, _ in Gaussian(2).make_head(4, {'state_dependent_std': True}).named_parameters()}
    assert names == {'mu.weight', 'mu.bias', 'log_std_layer.weight', 'log_std_layer.bias'}


# ---- from a space, and from a user's logits


def box(*shape: int) -> Box:
    return Box(np.full(shape, -1.0), np.full(shape, 1.0))


@pytest.mark.parametrize(
    'space, kind, n_param, n_action',
    [
        (Discrete(5, 2), Categorical, 5, 0),
        (box(3), Gaussian, 6, 3),
        # a box that is not a vector is flattened
        (box(), Gaussian, 2, 1),
        (box(2, 3), Gaussian, 12, 6),
        (box(1, 2, 2), Gaussian, 8, 4),
    ],
    ids=str,
)
def test_make_dist_follows_the_space(space, kind, n_param, n_action):
    for dist in (make_dist(space), make_dist(space, kind.name)):
        assert (type(dist), dist.n_param, dist.n_action) == (kind, n_param, n_action)
    assert DISTRIBUTION_REGISTRY.get(dist.name) is kind


DOES_NOT_FIT = "policy.model.distribution is {!r}, which cannot draw the actions .*; use 'auto', or one of {}$"


@pytest.mark.parametrize(
    'space, name, sentence',
    [
        (Discrete(3), 'gaussian', DOES_NOT_FIT.format('gaussian', 'categorical')),
        (box(3), 'categorical', DOES_NOT_FIT.format('categorical', 'beta, gaussian, gsde, squashed_gaussian')),
        (Discrete(3), 'gausian', "unknown distribution 'gausian': did you mean 'gaussian'"),
        *(
            (space, 'auto', 'which no default distribution can draw; use another action space')
            for space in (box(0), box(2, 0), MultiDiscrete((), (), (0,)), MultiBinary((0,)))
        ),
    ],
    ids=str,
)
def test_make_dist_of_what_does_not_fit_is_refused(space, name, sentence):
    with pytest.raises(UserError, match=sentence):
        make_dist(space, name)


def test_distribution_of_follows_the_form_of_the_logit():
    logit: dict[str, Any] = {'mu': torch.zeros(5, 2), 'sigma': torch.ones(5, 2)}
    block = UserDict(logit)  # a user's rollout may use this mapping
    assert isinstance(distribution_of(torch.zeros(5, 3)), Categorical)
    assert distribution_of(torch.zeros(5, 3)).n_param == 3
    for form in (logit, block):
        dist, param = from_logits(form)
        assert isinstance(distribution_of(form), Gaussian) and dist.n_action == 2
        assert param.tolist() == [[0.0, 0.0, 1.0, 1.0]] * 5


@pytest.mark.parametrize('name', CASES)
def test_noise_of_a_generator_of_the_host_comes_to_a_device_without_waiting(name: str) -> None:
    with Crossings(counts_draws=True) as crossings:
        noise = CASES[name].dist.noise((4, 2), torch.Generator(), torch.device('meta'))
    assert noise.device.type == 'meta' and crossings.waited == []


def test_bounds_are_brought_to_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.tensor would copy them from the host, which waits for a GPU and is refused during the capture of a CUDA graph."""
    bounds, share = Bounds((-1.0, 0.1), (1.0, 0.3)), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    expected = torch.tensor([[-1.0, 0.3], [1.0, 0.1]])
    monkeypatch.delattr(torch, 'tensor')
    assert torch.equal(bounds.scale(share), expected) and torch.equal(bounds.share(expected), share)
