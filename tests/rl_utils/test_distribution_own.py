"""A user's own distribution: one class with a name is enough for every loss, and no other code knows the class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.rl_utils.loss_formulas import assert_equals_formulas, gradient, leaves, map_tensors, random_data, total
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
    ppo_data,
    ppo_policy_data,
    ppo_policy_error,
)
from zoo.rl_utils.distribution import from_logits

SPACE = Box(np.full(2, -1.0), np.full(2, 1.0))


class LaplaceDist(ActionDist):
    """D independent Laplace-distributed numbers; param [..., 2D] is loc followed by scale."""

    name = 'laplace'

    def __init__(self, n_dim: int) -> None:
        super().__init__(2 * n_dim, n_dim)

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> LaplaceDist | None:
        return cls(space.shape[0]) if isinstance(space, Box) and len(space.shape) == 1 else None

    @classmethod
    def from_user_logit(cls, logit: Any) -> tuple[LaplaceDist, Tensor] | None:
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
    monkeypatch.setitem(DISTRIBUTION_REGISTRY.entries, 'laplace', LaplaceDist)


def batch(kind: Any = ppo_data) -> Any:
    """Random parameters as named parts, float64."""
    data = random_data(kind, continuous=True, n_last=2)
    own = {
        name: dict(zip(('loc', 'scale'), getattr(data, name).values(), strict=True))
        for name in data._fields
        if name.startswith('logit')
    }
    return data._replace(**own)


def test_it_is_made_from_a_space_by_name_alone():
    dist = make_dist(SPACE, 'laplace')
    assert isinstance(dist, LaplaceDist) and dist.n_action == 2
    assert isinstance(make_dist(SPACE), Gaussian)  # 'auto' still means the default of the space
    with pytest.raises(UserError, match="'laplace', which cannot draw the actions Discrete"):
        make_dist(Discrete(3), 'laplace')


def test_it_serves_in_the_leaves_of_a_dict_that_it_fits():
    dist = make_dist(Dict({'a': Discrete(3), 'b': SPACE}), 'laplace')
    assert [type(part).__name__ for part in dist.parts] == ['Categorical', 'LaplaceDist']


def test_losses_equal_the_formulas_over_torch_distributions():
    assert isinstance(distribution_of(batch().logit_new), LaplaceDist)
    assert_equals_formulas(batch(), clip_ratio=0.2, use_value_clip=True, dual_clip=2.0, kl_type='k3')
    assert_equals_formulas(batch(ppg_data), clip_ratio=0.2, use_value_clip=True)


def test_flat_parameters_with_dist_give_the_same_as_named_parts():
    data = batch()
    *parts, _ = leaves(data)
    logits = [name for name in data._fields if name.startswith('logit')]
    dist, *flat = from_logits(*(getattr(data, name) for name in logits))
    flat[0] = flat[0].detach().requires_grad_()
    want, got = total(data), total(data._replace(**dict(zip(logits, flat, strict=True))), dist=dist)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(gradient(got, flat[:1])[0], torch.cat(gradient(want, parts), -1))


def test_a_policy_with_it_learns():
    # actions near (1.5, 1.5) have the larger advantage, so loc moves there
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
    data = map_tensors(batch(), lambda x: x.detach().float())
    policy = ppo_policy_data(data.logit_new, data.logit_old, data.action, data.adv)
    said = kernels.explain('ppo_policy_error', *policy[:4])
    assert said.startswith("reference: the distribution 'laplace'") and 'is not covered, only categorical' in said
    assert ppo_policy_error(policy)[0].policy_loss.isfinite()
