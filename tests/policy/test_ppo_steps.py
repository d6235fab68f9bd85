"""Gradient steps, compared with the formulas of the papers written out with autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, clone, differing, make_policy
from tests.step_parts import PolicyNumbers, ValueNumbers
from zoo.backend.step import MSE
from zoo.config.components import Component
from zoo.core.spaces import Box
from zoo.policy.ppg import aux_step, value_step
from zoo.policy.ppo import policy_step, ppo_step, surrogate_loss
from zoo.rl_utils import kernels, surrogates, value_losses
from zoo.rl_utils.distribution import make_dist
from zoo.rl_utils.optimizer import FlatAdam

VALUE_CLIP = Component('value loss', 'clip', value_losses.clip, (('range', None),))
NONE, KL = Component('surrogate', 'none', surrogates.none), Component('penalty', 'kl', surrogates.kl)
N = 16
OBS = Box(torch.full((3,), -torch.inf).numpy(), torch.full((3,), torch.inf).numpy())


def model_and_batch(space: Any, weighted: bool, **policy: Any) -> tuple[Any, dict[str, Tensor]]:
    """A network and samples of a policy that differs from it enough for ratios outside the clip range."""
    generator = torch.Generator().manual_seed(1)
    model = make_policy(OBS, space, seed=3, **policy).model

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    discrete = space is TWO_ACTIONS
    logit = normal(N, 2) * 0.4 if discrete else torch.cat((normal(N, 1) * 0.3, normal(N, 1).mul(0.3).exp()), 1)
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
    return model, batch


def only(batch: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: batch[name] for name in names if name in batch}


def as_torch(logit: Tensor, discrete: bool) -> torch.distributions.Distribution:
    """The distribution of torch.distributions for two choices or for one number."""
    if discrete:
        return torch.distributions.Categorical(logits=logit)
    return torch.distributions.Independent(torch.distributions.Normal(*logit.chunk(2, -1)), 1)


def log_prob_and_entropy(logit: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    dist = as_torch(logit, not action.is_floating_point())
    return dist.log_prob(action), dist.entropy()


def dist_of(batch: dict[str, Tensor]) -> Any:
    return make_dist(ONE_NUMBER if batch['action'].is_floating_point() else TWO_ACTIONS)


def reference(model: Any, batch: dict[str, Tensor], step: PolicyNumbers) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the PPO objective and its terms."""
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
    if step.value_loss == VALUE_CLIP:
        error = torch.maximum(error, (old + (value - old).clamp(-c, c) - target) ** 2)
    parts = {
        'policy_loss': -(surrogate * w).mean(),
        'value_loss': 0.5 * (error * w).mean(),
        'entropy': (entropy * w).mean(),
        'approx_kl': ((logp_old - logp) * w).sum() / w.sum(),
        'clipfrac': (((ratio - 1).abs() > c) * w).sum() / w.sum(),
        'kl': ((ratio - 1 - (logp - logp_old)) * w).sum() / w.sum(),
        'ratio_max': ratio[w != 0].max(),
    }
    if step.value_loss == VALUE_CLIP:
        parts['value_clipfrac'] = (((value - old).abs() > c) * w).sum() / w.sum()
    loss = parts['policy_loss'] + step.value_weight * parts['value_loss'] - step.entropy_weight * parts['entropy']
    return loss, parts


ROUGH, CLOSE = dict(rtol=1e-4, atol=1e-6), dict(rtol=1e-9, atol=1e-12)
STEPS = {
    'plain': PolicyNumbers(grad_clip=None, measure_kl=True),
    'all': PolicyNumbers(0.15, 0.03, 1.5, None, True, 0.7, value_loss=VALUE_CLIP),
}


@pytest.mark.parametrize(
    ('step', 'space', 'weighted'),
    [
        ('plain', TWO_ACTIONS, False),
        ('plain', ONE_NUMBER, True),
        ('all', TWO_ACTIONS, True),
        ('all', ONE_NUMBER, False),
    ],
)
def test_ppo_step_has_the_gradient_and_metrics_of_the_objective(step: str, space: Any, weighted: bool) -> None:
    model, batch = model_and_batch(space, weighted)
    loss, parts = reference(model, batch, STEPS[step])
    named = list(model.named_parameters())
    want = torch.autograd.grad(loss, [p for _, p in named])
    optimizer = FlatAdam(named)
    metrics = ppo_step(model, dist_of(batch), [optimizer], batch, STEPS[step])
    for (name, p), gradient in zip(named, want, strict=True):
        torch.testing.assert_close(p.grad, gradient, **ROUGH, msg=lambda m, name=name: f'{name}: {m}')
    for name, value in parts.items():
        torch.testing.assert_close(metrics[name], value.detach(), **ROUGH, msg=lambda m, name=name: f'{name}: {m}')
    norm = torch.sqrt(sum((g**2).sum() for g in want))
    torch.testing.assert_close(metrics['grad_norm'], norm, **ROUGH)
    assert 0.05 < metrics['clipfrac'] < 0.95  # both sides of the clip are in the batch


