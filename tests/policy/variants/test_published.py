"""Published variants that are names: the settings of their papers, and the distillation of DNA."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.policy.updates import ppg, samples_of
from tests.step_parts import ValueNumbers
from zoo.policy.variants.published import distill_step
from zoo.rl_utils.optimizer import FlatOptimizer
from zoo.rl_utils.update_rules import SGDRule
from zoo.run.config import resolve_policy


@pytest.mark.parametrize(
    ('name', 'want'),
    [
        ('spo', {'surrogate': 'spo'}),
        ('ppo_ewma', {'proximal': 'ewma'}),
        ('ppg_ewma', {'proximal': 'ewma'}),
        ('ppg_reloaded', {'aux_freq': 4, 'aux_window': 32, 'aux_train_epoch': 1}),
        ('dna', {'phase': 'distill', 'aux_freq': 1, 'aux_train_epoch': 2, 'actor_epoch_per_collect': 2}),
    ],
)
def test_settings_of_a_variant_are_those_of_its_paper(name: str, want: dict[str, Any]) -> None:
    learn = resolve_policy({'type': name}).learn
    assert {key: getattr(learn, key) for key in want} == want


def test_dna_estimates_the_targets_of_policy_and_critic_with_a_lambda_each() -> None:
    collect = resolve_policy({'type': 'dna'}).collect
    assert collect.gae_lambda == 0.8
    assert collect.estimator == {'type': 'gae', 'value_lambda': 0.95}


def test_distill_step_has_the_gradient_of_its_loss_and_leaves_the_critic_alone() -> None:
    policy = ppg()
    batch = samples_of(policy)
    batch['logit'] = batch['logit'] + torch.tensor([0.5, 0.0])  # the cloning term has a gradient
    model = policy.model
    output = model.compute_aux(batch['obs'])
    auxiliary = 0.5 * (output['aux_value'] - batch['return_']).square().mean()
    old, new = batch['logit'].log_softmax(-1), output['logit'].log_softmax(-1)
    cloning = (old.exp() * (old - new)).sum(-1).mean()
    named = dict(model.named_parameters())
    want = torch.autograd.grad(auxiliary + 0.7 * cloning, list(named.values()), allow_unused=True)
    before = {name: p.detach().clone() for name, p in named.items()}
    optimizer = FlatOptimizer(model.named_parameters(), SGDRule(), lr=1.0)
    numbers = ValueNumbers(bc_weight=0.7)
    metrics = distill_step(model, policy.dist, [optimizer], batch, *numbers)
    for (name, p), gradient in zip(model.named_parameters(), want, strict=True):
        moved = before[name] - p.detach()  # SGD at rate 1 moves by the gradient
        torch.testing.assert_close(moved, torch.zeros_like(p) if gradient is None else gradient, rtol=1e-4, atol=1e-6)
        if name.startswith(('critic_encoder', 'value_head')):
            assert not moved.any(), name
    torch.testing.assert_close(metrics['auxiliary_loss'], auxiliary.detach())
    torch.testing.assert_close(metrics['behavioral_cloning_loss'], cloning.detach())
