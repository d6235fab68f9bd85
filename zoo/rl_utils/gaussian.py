"""Distribution 'gaussian': D independent normal numbers; param [..., 2D] is mu followed by sigma."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.core.action_map import action_width
from zoo.core.errors import UserError
from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import Box, Space
from zoo.rl_utils.check import check_real_action, wide
from zoo.rl_utils.distribution import ActionDist, Logit, draw_device
from zoo.rl_utils.init import POLICY_GAIN, orthogonal

LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class GaussianHead(nn.Module):
    """Features [..., F] -> mu followed by sigma, [..., 2D]; log sigma is a free parameter or a layer of its own.

    Args: log_std_init: log sigma at the start; log_std_min, log_std_max: it stays between them.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        state_dependent_std: bool = False,
        log_std_init: float = 0.0,
        log_std_min: float = LOG_STD_MIN,
        log_std_max: float = LOG_STD_MAX,
    ) -> None:
        super().__init__()
        check_log_std(log_std_init, log_std_min, log_std_max)
        self.log_std_min, self.log_std_max = log_std_min, log_std_max
        self.mu = orthogonal(nn.Linear(n_in, n_out), POLICY_GAIN)
        if state_dependent_std:
            self.log_std_layer: nn.Linear | None = orthogonal(nn.Linear(n_in, n_out), POLICY_GAIN)
            nn.init.constant_(self.log_std_layer.bias, log_std_init)
        else:
            self.log_std_layer = None
            self.log_std = nn.Parameter(torch.full((n_out,), log_std_init))

    def forward(self, feature: Tensor) -> Tensor:
        mu = self.mu(feature)
        log_std = self.log_std if self.log_std_layer is None else self.log_std_layer(feature)
        return torch.cat((mu, bounded_log_std(log_std, self.log_std_min, self.log_std_max).exp().expand_as(mu)), -1)


def bounded_log_std(log_std: Tensor, low: float, high: float) -> Tensor:
    """log_std clamped to [low, high]; the gradient is 1 on the bounds, where that of `clamp` is 0 in torch 2.15."""
    bounded = log_std.detach().clamp(low, high)
    if not torch.is_grad_enabled():
        return bounded
    return torch.where(log_std == bounded, log_std, bounded)


def check_log_std(log_std_init: float, log_std_min: float, log_std_max: float) -> None:
    """The log standard deviation starts between its bounds. Raises: UserError."""
    if not log_std_min <= log_std_init <= log_std_max:
        raise UserError(
            f'policy.model.log_std_init is {log_std_init} but must lie between log_std_min {log_std_min} and '
            f'log_std_max {log_std_max}; change one of them'
        )


@DISTRIBUTION_REGISTRY.register('gaussian')
class Gaussian(ActionDist):
    """Actions are raw numbers [..., D] f32, before any clipping to bounds; sigma > 0 is the standard deviation.

    A subclass that holds mu and sigma in another way overrides `mu_sigma`, `sample`, `split` and `problem_of`.
    """

    name: ClassVar[str] = 'gaussian'
    is_default: ClassVar[bool] = True
    reads = ('state_dependent_std', 'log_std_init', 'log_std_min', 'log_std_max')

    def __init__(self, n_dim: int) -> None:
        super().__init__(2 * n_dim, n_dim)

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> Gaussian | None:
        return cls(action_width(space)) if isinstance(space, Box) and action_width(space) else None

    @classmethod
    def of_parts(cls, logit: Logit) -> tuple[Gaussian, Tensor] | None:
        if isinstance(logit, Tensor) or not isinstance(logit, Mapping) or not {'mu', 'sigma'} <= set(logit.keys()):
            return None
        mu, sigma = logit['mu'], logit['sigma']
        if mu.shape != sigma.shape:
            raise ValueError(f"'sigma' has shape {tuple(sigma.shape)} but 'mu' {tuple(mu.shape)}; they must be equal")
        return cls(mu.shape[-1] if mu.dim() else 0), torch.cat((mu, sigma), -1) if mu.dim() else mu

    def make_head(self, n_feature: int, options: Mapping[str, Any]) -> nn.Module:
        return GaussianHead(n_feature, self.n_action, **{key: options[key] for key in Gaussian.reads if key in options})

    def noise(self, lead: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
        where = draw_device(generator, device)
        return torch.empty((*lead, self.n_noise), device=where).normal_(generator=generator).to(device)

    def sample(self, param: Tensor, noise: Tensor) -> Tensor:
        mu, sigma = param.chunk(2, -1)
        return torch.addcmul(mu, sigma, noise)

    def mode(self, param: Tensor) -> Tensor:
        return param[..., : self.n_action]

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        mu, sigma = self.mu_sigma(param)
        z = (action - mu) / sigma
        return (z * z * -0.5 - sigma.log()).sum(-1) - _HALF_LOG_2PI * self.n_action

    def entropy(self, param: Tensor) -> Tensor:
        _, sigma = self.mu_sigma(param)
        return sigma.log().sum(-1) + (0.5 + _HALF_LOG_2PI) * self.n_action

    def kl(self, param_p: Tensor, param_q: Tensor) -> Tensor:
        """Closed form: sum_d log(sq / sp) + (sp^2 + (mp - mq)^2) / (2 sq^2) - 1/2."""
        (mu_p, sigma_p), (mu_q, sigma_q) = self.mu_sigma(param_p), self.mu_sigma(param_q)
        ratio, shift = sigma_p / sigma_q, (mu_p - mu_q) / sigma_q
        return (0.5 * (ratio * ratio + shift * shift - 1) - ratio.log()).sum(-1)

    def mu_sigma(self, param: Tensor) -> tuple[Tensor, ...]:
        """Mean and standard deviation, each [..., D]."""
        return wide(param).chunk(2, -1)

    def split(self, param: Tensor) -> Logit:
        mu, sigma = param.chunk(2, -1)
        return {'mu': mu, 'sigma': sigma}

    def problem_of(self, param: Tensor) -> str:
        if bool((param[..., self.n_action :] > 0).all()):
            return ''
        return (
            'a sigma that is not above 0; the second half of the numbers is the standard deviation, e.g. log_std.exp()'
        )

    def check_action(self, action: Tensor, lead: torch.Size) -> None:
        check_real_action(action, (*lead, self.n_action))
