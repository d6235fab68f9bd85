"""Action distributions as stateless functions over a head's output; no object is made per step.

`logit` is a tensor [..., A] of unnormalised log-probabilities (categorical) or a mapping {'mu', 'sigma'} of [..., D]
(Gaussian with independent dimensions). `distribution_of(logit)` picks the class: callers never ask which space it is.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

Logit = Tensor | Mapping[str, Tensor]


class Distribution(Protocol):
    """What the losses and the policies need of a distribution; leading dimensions are free."""

    def noise(self, logit: Logit, n_step: int, generator: torch.Generator | None) -> Tensor:
        """Noise for n_step draws like `logit`: [n_step, ...]."""

    def sample(self, logit: Logit, noise: Tensor) -> Tensor:
        """An action per row, given its noise."""

    def mode(self, logit: Logit) -> Tensor:
        """The most likely action per row."""

    def log_prob(self, logit: Logit, action: Tensor) -> Tensor:
        """Log-probability (density) of each row's action, summed over action dimensions."""

    def entropy(self, logit: Logit) -> Tensor:
        """Entropy per row, nats."""

    def terms(self, parts: tuple[Tensor, ...], action: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """log_prob, entropy and what `pullback` needs, for the tensors of a logit as `logit_parts` gives them."""

    def pullback(self, saved: tuple[Tensor, ...], grad_logp: Tensor, grad_entropy: Tensor) -> tuple[Tensor, ...]:
        """Gradient with respect to each part: the vector-Jacobian product of `terms`, written out."""

    def kl(self, logit_p: Logit, logit_q: Logit) -> Tensor:
        """KL(p || q) per row, nats."""


class _Categorical:
    """Over A choices; logits of -inf are choices that cannot be taken."""

    def noise(self, logit: Tensor, n_step: int, generator: torch.Generator | None = None) -> Tensor:
        exponential = _empty(logit, n_step, generator).exponential_(generator=generator)
        return exponential.log_().neg_().to(logit.device)  # Gumbel(0, 1)

    def sample(self, logit: Tensor, noise: Tensor) -> Tensor:
        return (logit + noise).argmax(-1)  # the Gumbel-max trick: exact, no normalisation needed

    def mode(self, logit: Tensor) -> Tensor:
        return logit.argmax(-1)

    def log_prob(self, logit: Tensor, action: Tensor) -> Tensor:
        return _log_softmax(logit).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, logit: Tensor) -> Tensor:
        return _entropy(_log_softmax(logit))

    def terms(self, parts: tuple[Tensor, ...], action: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        logp, action = _log_softmax(parts[0]), action.unsqueeze(-1)
        entropy = _entropy(logp)
        return logp.gather(-1, action).squeeze(-1), entropy, (action, entropy, logp)

    def pullback(self, saved: tuple[Tensor, ...], grad_logp: Tensor, grad_entropy: Tensor) -> tuple[Tensor, ...]:
        """d logp(a) / d logit_j = 1[a = j] - p_j,   d H / d logit_j = -p_j * (log p_j + H)."""
        action, entropy, logp = saved
        grad_logp = grad_logp.unsqueeze(-1)
        slope = (_finite(logp) + entropy.unsqueeze(-1)).mul_(grad_entropy.unsqueeze(-1)).add_(grad_logp)
        return (slope.mul_(logp.exp()).neg_().scatter_add_(-1, action, grad_logp),)

    def kl(self, logit_p: Tensor, logit_q: Tensor) -> Tensor:
        logp, logq = _log_softmax(logit_p), _log_softmax(logit_q)
        gone = logp == -torch.inf  # 0 * log 0 is 0
        return (logp.exp() * (logp.masked_fill(gone, 0.0) - logq.masked_fill(gone, 0.0))).sum(-1)


class _Gaussian:
    """Over D independent dimensions; sigma > 0 is the standard deviation."""

    def noise(self, logit: Mapping[str, Tensor], n_step: int, generator: torch.Generator | None = None) -> Tensor:
        mu = logit['mu']
        return _empty(mu, n_step, generator).normal_(generator=generator).to(mu.device)

    def sample(self, logit: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        return torch.addcmul(logit['mu'], logit['sigma'], noise)

    def mode(self, logit: Mapping[str, Tensor]) -> Tensor:
        return logit['mu']

    def log_prob(self, logit: Mapping[str, Tensor], action: Tensor) -> Tensor:
        sigma = logit['sigma']
        z = (action - logit['mu']) / sigma
        return (z * z * -0.5 - sigma.log()).sum(-1) - 0.5 * math.log(2 * math.pi) * z.shape[-1]

    def entropy(self, logit: Mapping[str, Tensor]) -> Tensor:
        sigma = logit['sigma']
        return sigma.log().sum(-1) + 0.5 * math.log(2 * math.pi * math.e) * sigma.shape[-1]

    def terms(self, parts: tuple[Tensor, ...], action: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        mu, sigma = parts
        log_sigma, z, n = sigma.log().sum(-1), (action - mu) / sigma, mu.shape[-1]
        logp = (z * z).sum(-1).mul_(-0.5).sub_(log_sigma).sub_(0.5 * math.log(2 * math.pi) * n)
        return logp, log_sigma + 0.5 * math.log(2 * math.pi * math.e) * n, (sigma, z)

    def pullback(self, saved: tuple[Tensor, ...], grad_logp: Tensor, grad_entropy: Tensor) -> tuple[Tensor, ...]:
        """d logp / d mu = z / sigma,  d logp / d sigma = (z^2 - 1) / sigma,  d H / d sigma = 1 / sigma.

        Here z = (action - mu) / sigma.
        """
        sigma, z = saved
        grad_mu = z * grad_logp.unsqueeze(-1) / sigma
        return grad_mu, (grad_mu * z).add_((grad_entropy - grad_logp).unsqueeze(-1) / sigma)

    def kl(self, logit_p: Mapping[str, Tensor], logit_q: Mapping[str, Tensor]) -> Tensor:
        """Closed form: sum_d log(sq / sp) + (sp^2 + (mp - mq)^2) / (2 sq^2) - 1/2."""
        mu_p, sigma_p, mu_q, sigma_q = logit_p['mu'], logit_p['sigma'], logit_q['mu'], logit_q['sigma']
        ratio, shift = sigma_p / sigma_q, (mu_p - mu_q) / sigma_q
        return (0.5 * (ratio * ratio + shift * shift - 1) - ratio.log()).sum(-1)


Categorical: Distribution = _Categorical()  # type: ignore[assignment]
Gaussian: Distribution = _Gaussian()  # type: ignore[assignment]


def distribution_of(logit: Logit) -> Distribution:
    """The distribution that a head's output belongs to."""
    return Categorical if isinstance(logit, Tensor) else Gaussian


def logit_parts(logit: Logit) -> tuple[Tensor, ...]:
    """The tensors of a head's output: (logit,) or (mu, sigma)."""
    return (logit,) if isinstance(logit, Tensor) else (logit['mu'], logit['sigma'])


def lead_shape(logit: Logit) -> torch.Size:
    """Shape without the last dimension (choices or action dimensions)."""
    return (logit if isinstance(logit, Tensor) else logit['mu']).shape[:-1]


def _empty(like: Tensor, n_step: int, generator: torch.Generator | None) -> Tensor:
    """Where the generator can fill it: it need not be on the device of the logits."""
    return torch.empty((n_step, *like.shape), dtype=like.dtype, device=generator.device if generator else like.device)


def _log_softmax(logit: Tensor) -> Tensor:
    """In float32 at least: 8 bits of mantissa are too few for a ratio of probabilities."""
    return logit.log_softmax(-1, dtype=torch.float32 if logit.dtype in (torch.bfloat16, torch.float16) else None)


def _finite(logp: Tensor) -> Tensor:
    """-inf -> -1e4, whose exp is 0 in every dtype: then p * logp is 0 and gradients stay finite."""
    return logp.clamp(min=-1e4)


def _entropy(logp: Tensor) -> Tensor:
    return -(logp.exp() * _finite(logp)).sum(-1)
