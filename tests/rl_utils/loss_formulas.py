"""PPO and PPG losses as plain formulas of torch.distributions, random batches for them, and the comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, Laplace, Normal, kl_divergence

from zoo.rl_utils import (
    ppg_data,
    ppg_joint_error,
    ppo_data,
    ppo_error,
)

Data = ppo_data | ppg_data
INFO = {'approx_kl', 'clipfrac'}  # without gradient


def results(data: Data, **options: Any) -> dict[str, Tensor]:
    """Losses and metrics by name."""
    if isinstance(data, ppg_data):
        return ppg_joint_error(data, **options)._asdict()
    loss, info = ppo_error(data, **options)
    return loss._asdict() | info._asdict()


def total(data: Data, **options: Any) -> Tensor:
    """The weighted sum of all losses, as in a policy."""
    losses = [x for name, x in results(data, **options).items() if name not in INFO]
    return sum(factor * x for factor, x in zip((1, 0.5, -0.01, 0.2), losses, strict=False))  # type: ignore[return-value]


def distribution(logit: Any) -> Distribution:
    """torch's distribution of a logit; a mapping with 'loc' is the one of test_distribution_own.py."""
    if isinstance(logit, Tensor):
        return Categorical(logits=logit)
    kind = Laplace if 'loc' in logit else Normal
    return Independent(kind(*logit.values()), 1)


def plain(
    data: Data, clip_ratio: float, use_value_clip: bool, dual_clip: float | None = None, kl_type: str = 'k1'
) -> dict[str, Tensor]:
    """The formulas as they are written, with autograd through each of them."""
    weight = torch.ones_like(data.return_) if data.weight is None else data.weight
    square = (data.return_ - data.value_new) ** 2
    if use_value_clip:
        change = data.value_new - data.value_old
        bounded = change.detach().clamp(-clip_ratio, clip_ratio)
        # the gradient is 1 at the edges; the gradient of torch's clamp there depends on the version
        value_clip = data.value_old + torch.where(change.abs() > clip_ratio, bounded, change)
        square = torch.max(square, (data.return_ - value_clip) ** 2)
    value_loss, new = (0.5 * square * weight).mean(), distribution(data.logit_new)
    if isinstance(data, ppg_data):
        cloning = (kl_divergence(distribution(data.logit_old), new) * weight).mean()
        return {'auxiliary_loss': value_loss, 'behavioral_cloning_loss': cloning}
    logp, logp_old = new.log_prob(data.action), distribution(data.logit_old).log_prob(data.action).detach()
    ratio = (logp - logp_old).exp()
    surrogate = torch.min(ratio * data.adv, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * data.adv)
    if dual_clip is not None:
        surrogate = torch.where(data.adv < 0, torch.max(surrogate, dual_clip * data.adv), surrogate)
    kl = torch.zeros_like(logp)
    if data.logit_pretrained is not None:
        r = (distribution(data.logit_pretrained).log_prob(data.action) - logp).exp()
        kl = {'k1': -r.log(), 'k2': r.log() ** 2 / 2, 'k3': r - 1 - r.log()}[kl_type]
    outside = ((ratio < 1 - clip_ratio) | (ratio > 1 + clip_ratio)).double()
    info = [(x * weight).sum() / weight.sum() if weight.any() else x.sum() * 0 for x in (logp_old - logp, outside)]
    return {
        'policy_loss': -(surrogate * weight).mean(),
        'value_loss': value_loss,
        'entropy_loss': (new.entropy() * weight).mean(),
        'kl_div': (kl * weight).mean(),
        'approx_kl': info[0].detach(),
        'clipfrac': info[1],
    }


def random_data(
    kind: Callable[..., Data] = ppo_data,
    continuous: bool = False,
    lead: tuple[int, ...] = (12,),
    weight: bool = True,
    pretrained: bool = True,
    seed: int = 0,
    n_last: int = 3,
    dtype: torch.dtype = torch.float64,
) -> Data:
    """A batch whose ratios and values fall inside the clip range and on both sides of it; some rows have no weight."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def logit() -> Any:
        first, second = 0.5 * draw(*lead, n_last), 0.3 * draw(*lead, n_last)
        return {'mu': first, 'sigma': second.exp()} if continuous else first

    action = draw(*lead, n_last) if continuous else torch.randint(n_last, lead, generator=generator)
    given = dict(logit_new=logit(), logit_old=logit(), action=action, value_new=draw(*lead), value_old=draw(*lead))
    given |= dict(value_old=0.2 * given['value_old'], return_=draw(*lead))
    given['weight'] = (draw(*lead) > 0) * draw(*lead).abs() if weight else None
    if kind is ppo_data:
        given |= dict(adv=draw(*lead), logit_pretrained=logit() if pretrained else None)
    return kind(**given)


def map_tensors(data: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same named tuple with the function applied to every tensor of it."""

    def one(x: Any) -> Any:
        return {k: function(v) for k, v in x.items()} if isinstance(x, dict) else None if x is None else function(x)

    return type(data)(*map(one, data))


def leaves(data: Data) -> list[Tensor]:
    """The inputs that get a gradient, set to require it."""
    parts = [data.logit_new] if isinstance(data.logit_new, Tensor) else list(data.logit_new.values())
    return [x.requires_grad_() for x in (*parts, data.value_new)]


def gradient(loss: Tensor, wrt: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, wrt, retain_graph=True, allow_unused=True, materialize_grads=True)


def assert_equals_formulas(data: Data, **options: Any) -> None:
    """Compares the values, and the gradient of each loss alone."""
    wrt, got, want = leaves(data), results(data, **options), plain(data, **options)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    for name in got.keys() - INFO:
        if got[name].requires_grad:
            torch.testing.assert_close(gradient(got[name], wrt), gradient(want[name], wrt), rtol=1e-9, atol=1e-12)
