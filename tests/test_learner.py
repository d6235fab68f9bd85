"""The learner trains on whatever the buffer yields."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.policy_envs import TWO_ACTIONS, make_policy
from tests.test_collector import SAME_STEP, make_collector
from zoo.buffer import RolloutBuffer
from zoo.learner import Learner
from zoo.policy.base import Policy
from zoo.spaces import Box

OBS = Box(torch.zeros(1).numpy(), torch.full((1,), torch.inf).numpy())


def policy_and_samples() -> tuple[Policy, TensorDict]:
    policy = make_policy(
        OBS,
        TWO_ACTIONS,
        collect=dict(n_step=8),
        learn=dict(batch_size=8, epoch_per_collect=3, learning_rate={'start': 1e-2, 'end': 0.0, 'over': 100}),
    )
    return policy, policy.collect_mode.get_train_sample(make_collector(SAME_STEP, 8).collect())


def test_train_uses_each_pushed_block_once() -> None:
    policy, samples = policy_and_samples()
    buffer = RolloutBuffer()
    learner = Learner(policy.learn_mode, buffer)
    buffer.push(samples)
    learner.train(0)
    assert learner.train_iter == 6  # 16 samples, 2 minibatches, 3 epochs
    assert learner.train(0) == {} and learner.train_iter == 6  # nothing was pushed


def test_train_averages_the_metrics_of_all_blocks() -> None:
    (one, samples), (two, _) = policy_and_samples(), policy_and_samples()
    singles = [one.learn_mode.forward(samples) for _ in range(2)]
    buffer = RolloutBuffer()
    buffer.push(samples)
    buffer.push(samples)
    metrics = Learner(two.learn_mode, buffer).train(0)
    for name, value in metrics.items():
        torch.testing.assert_close(value, (singles[0][name] + singles[1][name]) / 2)


def test_train_sets_the_schedules_first() -> None:
    policy, samples = policy_and_samples()
    buffer = RolloutBuffer()
    buffer.push(samples)
    assert torch.isclose(
        Learner(policy.learn_mode, buffer).train(75)['learning_rate'], torch.tensor(2.5e-3, dtype=torch.float64)
    )


def test_train_refuses_metrics_that_are_not_those_named() -> None:
    policy, samples = policy_and_samples()
    buffer = RolloutBuffer()
    buffer.push(samples)
    mode = policy.learn_mode._replace(monitor_vars=lambda: ['policy_loss', 'never_given'])
    with pytest.raises(ValueError, match="'value_loss'.*names .'never_given', 'policy_loss'.; make the two agree"):
        Learner(mode, buffer).train(0)


def test_train_runs_the_auxiliary_phase_after_the_updates() -> None:
    policy, samples = policy_and_samples()
    buffer = RolloutBuffer()
    buffer.push(samples)
    mode = policy.learn_mode._replace(learn_aux=lambda: {'aux_at': torch.tensor(policy.learn_mode.train_iter())})
    assert Learner(mode, buffer).train(0)['aux_at'] == 6
