"""REINFORCE: rewards to go of whole episodes, and no critic anywhere in an update."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.policy.networks import Coin
from tests.policy.updates import N_STEP, OBS, parameters, samples_of, small_rollout
from tests.policy_envs import TWO_ACTIONS, differing, make_policy
from zoo.policy.base import Policy


def pg(network: nn.Module | None = None, n_step: int = N_STEP, **learn: Any) -> Policy:
    base = dict(adv_norm='off', grad_clip=None)
    collect = dict(n_step=n_step, discount_factor=0.5)
    return make_policy(OBS, TWO_ACTIONS, type='pg', network=network, learn={**base, **learn}, collect=collect)


def test_pg_samples_hold_rewards_to_go_of_whole_episodes() -> None:
    samples = pg(n_step=4).collect_mode.get_train_sample(small_rollout())
    # gamma .5; the first env: 1 + .5 * 2, 2; then an unfinished episode. The second, backwards: 1, 1.5, 1.75, 1.875
    known = torch.tensor([[1, 1], [1, 1], [0, 1], [0, 1]]).flatten()
    wanted = torch.tensor([[2.0, 1.875], [2.0, 1.75], [0.0, 1.5], [0.0, 1.0]]).flatten()
    torch.testing.assert_close(samples['adv'] * known, wanted)
    torch.testing.assert_close(samples['weight'], known * 8 / 6)  # mean 1


def test_pg_step_is_the_gradient_by_hand_and_leaves_the_critic_alone() -> None:
    model = Coin()
    policy = pg(model, n_step=4, optimizer='sgd', learning_rate=1.0)
    n_judged = model.n_judged  # calls by the checks of a new model
    metrics = policy.learn_mode.forward(policy.collect_mode.get_train_sample(small_rollout()))
    # d log p(a) / d logit = onehot(a) - (.5, .5); the mean over the 6 known rows of return * that, for action 0:
    # .5 * (2 - 2 + 1.875 + 1.75 - 1.5 - 1) / 6 = .09375
    torch.testing.assert_close(model.logit.detach(), torch.tensor([0.09375, -0.09375]))
    assert model.n_judged == n_judged and model.value.item() == 0 and policy.learn_mode.train_iter() == 1
    assert metrics['grad_norm'].item() == pytest.approx(0.09375 * 2**0.5)


@pytest.mark.parametrize('adv_norm', ['off', 'batch', 'minibatch'])
def test_pg_trains_nothing_where_no_episode_ends(adv_norm: str) -> None:
    model = Coin()
    policy = pg(model, n_step=4, adv_norm=adv_norm, entropy_weight=0.1)
    with torch.no_grad():
        model.logit[0] = 0.5  # where the entropy has a gradient
    before = parameters(policy)
    metrics = policy.learn_mode.forward(policy.collect_mode.get_train_sample(small_rollout(ends=False)))
    assert not differing(before, parameters(policy)) and policy.learn_mode.train_iter() == 1
    assert all(x.isfinite() for x in metrics.values()) and metrics['skipped_step'] == 0


def test_pg_moves_no_parameter_of_a_critic_with_weight_decay() -> None:
    policy = pg(optimizer={'type': 'adamw', 'weight_decay': 0.5}, learning_rate=0.1)
    before = parameters(policy)
    policy.learn_mode.forward(samples_of(policy))
    assert {name.split('.')[0] for name in differing(before, parameters(policy))} == {'actor_encoder', 'policy_head'}


def test_pg_metrics_are_without_those_of_a_critic() -> None:
    policy = pg()
    metrics = policy.learn_mode.forward(samples_of(policy))
    assert metrics.keys() == set(policy.learn_mode.monitor_vars())
    assert {'policy_loss', 'entropy', 'approx_kl', 'grad_norm'} <= metrics.keys()
    assert not metrics.keys() & {'value_loss', 'explained_variance'}


def test_prioritized_draws_without_a_finished_episode_learn_nothing() -> None:
    policy = pg(n_step=4, draw='prioritized', optimizer='sgd', executor='eager')
    before = parameters(policy)
    metrics = policy.learn_mode.forward(policy.collect_mode.get_train_sample(small_rollout(ends=False)))
    assert not differing(before, parameters(policy)) and metrics['policy_loss'] == 0
