"""Penalties of categorical and Gaussian policies against numbers by hand, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from zoo.config.components import make_component
from zoo.core.errors import UserError
from zoo.core.registry import PENALTY_REGISTRY
from zoo.rl_utils import ActionDist
from zoo.rl_utils.distributions.categorical import Categorical
from zoo.rl_utils.distributions.gaussian import Gaussian

NAMES = PENALTY_REGISTRY.names()


def tensor(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def rows(name: str, new: Tensor, old: Tensor, dist: ActionDist) -> Tensor:
    """The penalty of each row: the logits were `old` and are `new`, the value was 1 and is 3."""
    n = len(new)
    output = {'logit': new, 'value': torch.full((n,), 3.0, dtype=torch.float64)}
    minibatch = {'logit': old, 'logit_magnet': old, 'value': torch.ones(n, dtype=torch.float64)}
    return make_component(PENALTY_REGISTRY, name)(dist, output, minibatch)


NEW, OLD = tensor(0.8, 0.2).log().unsqueeze(0), tensor(0.5, 0.5).log().unsqueeze(0)
GAUSSIANS = tensor(1.0, 2.0).unsqueeze(0), tensor(0.0, 1.0).unsqueeze(0)  # mu 1, sigma 2 now; mu 0, sigma 1 before


@pytest.mark.parametrize(
    'name, dist, logits, penalty',
    [
        # KL(old || new) = .5 log(.5 / .8) + .5 log(.5 / .2) = .5 log(1.5625)
        ('kl', Categorical(2), (NEW, OLD), 0.5 * math.log(1.5625)),
        # KL(new || old) = .8 log(1.6) + .2 log(.4)
        ('reverse_kl', Categorical(2), (NEW, OLD), 0.8 * math.log(1.6) + 0.2 * math.log(0.4)),
        # log 2 + (1 + 1) / 8 - 1 / 2; the reverse: -log 2 + (4 + 1) / 2 - 1 / 2
        ('kl', Gaussian(1), GAUSSIANS, math.log(2) - 0.25),
        ('reverse_kl', Gaussian(1), GAUSSIANS, 2 - math.log(2)),
        # that from the average, which here is OLD
        ('magnet', Categorical(2), (NEW, OLD), 0.8 * math.log(1.6) + 0.2 * math.log(0.4)),
        ('value_drift', Categorical(2), (NEW, OLD), 2.0),  # .5 * (3 - 1)^2
        *((name, Categorical(2), (OLD, OLD), 0.0) for name in ('kl', 'reverse_kl')),
    ],
)
def test_penalties_by_hand(name, dist, logits, penalty):
    assert rows(name, *logits, dist).tolist() == pytest.approx([penalty])


def test_magnet_gradient_by_hand():
    """p_i (log(p_i / q_i) - KL): .8 (log 1.6 - KL) with KL = .8 log 1.6 + .2 log .4, and its negative."""
    logit = NEW.clone().requires_grad_()
    rows('magnet', logit, OLD, Categorical(2)).sum().backward()
    kl = 0.8 * math.log(1.6) + 0.2 * math.log(0.4)
    want = 0.8 * (math.log(1.6) - kl)
    assert logit.grad.tolist()[0] == pytest.approx([want, -want])


def test_value_drift_without_a_value_is_refused():
    with pytest.raises(UserError, match='trains its critic in steps of its own'):
        make_component(PENALTY_REGISTRY, 'value_drift')(
            Categorical(2), {'logit': NEW}, {'logit': OLD, 'value': tensor(1.0)}
        )


@pytest.mark.parametrize('name', ['kl', 'reverse_kl'])
def test_choices_that_a_mask_forbids_add_nothing(name):
    never = torch.full((1, 1), -math.inf, dtype=torch.float64)
    new = torch.cat((NEW, never), -1).requires_grad_()
    found = rows(name, new, torch.cat((OLD, never), -1), Categorical(3))
    torch.testing.assert_close(found, rows(name, NEW, OLD, Categorical(2)))
    assert torch.autograd.grad(found.sum(), new)[0].isfinite().all()


@pytest.mark.parametrize('name', NAMES)
def test_gradient_equals_finite_differences_and_stops_at_what_is_stored(name):
    generator = torch.Generator().manual_seed(0)
    new, old = (torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    value, value_old = (torch.randn(4, generator=generator, dtype=torch.float64) for _ in range(2))
    part, stored = (
        make_component(PENALTY_REGISTRY, name),
        {'logit': old, 'logit_magnet': old.clone(), 'value': value_old},
    )

    def penalty(logit: Tensor, value: Tensor) -> Tensor:  # 0 * x: a penalty reads only one of the two
        return part(Categorical(3), {'logit': logit, 'value': value}, stored) + 0 * (logit.sum() + value.sum())

    assert torch.autograd.gradcheck(penalty, (new.requires_grad_(), value.requires_grad_()))
    for x in stored.values():
        x.requires_grad_()
    assert all(
        x is None for x in torch.autograd.grad(penalty(new, value).sum(), list(stored.values()), allow_unused=True)
    )
