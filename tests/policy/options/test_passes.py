"""Options between the passes over a batch: early stop at target_kl, advantages recomputed with the current critic."""

from __future__ import annotations

import pytest
import torch

from tests.policy.updates import N, parameters, ppo, random_rollout, samples_of
from tests.policy_envs import differing
from zoo.policy.options.passes import recomputed


def test_recompute_adv_uses_the_critic_as_it_is_before_each_epoch() -> None:
    once = ppo()
    twice = ppo(dict(recompute_adv=True, epoch_per_collect=2))
    rollout = random_rollout(ppo())
    assert not differing(once.state_dict()['model'], twice.state_dict()['model'])
    twice.learn_mode.forward(twice.collect_mode.get_train_sample(rollout))
    for _ in range(2):  # by hand: new samples of the same rollout, with the critic of the first epoch's end
        once.learn_mode.forward(once.collect_mode.get_train_sample(rollout))
    torch.testing.assert_close(parameters(twice), parameters(once))
    stale = ppo(dict(epoch_per_collect=2))
    stale.learn_mode.forward(stale.collect_mode.get_train_sample(rollout))
    assert (stale.optimizers['all'].param - once.optimizers['all'].param).abs().max() > 1e-4


def test_target_kl_stops_the_epochs_and_says_so() -> None:
    policy = ppo(dict(epoch_per_collect=6, target_kl=1e-4, learning_rate=0.1, batch_size=N // 2))
    metrics = policy.learn_mode.forward(samples_of(policy))
    # the first minibatch has KL 0, the second the KL of an Adam step of .1: their mean is above 1.5e-4
    assert metrics['n_epoch'].item() == 1
    assert policy.learn_mode.train_iter() == 2
    assert metrics['kl'].item() > 1.5e-4


def test_target_kl_lets_small_steps_run_all_epochs() -> None:
    policy = ppo(dict(epoch_per_collect=6, target_kl=1e-4, learning_rate=1e-7))
    metrics = policy.learn_mode.forward(samples_of(policy))
    assert metrics['n_epoch'].item() == 6
    assert policy.learn_mode.train_iter() == 6


@pytest.mark.parametrize(('limit', 'n_step'), [(1e-9, 2), (1e9, 8)])
def test_minibatch_stop_takes_the_step_that_was_found_beyond_and_no_more(limit: float, n_step: int) -> None:
    """A pass has 4 minibatches. The first has KL 0, since nothing has moved; the second exceeds the limit: 1 + 1 steps."""
    learn = dict(epoch_per_collect=2, batch_size=N // 4, target_kl=limit, target_kl_at='minibatch', learning_rate=0.05)
    policy = ppo(learn)
    policy.learn_mode.forward(samples_of(policy))
    assert policy.learn_mode.train_iter() == n_step


def test_recomputed_advantages_keep_the_intrinsic_ones() -> None:
    policy = ppo(dict(intrinsic='rnd', recompute_adv=True, adv_norm='off'))
    samples = samples_of(policy)
    extra = samples['intrinsic_adv']
    assert extra.abs().max() > 0
    again = recomputed(policy, samples)
    torch.testing.assert_close(again['adv'], samples['adv'])  # nothing was learned in between
    torch.testing.assert_close(again['adv'] - extra + again['value'], again['return_'])
