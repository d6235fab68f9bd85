"""Distribution 'beta': D independent Beta numbers, scaled to the bounds of a Box; param [..., 2D] is alpha, then beta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from zoo.core.data import wide
from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import Space
from zoo.rl_utils.distribution import ActionDist, Bounds, Logit, drawn
from zoo.rl_utils.init import POLICY_GAIN, orthogonal

_N_PROPOSAL = 6
"""Proposals for one draw of a Gamma number. One is accepted with probability 0.952 or more; all 6 fail in 1.3e-8 of draws."""
_MARGIN = 1e-6  # actions keep this distance from 0 and 1, where the logarithm of the density may be infinite
BOUND_MARGIN = 1e-4  # distance that converted env actions keep from 0 and 1, where a density may be 0 or infinite


class BetaHead(nn.Module):
    """Features [..., F] -> 1 + softplus of a linear layer, [..., 2D]: alpha and beta above 1 give densities with one peak."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.layer = orthogonal(nn.Linear(n_in, 2 * n_out), POLICY_GAIN)

    def forward(self, feature: Tensor) -> Tensor:
        return 1 + softplus(self.layer(feature))


@DISTRIBUTION_REGISTRY.register('beta')
class Beta(ActionDist):
    """Actions are numbers x [..., D] f32 in (0, 1); the env gets low + (high - low) * x. alpha and beta are at least 1.

    Densities are those of the action that the env gets: they integrate to 1 over the Box. The functions of alpha and beta are
    computed in float64: differences of log-gamma lose as many digits as alpha has.
    Source: Chou et al. 2017, proceedings.mlr.press/v70/chou17a.html.
    """

    name: ClassVar[str] = 'beta'
    reads = ()

    def __init__(self, bounds: Bounds) -> None:
        n_dim = bounds.n_dim
        super().__init__(2 * n_dim, n_dim, 2 * 2 * n_dim * _N_PROPOSAL)
        self.bounds = bounds

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> Beta | None:
        bounds = Bounds.of_space(space)
        if bounds is None:
            return None
        return cls(bounds)

    def make_head(self, n_feature: int, options: Mapping[str, Any]) -> nn.Module:
        return BetaHead(n_feature, self.n_action)

    def noise(self, lead: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
        """Noise with normal numbers in the first half, exponential numbers in the second."""
        shape = (*lead, self.n_noise // 2)
        fills = (Tensor.normal_, Tensor.exponential_)
        return torch.cat([drawn(fill, shape, generator, device) for fill in fills], -1)

    def sample(self, param: Tensor, noise: Tensor) -> Tensor:
        """x = a / (a + b) with a, b Gamma numbers of the shapes alpha and beta.

        Source: Marsaglia and Tsang 2000, ACM TOMS 26(3): d * v with d = shape - 1/3, v = (1 + normal / sqrt(9 d))^3 is a
        Gamma number if log(uniform) < normal^2 / 2 + d * (1 - v + log(v)).
        """
        normal, exponential = noise.view(*noise.shape[:-1], 2, self.n_param, _N_PROPOSAL).unbind(-3)
        d = (wide(param) - 1 / 3).unsqueeze(-1)
        v = (1 + normal * (9 * d).rsqrt()).pow(3)
        accepted = exponential > d * (v - 1 - v.log()) - 0.5 * normal.square()  # log(v) is NaN below 0: not accepted
        index = accepted.to(torch.uint8).argmax(-1, keepdim=True)
        a, b = (d * v.gather(-1, index).clamp(min=_MARGIN)).squeeze(-1).chunk(2, -1)
        return (a / (a + b)).clamp(_MARGIN, 1 - _MARGIN)

    def mode(self, param: Tensor) -> Tensor:
        a, b = (wide(param) - 1).chunk(2, -1)
        both = a + b  # 0 if all x are equally likely: 1/2; not by adding a tiny number, which an exporter folds to 0
        return torch.where(both > 0, a / torch.where(both > 0, both, 1.0), 0.5).clamp(_MARGIN, 1 - _MARGIN)

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        shape = wide(param).double()
        dtype = wide(param).dtype
        x = action.double().clamp(_MARGIN, 1 - _MARGIN)
        logs = torch.cat((x.log(), (-x).log1p()), -1)
        return (((shape - 1) * logs).sum(-1) - _log_beta(shape) - self.bounds.log_width).to(dtype)

    def entropy(self, param: Tensor) -> Tensor:
        """log B(a, b) - (a - 1) psi(a) - (b - 1) psi(b) + (a + b - 2) psi(a + b), plus the log of the width."""
        shape = wide(param).double()
        dtype = wide(param).dtype
        both = _sum_of(shape)
        means = ((shape - 1) * shape.digamma()).sum(-1) - ((both - 2) * both.digamma()).sum(-1)
        return (_log_beta(shape) - means + self.bounds.log_width).to(dtype)

    def kl(self, param_p: Tensor, param_q: Tensor) -> Tensor:
        """log B(q) - log B(p) + (ap - aq) psi(ap) + (bp - bq) psi(bp) - (ap + bp - aq - bq) psi(ap + bp)."""
        p = wide(param_p).double()
        q = wide(param_q).double()
        dtype = wide(param_p).dtype
        both = _sum_of(p)
        means = ((p - q) * p.digamma()).sum(-1) - ((both - _sum_of(q)) * both.digamma()).sum(-1)
        return (_log_beta(q) - _log_beta(p) + means).to(dtype)

    def env_action(self, action: Tensor) -> Tensor:
        return self.bounds.scale(action)

    def from_env_action(self, action: Tensor) -> Tensor:
        return self.bounds.share(action).clamp(BOUND_MARGIN, 1 - BOUND_MARGIN)

    def split(self, param: Tensor) -> Logit:
        alpha, beta = param.chunk(2, -1)
        return {'alpha': alpha, 'beta': beta}

    def problem_of(self, param: Tensor) -> str:
        if bool((param >= 1).all()):
            return ''
        return 'an alpha or beta that is not 1 or more; give 1 + softplus(x)'


def _sum_of(shape: Tensor) -> Tensor:
    """alpha + beta, [..., D]."""
    alpha, beta = shape.chunk(2, -1)
    return alpha + beta


def _log_beta(shape: Tensor) -> Tensor:
    """Logarithm of the Beta functions of all dimensions, summed."""
    return shape.lgamma().sum(-1) - _sum_of(shape).lgamma().sum(-1)
