"""`ppo_step` against the formulas of the paper, written out with autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, make_policy
from zoo.policy.updates import PPOStep, minibatches, ppo_step
from zoo.rl_utils.optimizer import FlatAdam
from zoo.spaces import Box

N = 16
OBS = Box(torch.full((3,), -torch.inf).numpy(), torch.full((3,), torch.inf).numpy())


def model_and_batch(space: Any, weighted: bool) -> tuple[Any, TensorDict]:
    """A network and samples of a policy that differs from it enough for ratios outside the clip range."""
    generator = torch.Generator().manual_seed(1)
    policy = make_policy(OBS, space, seed=3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    discrete = space is TWO_ACTIONS
    logit = (
        normal(N, 2) * 0.4
        if discrete
        else TensorDict({'mu': normal(N, 1) * 0.3, 'sigma': normal(N, 1).mul(0.3).exp()}, [N])
    )
    batch = {
        'obs': normal(N, 3),
        'action': torch.randint(2, (N,), generator=generator) if discrete else normal(N, 1),
        'logit': logit,
        'value': normal(N),
        'adv': normal(N),
        'return_': normal(N),
    }
    if weighted:
        batch['weight'] = torch.cat((torch.full((12,), 16 / 12), torch.zeros(4)))
    return policy._model, TensorDict(batch, [N])


def log_prob_and_entropy(logit: Any, action: Tensor) -> tuple[Tensor, Tensor]:
    if isinstance(logit, Tensor):
        dist: Any = torch.distributions.Categorical(logits=logit)
        return dist.log_prob(action), dist.entropy()
    dist = torch.distributions.Normal(logit['mu'], logit['sigma'])
    return dist.log_prob(action).sum(-1), dist.entropy().sum(-1)


def reference(model: Any, batch: TensorDict, step: PPOStep) -> tuple[Tensor, dict[str, Tensor]]:
    """The PPO objective, and its parts."""
    w = batch.get('weight', torch.ones(N))
    adv = batch['adv']
    logp, entropy = log_prob_and_entropy(model.compute_actor(batch['obs']), batch['action'])
    logp_old, _ = log_prob_and_entropy(batch['logit'], batch['action'])
    ratio, c = (logp - logp_old).exp(), step.clip_ratio
    surrogate = torch.minimum(ratio * adv, ratio.clamp(1 - c, 1 + c) * adv)
    if step.dual_clip is not None:
        surrogate = torch.where(adv < 0, torch.maximum(surrogate, step.dual_clip * adv), surrogate)
    value, old, target = model.compute_critic(batch['obs']), batch['value'], batch['return_']
    error = (value - target) ** 2
    if step.use_value_clip:
        error = torch.maximum(error, (old + (value - old).clamp(-c, c) - target) ** 2)
    parts = {
        'policy_loss': -(surrogate * w).mean(),
        'value_loss': 0.5 * (error * w).mean(),
        'entropy': (entropy * w).mean(),
        'approx_kl': ((logp_old - logp) * w).mean(),
        'clipfrac': (((ratio - 1).abs() > c) * w).mean(),
        'kl': ((ratio - 1 - (logp - logp_old)) * w).mean(),
    }
    return parts['policy_loss'] + step.value_weight * parts['value_loss'] - step.entropy_weight * parts[
        'entropy'
    ], parts


STEPS = {
    'plain': PPOStep(grad_clip=None, measure_kl=True),
    'all': PPOStep(0.15, 0.7, 0.03, True, 1.5, None, True),
}


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('space', [TWO_ACTIONS, ONE_NUMBER], ids=['discrete', 'box'])
@pytest.mark.parametrize('step', STEPS)
def test_ppo_step_has_the_gradient_and_metrics_of_the_objective(step: str, space: Any, weighted: bool) -> None:
    model, batch = model_and_batch(space, weighted)
    loss, parts = reference(model, batch, STEPS[step])
    named = list(model.named_parameters())
    want = torch.autograd.grad(loss, [p for _, p in named])
    optimizer = FlatAdam(named)
    metrics = ppo_step(model, optimizer, batch, STEPS[step])
    for (name, p), gradient in zip(named, want, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f'{name}: {m}')
    for name, value in parts.items():
        torch.testing.assert_close(
            metrics[name], value.detach(), rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f'{name}: {m}'
        )
    norm = torch.sqrt(sum((g**2).sum() for g in want))
    torch.testing.assert_close(metrics['grad_norm'], norm, rtol=1e-4, atol=1e-6)
    assert 0.05 < metrics['clipfrac'] < 0.95  # both sides of the clip are in the batch


def test_ppo_step_does_not_add_up_gradients() -> None:
    model, batch = model_and_batch(TWO_ACTIONS, False)
    optimizer = FlatAdam(model.named_parameters(), lr=0.0)
    first = ppo_step(model, optimizer, batch, STEPS['plain'])['grad_norm']
    assert ppo_step(model, optimizer, batch, STEPS['plain'])['grad_norm'] == first


def test_ppo_step_changes_no_input() -> None:
    model, batch = model_and_batch(ONE_NUMBER, True)
    before = batch.clone()
    ppo_step(model, FlatAdam(model.named_parameters()), batch, STEPS['all'])
    assert (batch == before).all()


def test_minibatches_hold_each_row_once_in_an_order_of_the_generator() -> None:
    batch = TensorDict({'row': torch.arange(12)}, [12])
    generator = torch.Generator().manual_seed(0)
    epochs = [[m['row'].tolist() for m in minibatches(batch, 4, generator)] for _ in range(2)]
    for epoch in epochs:
        assert [len(part) for part in epoch] == [4, 4, 4] and sorted(sum(epoch, [])) == list(range(12))
    assert epochs[0] != epochs[1]
    again = [m['row'].tolist() for m in minibatches(batch, 4, torch.Generator().manual_seed(0))]
    assert again == epochs[0]


@pytest.mark.parametrize('weighted', [False, True])
def test_minibatches_normalise_advantages_over_the_valid_rows_of_each(weighted: bool) -> None:
    _, batch = model_and_batch(TWO_ACTIONS, weighted)
    raw = list(minibatches(batch, 8, torch.Generator().manual_seed(0)))
    normal = list(minibatches(batch, 8, torch.Generator().manual_seed(0), normalize_adv=True))
    assert len(raw) == len(normal) == 2
    for a, b in zip(raw, normal, strict=True):
        valid = a['weight'] > 0 if weighted else torch.ones(8, dtype=torch.bool)
        mean, std = a['adv'][valid].mean(), a['adv'][valid].std(correction=0)
        torch.testing.assert_close(b['adv'][valid], (a['adv'][valid] - mean) / std)
        assert torch.equal(a['obs'], b['obs']) and torch.equal(a['return_'], b['return_'])


def test_minibatches_of_one_row_are_only_centred() -> None:
    _, batch = model_and_batch(TWO_ACTIONS, False)
    assert [m['adv'].item() for m in minibatches(batch, 1, torch.Generator(), normalize_adv=True)] == [0.0] * N