def test_ppo_step_does_not_add_up_gradients() -> None:
    model, batch = model_and_batch(TWO_ACTIONS, False)
    optimizer = FlatAdam(model.named_parameters(), lr=0.0)
    first = ppo_step(model, dist_of(batch), [optimizer], batch, STEPS['plain'])['grad_norm']
    assert ppo_step(model, dist_of(batch), [optimizer], batch, STEPS['plain'])['grad_norm'] == first


class Still(FlatAdam):
    """Does not move parameters, so that the gradient of a float64 model can be read; Adam takes float32 only."""

    def step(self, grad_clip: float | None = None) -> Tensor:
        return self.grad.norm()


def ppg_model_and_batch(arch: str, space: Any, weighted: bool = False) -> tuple[Any, dict[str, Tensor]]:
    """As `model_and_batch`, for PPG and with a policy that is not near uniform."""
    model, batch = model_and_batch(space, weighted, type='ppg', model=dict(arch=arch))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator)
    return model, batch


def in_float64(model: Any, batch: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
    """Converts both to float64, so that only a wrong formula makes a difference."""
    return model.double(), {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}


def divergence(batch: dict[str, Tensor], new: Tensor) -> Tensor:
    """KL(old || new) per row, by torch.distributions."""
    discrete = not batch['action'].is_floating_point()
    return torch.distributions.kl_divergence(*(as_torch(x, discrete) for x in (batch['logit'], new)))


def gradients(optimizer: FlatAdam, loss: Tensor, model: Any) -> Tensor:
    """The gradient by autograd, in the layout of the optimizer's buffer; 0 where a parameter has none."""
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([g.flatten() for g in found])


def component_of(model: Any, optimizer: FlatAdam, *names: str) -> Tensor:
    """Mask of the numbers in an optimizer's buffer that belong to the modules of these names."""
    return torch.cat([torch.full((p.numel(),), name.split('.')[0] in names) for name, p in model.named_parameters()])


@pytest.mark.parametrize(
    ('arch', 'space', 'weighted'),
    [
        ('dual', TWO_ACTIONS, False),
        ('detach', ONE_NUMBER, True),
        ('shared', ONE_NUMBER, False),
        ('dual', ONE_NUMBER, True),
    ],
)
def test_policy_step_has_the_gradient_of_policy_loss_and_entropy_alone(arch: str, space: Any, weighted: bool) -> None:
    model, batch = in_float64(*ppg_model_and_batch(arch, space, weighted))
    step = PolicyNumbers(0.15, entropy_weight=0.03, dual_clip=1.5, grad_clip=None, measure_kl=True)
    _, parts = reference(model, batch, step)
    optimizer = Still(model.named_parameters())
    want = gradients(optimizer, parts['policy_loss'] - 0.03 * parts['entropy'], model)
    read = only(batch, 'obs', 'action', 'logit', 'adv', 'weight')
    metrics = policy_step(model, dist_of(batch), [optimizer], read, step)
    torch.testing.assert_close(optimizer.grad, want, **CLOSE)
    assert metrics.keys() == {'policy_loss', 'entropy', 'approx_kl', 'clipfrac', 'kl', 'ratio_max', 'grad_norm'}
    for name in metrics.keys() - {'grad_norm'}:
        torch.testing.assert_close(metrics[name].double(), parts[name].detach().double(), **CLOSE)
    torch.testing.assert_close(metrics['grad_norm'], want.norm())
    assert not optimizer.grad[component_of(model, optimizer, 'aux_head', 'value_head', 'critic_encoder')].any()


@pytest.mark.parametrize(
    ('arch', 'weighted', 'clip'),
    [('dual', True, False), ('dual', False, True), ('detach', True, True), ('shared', False, False)],
)
def test_value_step_has_the_gradient_of_the_value_loss_alone(arch: str, weighted: bool, clip: bool) -> None:
    model, batch = in_float64(*ppg_model_and_batch(arch, TWO_ACTIONS, weighted))
    _, parts = reference(model, batch, PolicyNumbers(0.15, value_loss=VALUE_CLIP if clip else MSE))
    optimizer = Still(model.named_parameters())
    want = gradients(optimizer, parts['value_loss'], model)
    numbers = ValueNumbers(0.15, None, VALUE_CLIP if clip else MSE)
    metrics = value_step(model, dist_of(batch), [optimizer], only(batch, 'obs', 'value', 'return_', 'weight'), numbers)
    torch.testing.assert_close(optimizer.grad, want, rtol=1e-9, atol=1e-12)
    found = {name: parts[name].detach() for name in ('value_loss', 'value_clipfrac') if name in parts}
    torch.testing.assert_close(metrics, {**found, 'value_grad_norm': want.norm()}, check_dtype=False)
    assert ('value_clipfrac' in metrics) == clip
    moved = component_of(model, optimizer, 'policy_head', 'aux_head', *(() if arch == 'shared' else ('actor_encoder',)))
    assert not optimizer.grad[moved].any() and optimizer.grad[~moved].any()


@pytest.mark.parametrize(
    ('arch', 'space', 'weighted'),
    [('dual', TWO_ACTIONS, True), ('dual', ONE_NUMBER, False), ('shared', ONE_NUMBER, True)],
)
def test_kl_penalty_with_surrogate_none_is_the_kl_loss_of_ppg(arch: str, space: Any, weighted: bool) -> None:
    model, batch = in_float64(*ppg_model_and_batch(arch, space, weighted))
    w = batch.get('weight', torch.ones(N))
    logit = model.compute_actor(batch['obs'])
    logp, entropy = log_prob_and_entropy(logit, batch['action'])
    ratio = (logp - log_prob_and_entropy(batch['logit'], batch['action'])[0]).exp()
    surrogate, kl = -(ratio * batch['adv'] * w).mean(), (divergence(batch, logit) * w).mean()
    optimizer = Still(model.named_parameters())
    want = gradients(optimizer, surrogate + 0.7 * kl - 0.03 * (entropy * w).mean(), model)
    step = PolicyNumbers(0.01, 0.03, grad_clip=None, surrogate=NONE, terms=(KL,), term_weights=(0.7,))
    metrics = policy_step(model, dist_of(batch), [optimizer], batch, step)
    torch.testing.assert_close(optimizer.grad, want, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(metrics['policy_loss'], surrogate.detach())
    torch.testing.assert_close(metrics['penalty_kl'], (divergence(batch, logit) * w).mean().detach())
    assert ((ratio - 1).abs() > 0.2).any()  # so a clip would change the gradient
    # the same in one step with the value loss, as with arch 'shared'
    value_loss = 0.5 * ((model.compute_critic(batch['obs']) - batch['return_']) ** 2 * w).mean()
    want += gradients(optimizer, 0.5 * value_loss, model)
    ppo_step(model, dist_of(batch), [optimizer], batch, step)
    torch.testing.assert_close(optimizer.grad, want, rtol=1e-9, atol=1e-12)


def aux_parts(model: Any, arch: str, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The terms of the auxiliary objective (arXiv:2009.04416, algorithm 1), each from its own pass.

    With arch 'detach' only the value gradient of the auxiliary head enters the trunk (as in the authors' code).
    """
    w = batch.get('weight', torch.ones(N))
    feature = model.actor_encoder(model.input(batch['obs']))
    critic = model.critic_encoder(model.input(batch['obs'])) if arch == 'dual' else feature
    if arch == 'detach':
        critic = critic.detach()

    def half_mse(value: Tensor) -> Tensor:
        return 0.5 * ((value - batch['return_']) ** 2 * w).mean()

    return {
        'auxiliary_loss': half_mse(model.aux_head(feature)),
        'aux_value_loss': half_mse(model.value_head(critic)),
        'behavioral_cloning_loss': (divergence(batch, model.policy_head(feature)) * w).mean(),
    }


def groups_of(model: Any, arch: str, kind: Callable[..., FlatAdam] = FlatAdam) -> list[FlatAdam]:
    """Optimisers as in policy 'ppg': one for the critic's own parameters, after one for all others."""
    critic = set() if arch == 'shared' else {name for name, _ in model.critic_parameters()}
    named = list(model.named_parameters())
    split = [[(name, p) for name, p in named if (name in critic) == mine] for mine in (False, True)]
    return [kind(group) for group in split if group]


@pytest.mark.parametrize(
    ('arch', 'space', 'weighted', 'bc_weight'),
    [
        ('dual', TWO_ACTIONS, False, 1.0),
        ('dual', ONE_NUMBER, True, 2.5),
        ('dual', TWO_ACTIONS, True, 0.0),
        ('detach', TWO_ACTIONS, True, 2.5),
        ('detach', ONE_NUMBER, False, 1.0),
        ('shared', ONE_NUMBER, True, 1.0),
        ('shared', TWO_ACTIONS, False, 2.5),
    ],
)
def test_aux_step_has_the_gradient_and_metrics_of_the_objective(
    arch: str, space: Any, weighted: bool, bc_weight: float
) -> None:
    model, batch = in_float64(*ppg_model_and_batch(arch, space, weighted))
    parts = aux_parts(model, arch, batch)
    named = dict(model.named_parameters())
    loss = parts['auxiliary_loss'] + parts['aux_value_loss'] + bc_weight * parts['behavioral_cloning_loss']
    want = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    read = only(batch, 'obs', 'return_', 'logit', 'weight')
    metrics = aux_step(model, dist_of(batch), groups_of(model, arch, Still), read, ValueNumbers(bc_weight=bc_weight))
    for (name, p), gradient in zip(named.items(), want, strict=True):
        gradient = torch.zeros_like(p) if gradient is None else gradient
        torch.testing.assert_close(p.grad, gradient, rtol=1e-9, atol=1e-12, msg=lambda m, name=name: f'{name}: {m}')
    assert metrics.keys() == {*parts, 'aux_grad_norm'}
    for name, value in parts.items():
        torch.testing.assert_close(metrics[name], value.detach(), rtol=1e-9, atol=1e-12)
    norm = torch.sqrt(sum((g**2).sum() for g in want if g is not None))
    torch.testing.assert_close(metrics['aux_grad_norm'], norm)
    assert parts['behavioral_cloning_loss'] > 0.02  # otherwise a wrong cloning term would not be noticed


def test_terms_of_weight_zero_may_be_infinite() -> None:
    model, batch = ppg_model_and_batch('dual', ONE_NUMBER)
    batch['logit'][3, 0] = torch.inf
    metrics = aux_step(model, dist_of(batch), groups_of(model, 'dual'), batch, ValueNumbers(bc_weight=0.0))
    assert metrics['behavioral_cloning_loss'].isinf() and metrics['aux_grad_norm'].isfinite()
    assert all(p.isfinite().all() for p in model.parameters())
    batch['return_'][0] = torch.inf
    batch['logit'] = model.compute_actor(batch['obs']).detach()
    optimizer, numbers = FlatAdam(model.named_parameters()), PolicyNumbers(value_weight=0.0)
    metrics = ppo_step(model, dist_of(batch), [optimizer], batch, numbers)
    assert metrics['value_loss'].isinf() and metrics['grad_norm'].isfinite()


@pytest.mark.parametrize('space', [TWO_ACTIONS, ONE_NUMBER], ids=['discrete', 'box'])
def test_steps_change_no_input(space: Any) -> None:
    model, batch = ppg_model_and_batch('dual', space, weighted=True)
    before, optimizers = clone(batch), groups_of(model, 'dual')
    dist = dist_of(batch)
    aux_step(model, dist, optimizers, batch, ValueNumbers(grad_clip=0.5))
    for parts in ((), (KL,)):
        numbers = PolicyNumbers(terms=parts, term_weights=(1.0,) * len(parts))
        policy_step(model, dist, optimizers[:1], batch, numbers)
    ppo_step(model, dist, [FlatAdam(model.named_parameters())], batch, STEPS['all'])
    value_step(model, dist, optimizers[1:], batch, ValueNumbers(value_loss=VALUE_CLIP))
    assert not differing(batch, before)


def doubled_loss(*args: Any) -> tuple[Tensor, dict[str, Tensor]]:
    loss, rows = surrogate_loss(*args)
    return 2 * loss, rows


@pytest.mark.parametrize('space', [TWO_ACTIONS, ONE_NUMBER], ids=['discrete', 'box'])
def test_policy_loss_of_ones_own_is_called_where_kernels_serve_the_surrogate(
    space: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubled_loss, 'rho_max', 1.0, raising=False)  # as zoo's loss with a kernel has it
    numbers, found = PolicyNumbers(policy_loss=doubled_loss, entropy_weight=0.01), {}
    for mode in ('0', 'interpret'):
        monkeypatch.setattr(kernels, 'MODE', mode)
        monkeypatch.setattr(kernels, 'ENABLED', mode == 'interpret')
        model, batch = model_and_batch(space, weighted=True)
        metrics = ppo_step(model, dist_of(batch), [FlatAdam(model.named_parameters())], batch, numbers)
        found[mode] = metrics, model.state_dict()
    torch.testing.assert_close(found['interpret'], found['0'], rtol=1e-5, atol=1e-6)
