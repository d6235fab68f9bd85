"""Distribution 'squashed_gaussian': the tanh of D independent normal numbers, scaled to the bounds of a Box."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import Space
from zoo.rl_utils.bounds import Bounds
from zoo.rl_utils.distribution import Logit
from zoo.rl_utils.gaussian import Gaussian

NEAREST = 1e-4  # share of the width between an action that is given and a bound, where u would be infinite
_MIXTURE = (
    (0.4273017449660798, 0.0278456055929928),
    (0.5834008518116535, 0.2179770651061165),
    (0.7906562683553188, 0.3949789653604713),
    (1.0711210751199594, 0.2781389114818473),
    (1.4441410205718659, 0.0763392501188231),
    (1.950563945162925, 0.0047202021397493),
)
"""(deviation, weight) of normal distributions that together are a logistic one of scale 1/2; see `_mean_log_2_cosh`."""


@DISTRIBUTION_REGISTRY.register('squashed_gaussian')
class SquashedGaussian(Gaussian):
    """Actions are the numbers u [..., D] before squashing; the env gets low + (high - low) * (tanh(u) + 1) / 2.

    Densities are those of what the env gets: they integrate to 1 over the Box. The divergence is that of the normal
    distributions, which no one-to-one map of the actions changes. The mode is mu: the most likely u, and what mu is
    squashed to is the median of the env's actions.
    """

    name: ClassVar[str] = 'squashed_gaussian'
    is_default: ClassVar[bool] = False

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds.n_dim)
        self.bounds = bounds
        # of the Jacobian: half the width, and the 4 of 1 - tanh(u)^2 = 4 / (2 cosh(u))^2
        self._log_scale = bounds.log_width + bounds.n_dim * math.log(4 / 2)

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> SquashedGaussian | None:
        bounds = Bounds.of_space(space)
        return None if bounds is None else cls(bounds)

    @classmethod
    def of_parts(cls, logit: Logit) -> None:
        return None

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        """log N(u) - sum log(1 - tanh(u)^2) - sum log(half width), 1 - tanh(u)^2 = 4 exp(-2 (u + softplus(-2u)))."""
        squash = 2 * (action + softplus(-2 * action)).sum(-1)
        return super().log_prob(param, action) + (squash - self._log_scale)

    def entropy(self, param: Tensor) -> Tensor:
        """Right to 1.1e-7 a dimension in exact arithmetic, whatever mu and sigma are; see `_mean_log_2_cosh`."""
        mu, sigma = self.mu_sigma(param)
        return super().entropy(param) - 2 * _mean_log_2_cosh(mu, sigma).sum(-1) + self._log_scale

    def env_action(self, action: Tensor) -> Tensor:
        return self.bounds.scale((torch.tanh(action) + 1) * 0.5)

    def from_env_action(self, action: Tensor) -> Tensor:
        share = self.bounds.share(action).clamp(NEAREST, 1 - NEAREST)
        return torch.atanh(2 * share - 1)

    def split(self, param: Tensor) -> Logit:
        loc, scale = param.chunk(2, -1)
        return {'loc': loc, 'scale': scale}  # as 'mu' and 'sigma' the losses would take them for a Gaussian's


def _mean_log_2_cosh(mu: Tensor, sigma: Tensor) -> Tensor:
    """E log(2 cosh(u)) for u normal, element by element.

    log(2 cosh(u)) = E|u + L| with L logistic of scale 1/2: both have the second derivative cosh(u)^-2 and the same
    limits. L is a mixture of normal distributions of mean 0 (Andrews and Mallows 1974), here of six: they were fitted so
    that E|u + L| is off by at most 5.4e-8 at any u, and so is its mean. For x normal with mean m and deviation s,
    E|x| = s * sqrt(2 / pi) * exp(-z^2) + m * erf(z), z = m / (s * sqrt(2)).
    """
    # made of fills: a compiler cannot trace tensors from elsewhere, and torch.tensor would wait for a GPU
    scale, weight = (torch.cat([mu.new_full((1,), x) for x in column]) for column in zip(*_MIXTURE, strict=True))
    mu, total = mu.unsqueeze(-1), (sigma.square().unsqueeze(-1) + scale.square()).sqrt()
    z = mu / (total * math.sqrt(2))
    mean = total * math.sqrt(2 / math.pi) * (-z * z).exp() + mu * z.erf()
    return (mean * weight).sum(-1)
