"""Distribution 'gsde': normal numbers whose noise is a function of the state (generalised state-dependent exploration).

Source: Raffin et al. 2020, arXiv:2005.05719, as in Stable-Baselines3 with full_std and without learn_features.
"""

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
from zoo.rl_utils.check import wide
from zoo.rl_utils.distribution import Logit
from zoo.rl_utils.distributions.gaussian import LOG_STD_MAX, LOG_STD_MIN, Gaussian, bounded_log_std, check_log_std
from zoo.rl_utils.init import POLICY_GAIN, orthogonal

_EPSILON = 1e-6
"""Added to the variance, which is 0 where all features are."""


class GSDEHead(nn.Module):
    """Features [..., L] -> mu [..., D], followed by feature_l * std_ld for every d and l, [..., D * L].

    std = exp(log_std), a free parameter; through it the features get no gradient. sigma_d has the size of std times the
    norm of the features: with more than a few, log_std_init is -2 or less.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        log_std_init: float = 0.0,
        log_std_min: float = LOG_STD_MIN,
        log_std_max: float = LOG_STD_MAX,
    ) -> None:
        super().__init__()
        check_log_std(log_std_init, log_std_min, log_std_max)
        self.log_std_min, self.log_std_max = log_std_min, log_std_max
        self.mu = orthogonal(nn.Linear(n_in, n_out), POLICY_GAIN)
        self.log_std = nn.Parameter(torch.full((n_in, n_out), log_std_init))

    def forward(self, feature: Tensor) -> Tensor:
        std = bounded_log_std(self.log_std, self.log_std_min, self.log_std_max).exp()
        basis = feature.detach().unsqueeze(-2) * std.t()  # [..., 1, L] * [D, L]
        return torch.cat((self.mu(feature), basis.flatten(-2)), -1)


_OF_HEAD = ('log_std_init', 'log_std_min', 'log_std_max')


@DISTRIBUTION_REGISTRY.register('gsde')
class GSDE(Gaussian):
    """Actions are raw numbers [..., D] f32: mu + sum_l basis_dl * noise_dl, so sigma_d^2 = sum_l basis_dl^2.

    The noise is that of the weights of a linear function of the features. An env keeps it for `sde_sample_freq` steps
    (0, None or -1: a whole rollout), so that the same state has the same action in between. Noise of a leading shape
    (T, B) is that of a rollout; of any other each row has its own.
    """

    name: ClassVar[str] = 'gsde'
    is_default: ClassVar[bool] = False
    reads = (*_OF_HEAD, 'sde_sample_freq')

    def __init__(self, n_dim: int, n_feature: int, sde_sample_freq: int | None = None) -> None:
        super().__init__(n_dim)
        self.n_param, self.n_noise = n_dim + n_dim * n_feature, n_dim * n_feature
        self.n_feature, self.sde_sample_freq = n_feature, sde_sample_freq or 0

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> GSDE | None:
        if not isinstance(space, Box) or not action_width(space):
            return None
        if 'n_feature' not in options:
            raise UserError(
                "the distribution 'gsde' has parameters for each feature before the head, and their number is not "
                "given; pass options={'n_feature': ...}, and let a model of your own have the distribution as `dist`"
            )
        return cls(action_width(space), options['n_feature'], options.get('sde_sample_freq'))

    def make_head(self, n_feature: int, options: Mapping[str, Any]) -> nn.Module:
        return GSDEHead(n_feature, self.n_action, **{key: options[key] for key in _OF_HEAD if key in options})

    def noise(self, lead: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
        if len(lead) != 2:
            return super().noise(lead, generator, device)
        n_step, n_env = lead
        freq = self.sde_sample_freq
        if not 0 < freq < n_step:
            return super().noise((1, n_env), generator, device).expand(n_step, -1, -1)
        draws = super().noise((math.ceil(n_step / freq), n_env), generator, device)
        return draws.repeat_interleave(freq, 0)[:n_step]

    def sample(self, param: Tensor, noise: Tensor) -> Tensor:
        mu, basis = self._mu_basis(param)
        return mu + (basis * noise.view(*noise.shape[:-1], self.n_action, self.n_feature)).sum(-1)

    def mu_sigma(self, param: Tensor) -> tuple[Tensor, ...]:
        mu, basis = self._mu_basis(wide(param))
        return mu, (basis.square().sum(-1) + _EPSILON).sqrt()

    def split(self, param: Tensor) -> Logit:
        """mu and sigma, of which the second is computed, so no view."""
        mu, sigma = self.mu_sigma(param)
        return {'mu': mu, 'sigma': sigma}

    def problem_of(self, param: Tensor) -> str:
        return ''

    def _mu_basis(self, param: Tensor) -> tuple[Tensor, Tensor]:
        """[..., D] and [..., D, L]."""
        mu, basis = param.split((self.n_action, self.n_noise), -1)
        return mu, basis.view(*basis.shape[:-1], self.n_action, self.n_feature)
