"""Normal distributions of real-valued actions: 'gaussian', 'squashed_gaussian' and 'gsde'.

'gaussian' is D independent normal numbers, 'squashed_gaussian' their tanh scaled to a Box; param [..., 2D] is mu followed
by sigma. 'gsde' has noise that is a function of the state (generalised state-dependent exploration).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from zoo.core.action_map import action_width
from zoo.core.data import wide
from zoo.core.errors import UserError
from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import Box, Space
from zoo.rl_utils.distribution import ActionDist, Bounds, Logit, drawn
from zoo.rl_utils.init import POLICY_GAIN, orthogonal

LOG_STD_MIN = -10.0
LOG_STD_MAX = 2.0
_OF_HEAD = ('log_std_init', 'log_std_min', 'log_std_max')
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
Own = TypeVar('Own', bound='Gaussian')
BOUND_MARGIN = 1e-4  # share of the width: distance that converted env actions keep from a bound, where u is infinite
_MIXTURE = (
    (0.4273017449660798, 0.0278456055929928),
    (0.5834008518116535, 0.2179770651061165),
    (0.7906562683553188, 0.3949789653604713),
    (1.0711210751199594, 0.2781389114818473),
    (1.4441410205718659, 0.0763392501188231),
    (1.950563945162925, 0.0047202021397493),
)
"""(deviation, weight) of normal distributions whose mixture is close to a logistic one of scale 1/2; see `_mean_log_2_cosh`."""
_EPSILON = 1e-6  # added to the variance of 'gsde', which is 0 where all features are 0


class GaussianHead(nn.Module):
    """Features [..., F] -> mu followed by sigma, [..., 2D]; log sigma is a free parameter or a separate layer.

    Args: log_std_init: initial log sigma; log_std_min, log_std_max: bounds of log sigma.
    Raises: UserError if log_std_init is not between the bounds.
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
        if not log_std_min <= log_std_init <= log_std_max:
            raise UserError(
                f'policy.model.log_std_init is {log_std_init} but must lie between log_std_min {log_std_min} and '
                f'log_std_max {log_std_max}; change one of them'
            )
        self.log_std_min = log_std_min
        self.log_std_max = log_std_max
        self.mu = orthogonal(nn.Linear(n_in, n_out), POLICY_GAIN)
        if state_dependent_std:
            self.log_std_layer: nn.Linear | None = orthogonal(nn.Linear(n_in, n_out), POLICY_GAIN)
            nn.init.constant_(self.log_std_layer.bias, log_std_init)
        else:
            self.log_std_layer = None
            self.log_std = nn.Parameter(torch.full((n_out,), log_std_init))

    def forward(self, feature: Tensor) -> Tensor:
        mu = self.mu(feature)
        if self.log_std_layer is None:
            log_std = self.log_std
        else:
            log_std = self.log_std_layer(feature)
        return torch.cat((mu, bounded_log_std(log_std, self.log_std_min, self.log_std_max).exp().expand_as(mu)), -1)


def bounded_log_std(log_std: Tensor, low: float, high: float) -> Tensor:
    """log_std clamped to [low, high]; the gradient is 1 on the bounds, where `clamp` gives 0 in torch 2.15."""
    bounded = log_std.detach().clamp(low, high)
    if not torch.is_grad_enabled():
        return bounded
    return torch.where(log_std == bounded, log_std, bounded)


