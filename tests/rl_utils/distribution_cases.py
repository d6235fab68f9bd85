"""Test cases: each registered distribution, random parameters for it, and the same distribution of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Bernoulli,
    Beta,
    Categorical,
    Distribution,
    Independent,
    Normal,
    TanhTransform,
    TransformedDistribution,
    kl_divergence,
)

from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from zoo.rl_utils import ActionDist, make_dist

CPU = torch.device('cpu')
NVEC = (3, 3, 5, 2)
LOW, HIGH = (-1.0, 0.5, -3.0), (1.0, 2.5, 5.0)
BOX = Box(np.array(LOW), np.array(HIGH))
HYBRID = Dict({'a': Discrete(4), 'b': Dict({'0': BOX, '1': MultiDiscrete((2, 3), (0, 0), (2,))}, is_tuple=True)})
N_FEATURE = 5


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Case(NamedTuple):
    """A registered distribution. param(*lead, seed): random parameters, float64; as_torch: the independent parts of the
    distribution of the env's actions; parts: the part of an action that each of them describes."""

    dist: ActionDist
    space: Space
    param: Callable[..., Tensor]
    as_torch: Callable[[Tensor], list[Distribution]]
    parts: Callable[[Tensor], list[Tensor]]

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        parts = self.parts(action)
        return sum(each.log_prob(x) for each, x in zip(self.as_torch(param), parts, strict=True))

    def entropy(self, param: Tensor) -> Tensor:
        return sum(entropy(each) for each in self.as_torch(param))

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        pairs = zip(self.as_torch(p), self.as_torch(q), strict=True)
        return sum(kl_divergence(x, y) for x, y in pairs)


def entropy(dist: Distribution) -> Tensor:
    """Entropy of a distribution of torch, which lacks that of a transformed one: a linear map adds log(scale)."""
    inner = getattr(dist, 'base_dist', None)
    if isinstance(dist, Independent) and isinstance(inner, TransformedDistribution):
        (affine,) = inner.transforms
        return (inner.base_dist.entropy() + affine.scale.log()).sum(-1)
    return dist.entropy()


def normal(mu: Tensor, sigma: Tensor) -> Distribution:
    return Independent(Normal(mu, sigma), 1)


def squashed(param: Tensor) -> list[Distribution]:
    low, high = (torch.tensor(x, dtype=param.dtype) for x in (LOW, HIGH))
    transforms = [TanhTransform(cache_size=1), AffineTransform((low + high) / 2, (high - low) / 2)]
    return [Independent(TransformedDistribution(Normal(param[..., :3], param[..., 3:]), transforms), 1)]


def beta(param: Tensor) -> list[Distribution]:
    low, high = (torch.tensor(x, dtype=param.dtype) for x in (LOW, HIGH))
    inner = TransformedDistribution(Beta(param[..., :3], param[..., 3:]), [AffineTransform(low, high - low)])
    return [Independent(inner, 1)]


def gsde(param: Tensor) -> list[Distribution]:
    basis = param[..., 3:].unflatten(-1, (3, N_FEATURE))
    return [normal(param[..., :3], (basis.square().sum(-1) + 1e-6).sqrt())]


def categoricals(param: Tensor, nvec: tuple[int, ...]) -> list[Distribution]:
    return [Categorical(logits=x) for x in param.split(nvec, -1)]


def hybrid(param: Tensor) -> list[Distribution]:
    a, b0, b1 = param.split((4, 6, 5), -1)
    return [Categorical(logits=a), normal(b0[..., :3], b0[..., 3:]), *categoricals(b1, (2, 3))]


def gaussian_param(*lead: int, seed: int = 0) -> Tensor:
    return torch.cat((draw(*lead, 3, seed=seed), (0.5 * draw(*lead, 3, seed=seed + 50)).exp()), -1)


def small_gaussian_param(*lead: int, seed: int = 0) -> Tensor:
    """Parameters whose draws stay where tanh loses few digits, on which torch's density depends."""
    return 0.5 * gaussian_param(*lead, seed=seed)


def hybrid_param(*lead: int, seed: int = 0) -> Tensor:
    parts = 2 * draw(*lead, 4, seed=seed), gaussian_param(*lead, seed=seed), draw(*lead, 5, seed=seed + 70)
    return torch.cat(parts, -1)


def make(space: Space, name: str) -> ActionDist:
    return make_dist(space, name, {'n_feature': N_FEATURE})


MULTI, BITS = MultiDiscrete(NVEC, (0,) * 4, (4,)), MultiBinary((3,))
CASES = {
    'bernoulli': Case(
        make(BITS, 'bernoulli'),
        BITS,
        lambda *lead, seed=0: 2 * draw(*lead, 3, seed=seed),
        lambda p: [Independent(Bernoulli(logits=p), 1)],
        lambda action: [action.to(torch.float64)],
    ),
    'beta': Case(
        make(BOX, 'beta'),
        BOX,
        lambda *lead, seed=0: 1 + (0.5 + 1.2 * draw(*lead, 6, seed=seed)).exp(),
        beta,
        lambda action: [make(BOX, 'beta').env_action(action)],
    ),
    'categorical': Case(
        make(Discrete(4), 'categorical'),
        Discrete(4),
        lambda *lead, seed=0: 2 * draw(*lead, 4, seed=seed),
        lambda p: [Categorical(logits=p)],
        lambda action: [action],
    ),
    'composite': Case(
        make(HYBRID, 'composite'),
        HYBRID,
        hybrid_param,
        hybrid,
        lambda action: [action[..., 0], action[..., 1:4], action[..., 4], action[..., 5]],
    ),
    'gaussian': Case(
        make(BOX, 'gaussian'), BOX, gaussian_param, lambda p: [normal(p[..., :3], p[..., 3:])], lambda action: [action]
    ),
    'gsde': Case(
        make(BOX, 'gsde'), BOX, lambda *lead, seed=0: draw(*lead, 18, seed=seed), gsde, lambda action: [action]
    ),
    'multi_categorical': Case(
        make(MULTI, 'multi_categorical'),
        MULTI,
        lambda *lead, seed=0: 2 * draw(*lead, 13, seed=seed),
        lambda p: categoricals(p, NVEC),
        lambda action: list(action.unbind(-1)),
    ),
    'squashed_gaussian': Case(
        make(BOX, 'squashed_gaussian'),
        BOX,
        small_gaussian_param,
        squashed,
        lambda action: [make(BOX, 'squashed_gaussian').env_action(action)],
    ),
}
each_case = pytest.mark.parametrize('case', CASES.values(), ids=CASES)


def action_of(case: Case, *lead: int, seed: int = 2) -> Tensor:
    """Actions drawn from other parameters, so that they are not the likely ones; float64 if real-valued."""
    return case.dist.sample(case.param(*lead, seed=seed), case.dist.noise(lead, generator(seed), CPU))
