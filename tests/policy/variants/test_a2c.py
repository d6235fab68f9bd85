"""A2C: one step of PPO without the clip, on all samples of a short rollout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.policy.updates import N_ENV, N_STEP, OBS, N, parameters, random_rollout, samples_of
from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, make_policy
from tests.step_parts import PolicyNumbers
from zoo.policy.base import Policy
from zoo.policy.ppo import ppo_step
from zoo.rl_utils.optimizer import FlatAdam

spaces = pytest.mark.parametrize('space', [TWO_ACTIONS, ONE_NUMBER], ids=['discrete', 'box'])


def a2c(space: Any = TWO_ACTIONS, **learn: Any) -> Policy:
    return make_policy(OBS, space, type='a2c', learn=learn, collect=dict(n_step=N_STEP))


@spaces
def test_a2c_update_is_one_step_of_ppo_without_a_clip(space: Any) -> None:
    policy, by_hand = a2c(space), a2c(space)
    samples = samples_of(policy)
    metrics = policy.learn_mode.forward(samples)
    optimizer = FlatAdam(by_hand.model.named_parameters(), lr=7e-4)
    numbers = PolicyNumbers(clip_ratio=1e9, entropy_weight=0.01, grad_clip=0.5, value_weight=0.5)
    wanted = ppo_step(by_hand.model, by_hand.dist, [optimizer], samples, numbers)  # a clip range of 1e9 has no effect
    assert policy.learn_mode.train_iter() == 1  # by default one pass, and the rollout is one minibatch
    for name, x in parameters(by_hand).items():
        torch.testing.assert_close(parameters(policy)[name], x, atol=1e-6, rtol=0)
    for name in ('value_loss', 'entropy', 'grad_norm'):
        torch.testing.assert_close(metrics[name], wanted[name], atol=1e-5, rtol=1e-5)


@spaces
def test_a2c_descends_minus_the_mean_of_advantage_times_log_probability(space: Any) -> None:
    policy = a2c(space, optimizer='sgd', learning_rate=1.0, grad_clip=None, value_weight=0.0, entropy_weight=0.0)
    samples, before = samples_of(policy), parameters(policy)
    logit = policy.model.compute_actor(samples['obs'])
    loss = -(samples['adv'] * policy.dist.log_prob(logit, samples['action'])).mean()
    named = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    policy.learn_mode.forward(samples)
    after = parameters(policy)
    for (name, p), grad in zip(named.items(), grads, strict=True):  # SGD at rate 1 moves by minus the gradient
        torch.testing.assert_close(
            before[name] - after[name], torch.zeros_like(p) if grad is None else grad, atol=2e-6, rtol=0
        )


def test_rmsprop_by_config_moves_by_ten_rates_at_first() -> None:
    # the first mean square is (1 - .99) g^2, so the step is rate * g / (.1 |g| + 1e-5): 10 rates where |g| >> 1e-4
    policy = a2c(optimizer='rmsprop', learning_rate=1e-3, grad_clip=None)
    samples, before = samples_of(policy), parameters(policy)
    policy.learn_mode.forward(samples)
    optimizer, after = policy.optimizers['all'], parameters(policy)
    grad = optimizer.grad.clone()
    moved = torch.cat([(before[name] - after[name]).flatten() for name in optimizer.names])
    assert grad.abs().max().item() > 0.01
    torch.testing.assert_close(moved, 1e-3 * grad / (0.1 * grad.abs() + 1e-5), atol=1e-6, rtol=1e-4)


def test_a2c_returns_are_those_of_the_rollout_with_the_value_of_its_end() -> None:
    # lambda is 1: return_t = r_t + .99 return_{t+1}, and r_t + .99 V(next) in the last row of an env without ends
    policy = a2c()
    samples = {name: x.unflatten(0, (N_STEP, N_ENV)) for name, x in samples_of(policy).items()}
    data = random_rollout(policy).data
    goes_on = ~data['traj_flag'][:-1]
    longer = data['reward'][:-1] + 0.99 * samples['return_'][1:]
    torch.testing.assert_close(samples['return_'][:-1][goes_on], longer[goes_on])


def test_batch_size_by_config_takes_a_step_for_each_minibatch() -> None:
    policy = a2c(batch_size=N // 4)
    policy.learn_mode.forward(samples_of(policy))
    assert policy.learn_mode.train_iter() == 4
