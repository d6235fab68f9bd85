"""Distributions 'categorical' and 'gaussian' by hand-worked numbers in float64, and the lookup of a distribution."""

from __future__ import annotations

import math
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.crossings import Crossings
from tests.rl_utils.distribution_cases import CASES
from zoo.core.errors import UserError
from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from zoo.rl_utils import Categorical, Gaussian, distribution_of, make_dist
from zoo.rl_utils.distribution import Bounds, from_logits


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


# ---- Gaussian


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