@DISTRIBUTION_REGISTRY.register('gaussian')
class Gaussian(ActionDist):
    """Actions are raw numbers [..., D] f32, before any clipping to bounds; sigma > 0 is the standard deviation.

    A subclass that holds mu and sigma in another way overrides `mu_sigma`, `sample`, `split` and `problem_of`.
    Attributes: noise_color: exponent of the noise of a rollout, see `colored`; each draw alone is normal for any exponent.
    """

    name: ClassVar[str] = 'gaussian'
    is_default: ClassVar[bool] = True
    reads: tuple[str, ...] | None = (*_OF_HEAD, 'state_dependent_std', 'noise_color')
    noise_color = 0.0

    def __init__(self, n_dim: int) -> None:
        super().__init__(2 * n_dim, n_dim)

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> Gaussian | None:
        if isinstance(space, Box) and action_width(space):
            return cls(action_width(space)).with_color(options)
        return None

    @classmethod
    def from_user_logit(cls, logit: Logit) -> tuple[Gaussian, Tensor] | None:
        """As `ActionDist.from_user_logit`; None in a subclass that is no default: 'mu' and 'sigma' mean a plain Gaussian."""
        if not cls.is_default or not isinstance(logit, Mapping) or not {'mu', 'sigma'} <= set(logit.keys()):
            return None
        mu = logit['mu']
        sigma = logit['sigma']
        if mu.shape != sigma.shape:
            raise ValueError(f"'sigma' has shape {tuple(sigma.shape)} but 'mu' {tuple(mu.shape)}; they must be equal")
        if not mu.dim():
            return cls(0), mu
        return cls(mu.shape[-1]), torch.cat((mu, sigma), -1)

    def with_color(self: Own, options: Mapping[str, Any]) -> Own:
        """Sets the color of the noise from `options`; returns this distribution."""
        self.noise_color = options.get('noise_color', 0.0)
        return self

    def make_head(self, n_feature: int, options: Mapping[str, Any]) -> nn.Module:
        of_head = (*_OF_HEAD, 'state_dependent_std')
        return GaussianHead(n_feature, self.n_action, **{key: options[key] for key in of_head if key in options})

    def noise(self, lead: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
        noise = drawn(Tensor.normal_, (*lead, self.n_noise), generator, device)
        if self.noise_color and len(lead) == 2:
            return colored(noise, self.noise_color)
        return noise

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
        mu_p, sigma_p = self.mu_sigma(param_p)
        mu_q, sigma_q = self.mu_sigma(param_q)
        ratio = sigma_p / sigma_q
        shift = (mu_p - mu_q) / sigma_q
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


def colored(white: Tensor, color: float) -> Tensor:
    """Normal noise [T, ...] with a power proportional to f^-color at frequency f, from independent normal noise of that shape.

    Each number has mean 0 and variance 1. Numbers of one series (along T) are dependent, different series are independent.
    color: 0: white, 1: pink, 2: red. The mean over T has the power of the lowest frequency.
    Source: Timmer and Koenig 1995; for exploration Eberhard et al. 2023, for PPO Hollenstein et al. 2024, arXiv:2312.11091.
    """
    n_step = len(white)
    index = torch.arange(n_step, device=white.device)
    frequency = torch.minimum(index, n_step - index).clamp(min=1)  # of each Fourier term, in units of 1 / T
    power = frequency.to(white.dtype) ** -color
    scale = (power / power.mean()).sqrt()[: n_step // 2 + 1].view(-1, *(1 for _ in white.shape[1:]))
    return torch.fft.irfft(torch.fft.rfft(white, dim=0) * scale, n=n_step, dim=0)


@DISTRIBUTION_REGISTRY.register('squashed_gaussian')
class SquashedGaussian(Gaussian):
    """Actions are the numbers u [..., D] before squashing; the env gets low + (high - low) * (tanh(u) + 1) / 2.

    Densities are those of the action that the env gets: they integrate to 1 over the Box. The KL divergence is that of the
    normal distributions, since no one-to-one map of the actions changes it. The mode is mu, which is the most likely u; the
    squashed mu is the median of the env's actions.
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
        if bounds is None:
            return None
        return cls(bounds).with_color(options)

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        """log N(u) - sum log(1 - tanh(u)^2) - sum log(half width), where 1 - tanh(u)^2 = 4 exp(-2 (u + softplus(-2u)))."""
        squash = 2 * (action + softplus(-2 * action)).sum(-1)
        return super().log_prob(param, action) + (squash - self._log_scale)

    def entropy(self, param: Tensor) -> Tensor:
        """Entropy per row, in exact arithmetic with an error of at most 1.1e-7 a dimension; see `_mean_log_2_cosh`."""
        mu, sigma = self.mu_sigma(param)
        return super().entropy(param) - 2 * _mean_log_2_cosh(mu, sigma).sum(-1) + self._log_scale

    def env_action(self, action: Tensor) -> Tensor:
        return self.bounds.scale((torch.tanh(action) + 1) * 0.5)

    def from_env_action(self, action: Tensor) -> Tensor:
        share = self.bounds.share(action).clamp(BOUND_MARGIN, 1 - BOUND_MARGIN)
        return torch.atanh(2 * share - 1)

    def split(self, param: Tensor) -> Logit:
        loc, scale = param.chunk(2, -1)
        return {'loc': loc, 'scale': scale}  # named 'mu' and 'sigma' the losses would take them for a Gaussian


def _mean_log_2_cosh(mu: Tensor, sigma: Tensor) -> Tensor:
    """E log(2 cosh(u)) for a normal u, elementwise.

    log(2 cosh(u)) = E|u + L| with L logistic of scale 1/2: both have the second derivative cosh(u)^-2 and the same
    limits. L is a mixture of normal distributions of mean 0 (Andrews and Mallows 1974), here of six. They were fitted so
    that E|u + L| is off by at most 5.4e-8 at any u, and so is its mean. For x normal with mean m and deviation s,
    E|x| = s * sqrt(2 / pi) * exp(-z^2) + m * erf(z), z = m / (s * sqrt(2)).
    """
    # made by new_full: a compiler cannot trace tensors from elsewhere, and torch.tensor would wait for a GPU
    scale, weight = (torch.cat([mu.new_full((1,), x) for x in column]) for column in zip(*_MIXTURE, strict=True))
    mu = mu.unsqueeze(-1)
    total = (sigma.square().unsqueeze(-1) + scale.square()).sqrt()
    z = mu / (total * math.sqrt(2))
    mean = total * math.sqrt(2 / math.pi) * (-z * z).exp() + mu * z.erf()
    return (mean * weight).sum(-1)


class GSDEHead(GaussianHead):
    """Features [..., L] -> mu [..., D], followed by feature_l * std_ld for every d and l, [..., D * L].

    std = exp(log_std), where log_std is a free parameter; the features get no gradient from these products. sigma_d has the
    size of std times the norm of the features: with more than a few features use a log_std_init of -2 or less.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        log_std_init: float = 0.0,
        log_std_min: float = LOG_STD_MIN,
        log_std_max: float = LOG_STD_MAX,
    ) -> None:
        super().__init__(n_in, n_out, False, log_std_init, log_std_min, log_std_max)
        self.log_std = nn.Parameter(torch.full((n_in, n_out), log_std_init))

    def forward(self, feature: Tensor) -> Tensor:
        std = bounded_log_std(self.log_std, self.log_std_min, self.log_std_max).exp()
        basis = feature.detach().unsqueeze(-2) * std.t()  # [..., 1, L] * [D, L]
        return torch.cat((self.mu(feature), basis.flatten(-2)), -1)


@DISTRIBUTION_REGISTRY.register('gsde')
class GSDE(Gaussian):
    """Actions are raw numbers [..., D] f32: mu + sum_l basis_dl * noise_dl, so sigma_d^2 = sum_l basis_dl^2.

    The noise numbers are weights of a linear function of the features. An env keeps them for `sde_sample_freq` steps
    (0, None or -1: a whole rollout); meanwhile the same state has the same action. Noise with the leading shape (T, B) is
    for a rollout; with any other leading shape each row has its own noise.
    Source: Raffin et al. 2020, arXiv:2005.05719, as in Stable-Baselines3 with full_std and without learn_features.
    """

    name: ClassVar[str] = 'gsde'
    is_default: ClassVar[bool] = False
    reads = (*_OF_HEAD, 'sde_sample_freq')

    def __init__(self, n_dim: int, n_feature: int, sde_sample_freq: int | None = None) -> None:
        super().__init__(n_dim)
        self.n_param = n_dim + n_dim * n_feature
        self.n_noise = n_dim * n_feature
        self.n_feature = n_feature
        self.sde_sample_freq = sde_sample_freq or 0

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
        """mu and sigma; sigma is computed, so it is no view."""
        mu, sigma = self.mu_sigma(param)
        return {'mu': mu, 'sigma': sigma}

    def problem_of(self, param: Tensor) -> str:
        return ''

    def _mu_basis(self, param: Tensor) -> tuple[Tensor, Tensor]:
        """mu [..., D] and the basis [..., D, L]."""
        mu, basis = param.split((self.n_action, self.n_noise), -1)
        return mu, basis.view(*basis.shape[:-1], self.n_action, self.n_feature)
