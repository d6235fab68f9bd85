"""A distribution of a user's own: one class with its name, and every loss takes it. Nothing else knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Laplace, kl_divergence

from zoo.core.errors import UserError
from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import Box, Dict, Discrete, Space
from zoo.rl_utils import (
    ActionDist,
    FlatAdam,
    Gaussian,
    distribution_of,
    kernels,
    make_dist,
    ppg_data,
    ppg_joint_error,
    ppo_data,
    ppo_error,
    ppo_policy_data,
    ppo_policy_error,
)

SPACE = Box(np.full(2, -1.0), np.full(2, 1.0))


class LaplaceDist(ActionDist):
    """D independent Laplace numbers; param [..., 2D] is loc followed by scale."""

    name = 'laplace'

    def __init__(self, n_dim: int) -> None:
        super().__init__(2 * n_dim, n_dim)

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> LaplaceDist | None:
        return cls(space.shape[0]) if isinstance(space, Box) and len(space.shape) == 1 else None

    @classmethod
    def of_parts(cls, logit: Any) -> tuple[LaplaceDist, Tensor] | None:
        if isinstance(logit, Tensor) or not isinstance(logit, Mapping) or 'loc' not in logit.keys():
            return None
        return cls(logit['loc'].shape[-1]), torch.cat((logit['loc'], logit['scale']), -1)

    def make_head(self, n_feature: int, options: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(n_feature, self.n_param), nn.Softplus())

    def noise(self, lead: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
        u = torch.rand((*lead, self.n_action), generator=generator) - 0.5
        return -u.sign() * (1 - 2 * u.abs()).log()

    def sample(self, param: Tensor, noise: Tensor) -> Tensor:
        loc, scale = param.chunk(2, -1)
        return loc + scale * noise

    def mode(self, param: Tensor) -> Tensor:
        return param[..., : self.n_action]

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        loc, scale = param.chunk(2, -1)
        return (-(action - loc).abs() / scale - (2 * scale).log()).sum(-1)

    def entropy(self, param: Tensor) -> Tensor:
        return (1 + (2 * param[..., self.n_action :]).log()).sum(-1)

    def kl(self, param_p: Tensor, param_q: Tensor) -> Tensor:
        (loc_p, scale_p), (loc_q, scale_q) = param_p.chunk(2, -1), param_q.chunk(2, -1)
        distance = (loc_p - loc_q).abs()
        return ((scale_q / scale_p).log() + (scale_p * (-distance / scale_p).exp() + distance) / scale_q - 1).sum(-1)

    def split(self, param: Tensor) -> dict[str, Tensor]:
        loc, scale = param.chunk(2, -1)
        return {'loc': loc, 'scale': scale}

    def check_action(self, action: Tensor, lead: torch.Size) -> None:
        if action.shape != (*lead, self.n_action):
            raise ValueError(f'action has shape {tuple(action.shape)}')


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Registers the class for one test."""
    DISTRIBUTION_REGISTRY.names()  # which loads the registry, so that the copies below are complete
    for name in ('_items', '_places'):
        monkeypatch.setattr(DISTRIBUTION_REGISTRY, name, dict(getattr(DISTRIBUTION_REGISTRY, name)))
    DISTRIBUTION_REGISTRY.register('laplace')(LaplaceDist)


def as_torch(logit: Mapping[str, Tensor]) -> Independent:
    return Independent(Laplace(logit['loc'], logit['scale']), 1)


