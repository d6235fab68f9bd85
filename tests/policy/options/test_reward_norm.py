"""Rewards divided by the running deviation of their discounted sums, and the rows that enter the statistics."""

from __future__ import annotations

import pytest
import torch

from tests.policy.hand import collect, hand_policy
from zoo.core.data import Rollout
from zoo.policy.base import Policy


def scaled_rewards(policy: Policy, reward: torch.Tensor, end: torch.Tensor, **columns: torch.Tensor) -> torch.Tensor:
    """Returns the rewards [T, B] as scaled by the policy: with V = 0 and lambda = 0 the advantage is the reward."""
    n_step, n_env = reward.shape
    data = {
        'obs': torch.zeros(n_step, n_env, 1),
        'action': torch.zeros(n_step, n_env, dtype=torch.int64),
        'logit': torch.zeros(n_step, n_env, 2),
        'reward': reward,
        'done': end,
        'traj_flag': end,
        **columns,
    }
    rollout = Rollout(data, torch.zeros(n_env, 1), torch.zeros(0, 1), torch.zeros(0, 2, dtype=torch.int64))
    return policy.collect_mode.get_train_sample(rollout)['adv'].view(n_step, n_env)


@pytest.mark.parametrize('given, gamma', [(None, 0.9), (0.2, 0.2)])
def test_reward_norm_divides_by_the_deviation_of_running_discounted_sums(given: float | None, gamma: float) -> None:
    generator = torch.Generator().manual_seed(0)
    policy = hand_policy(torch.zeros_like, 6, 0.0, reward_norm=True, reward_norm_discount=given)
    total, seen = [0.0, 0.0], []
    for _ in range(3):  # the sums continue from one rollout to the next
        reward = torch.randn(6, 2, generator=generator) + 1
        end = torch.rand(6, 2, generator=generator) < 0.3
        for t in range(6):
            for b in range(2):
                total[b] = gamma * total[b] + float(reward[t, b])
                seen.append(total[b])
                if end[t, b]:
                    total[b] = 0.0
        got = scaled_rewards(policy, reward, end)
        torch.testing.assert_close(got, reward / torch.tensor(seen).std(correction=0))
    assert abs(float(torch.tensor(seen).std(correction=0)) - 1) > 0.05  # so a missing division would be noticed


def test_reward_norm_of_envs_in_one_column_equals_that_of_a_column_each() -> None:
    generator = torch.Generator().manual_seed(1)
    each, one = (hand_policy(torch.zeros_like, 6, 0.0, reward_norm=True) for _ in range(2))
    for _ in range(3):
        reward = torch.randn(6, 2, generator=generator) + 1
        end = torch.rand(6, 2, generator=generator) < 0.3
        env = torch.arange(2).repeat_interleave(6)
        is_open = torch.zeros(12, 1, dtype=torch.bool)
        is_open[5] = not end[5, 0]  # the trace of env 0 stops there, but not its episode
        flat_end = end.t().reshape(12, 1)
        want = scaled_rewards(each, reward, end).t().reshape(12, 1)
        columns = {'env_index': env.unsqueeze(1), 'is_open': is_open}
        got = scaled_rewards(one, reward.t().reshape(12, 1), flat_end | is_open, **columns)
        torch.testing.assert_close(got, want)


def test_reward_norm_clips_at_ten() -> None:
    reward = torch.zeros(400, 1)
    reward[200] = -1000.0
    policy = hand_policy(torch.zeros_like, 400, 0.0, 0.0, reward_norm=True)
    # gamma 0: deviation 1000 * sqrt(1/400 * 399/400) = 49.9, so -20 unclipped
    assert scaled_rewards(policy, reward, torch.zeros(400, 1, dtype=torch.bool))[200].item() == -10.0


def test_rewards_of_reset_rows_enter_no_statistic() -> None:
    policy = hand_policy(torch.zeros_like, 13, 0.0, reward_norm=True)
    env = dict(id='tests.policy_envs:Garbage-v0', vectorization='batched')
    policy.collect_mode.get_train_sample(collect(policy, env, 1))
    sums = [1.0, 1.9, 2.71, 3.439, 4.0951]  # the discounted sums of one episode
    want = torch.tensor(sums * 2 + sums[:1], dtype=torch.float64)
    stats = policy.normalizers['reward']
    assert stats.count.item() == 11
    torch.testing.assert_close(stats.var, want.var(correction=0), rtol=1e-6, atol=0)  # the sums are float32
    torch.testing.assert_close(stats.mean, want.mean(), rtol=1e-6, atol=0)