def batch(n: int = 12) -> ppo_data:
    """Random parameters as named parts, float64, the new ones leaves."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    new, old, pretrained = ({'loc': draw(n, 2), 'scale': (0.3 * draw(n, 2)).exp()} for _ in range(3))
    for part in new.values():
        part.requires_grad_()
    action = old['loc'] + old['scale'] * draw(n, 2)
    return ppo_data(
        new, old, action, 0.3 * draw(n).requires_grad_(), draw(n), draw(n), draw(n), draw(n).abs(), pretrained
    )


def flat(logit: Mapping[str, Tensor]) -> Tensor:
    return torch.cat((logit['loc'], logit['scale']), -1)


def test_it_is_made_from_a_space_by_name_alone():
    dist = make_dist(SPACE, 'laplace')
    assert isinstance(dist, LaplaceDist) and dist.n_action == 2
    assert isinstance(make_dist(SPACE), Gaussian)  # 'auto' keeps to the default of the space
    with pytest.raises(UserError, match="'laplace', which cannot draw the actions Discrete"):
        make_dist(Discrete(3), 'laplace')


def test_it_serves_in_the_leaves_of_a_dict_that_it_fits():
    dist = make_dist(Dict({'a': Discrete(3), 'b': SPACE}), 'laplace')
    assert [type(part).__name__ for part in dist.parts] == ['Categorical', 'LaplaceDist']


def test_it_is_found_from_its_named_parts():
    assert isinstance(distribution_of(batch().logit_new), LaplaceDist)


def test_ppo_error_equals_the_formulas_over_torch_distributions():
    data = batch()
    new = as_torch(data.logit_new)
    logp, logp_old = new.log_prob(data.action), as_torch(data.logit_old).log_prob(data.action)
    ratio = (logp - logp_old).exp()
    surrogate = torch.min(ratio * data.adv, ratio.clamp(0.8, 1.2) * data.adv)
    surrogate = torch.where(data.adv < 0, torch.max(surrogate, 2.0 * data.adv), surrogate)
    log_r = as_torch(data.logit_pretrained).log_prob(data.action) - logp
    terms = (-surrogate, new.entropy(), log_r.exp() - 1 - log_r, logp_old - logp, ((ratio - 1).abs() > 0.2).double())
    weight = data.weight
    want = [(term * weight).mean() for term in terms[:3]] + [(term * weight).sum() / weight.sum() for term in terms[3:]]
    loss, info = ppo_error(data, 0.2, dual_clip=2.0, kl_type='k3')
    got = [loss.policy_loss, loss.entropy_loss, loss.kl_div, *info]
    torch.testing.assert_close(got, want)
    parts = list(data.logit_new.values())
    for x, y in zip(got[:3], want[:3], strict=True):
        grads = [
            torch.autograd.grad(each, parts, retain_graph=True, allow_unused=True, materialize_grads=True)
            for each in (x, y)
        ]
        torch.testing.assert_close(*grads)


def test_ppg_joint_error_uses_its_divergence():
    data = batch()
    joint = ppg_data(data.logit_new, data.logit_old, None, data.value_new, data.value_old, data.return_, data.weight)
    got = ppg_joint_error(joint).behavioral_cloning_loss
    want = (kl_divergence(as_torch(data.logit_old), as_torch(data.logit_new)) * data.weight).mean()
    parts = list(data.logit_new.values())
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, parts), torch.autograd.grad(want, parts))


def test_flat_parameters_with_dist_give_the_same_as_named_parts():
    data = batch()
    param = flat(data.logit_new).detach().requires_grad_()
    flat_data = data._replace(
        logit_new=param, logit_old=flat(data.logit_old), logit_pretrained=flat(data.logit_pretrained)
    )
    dist = make_dist(SPACE, 'laplace')
    want, got = ppo_error(data, kl_type='k2'), ppo_error(flat_data, kl_type='k2', dist=dist)
    torch.testing.assert_close((*got[0], *got[1]), (*want[0], *want[1]))
    grads = torch.autograd.grad(sum(want[0]), list(data.logit_new.values()))
    torch.testing.assert_close(torch.autograd.grad(sum(got[0]), param)[0], torch.cat(grads, -1))


def test_a_policy_with_it_learns():
    # actions near (1.5, 1.5) have the larger advantage: its loc goes there
    dist = make_dist(SPACE, 'laplace')
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = dist.make_head(3, {})
    optimizer, feature = FlatAdam(head.named_parameters(), lr=0.02), torch.ones(256, 3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        with torch.no_grad():
            old = head(feature)
            action = dist.sample(old, dist.noise((256,), generator, torch.device('cpu')))
        adv = -(action - 1.5).square().sum(-1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = ppo_policy_error(ppo_policy_data(head(feature), old, action, adv - adv.mean()), dist=dist)[0]
            loss.policy_loss.backward()
            optimizer.step(0.5)
    loc = dist.mode(head(feature))[0]
    assert (loc - 1.5).abs().max() < 0.1


def test_kernels_leave_it_to_the_reference(monkeypatch):
    monkeypatch.setattr(kernels, 'MODE', 'interpret')
    monkeypatch.setattr(kernels, 'ENABLED', True)
    data = batch()
    data = data._replace(
        **{name: {k: v.detach().float() for k, v in getattr(data, name).items()} for name in ('logit_new', 'logit_old')}
    )
    data = data._replace(logit_pretrained=None, action=data.action.float(), adv=data.adv.float(), weight=None)
    policy = ppo_policy_data(data.logit_new, data.logit_old, data.action, data.adv)
    said = kernels.explain('ppo_policy_error', *policy[:4])
    assert said.startswith("reference: the distribution 'laplace'") and 'is not covered, only categorical' in said
    assert ppo_policy_error(policy)[0].policy_loss.isfinite()
