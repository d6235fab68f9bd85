"""Normalisation of returns and rewards: units of samples and critic, and the rows that enter the statistics."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.policy.hand import MODES, collect, hand_policy
from tests.policy.updates import N_STEP, OBS, N, parameters, ppo, samples_of
from tests.policy_envs import TWO_ACTIONS, make_policy
from zoo.core.data import Rollout
from zoo.policy.base import Policy


def test_value_norm_gives_samples_in_return_units() -> None:
    policy = hand_policy(lambda s: s, 5, 0.0, value_norm=True)
    policy.normalizers['value'].update(torch.tensor([47.0, 53.0]))  # mean 50, deviation 3
    samples = policy.collect_mode.get_train_sample(collect(policy, MODES['sync same_step'], 1))
    value = torch.tensor([50.0, 53.0, 56.0, 59.0, 62.0])
    torch.testing.assert_close(samples['value'], value)
    # the value after 62 is 65: that of the final observation
    torch.testing.assert_close(samples['return_'], 1 + 0.9 * (value + 3))


def scaled_rewards(policy: Policy, reward: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Returns the rewards [T, B] as scaled by the policy: with V = 0 and lambda = 0 the advantage is the reward."""
    n_step, n_env = reward.shape
    data = {
        'obs': torch.zeros(n_step, n_env, 1),
        'action': torch.zeros(n_step, n_env, dtype=torch.int64),
        'logit': torch.zeros(n_step, n_env, 2),
        'reward': reward,
        'done': end,
        'traj_flag': end,
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


def test_value_norm_learns_returns_far_from_zero_in_their_unit() -> None:
    policy = ppo(dict(value_norm=True, epoch_per_collect=60))
    samples = samples_of(policy)
    samples['return_'] = 500 + 20 * samples['obs'][:, 0]
    policy.learn_mode.forward(samples)
    # without value_norm the output would have to reach 500: far more than 60 steps of .01
    got = policy.samples.units.restore(policy.compute_critic(samples['obs']))
    assert (got - samples['return_']).abs().mean().item() < 5
    assert policy.normalizers['value'].mean.item() == pytest.approx(samples['return_'].mean().item(), rel=1e-5)


def test_value_norm_compares_values_in_the_unit_of_the_critic() -> None:
    policy = ppo(dict(value_norm=True))
    policy.normalizers['value'].update(torch.tensor([47.0, 53.0]))  # mean 50, deviation 3
    samples = samples_of(policy)
    read = policy.samples.read_by_steps(samples)
    for name in ('value', 'return_'):
        torch.testing.assert_close(read[name], (samples[name] - 50) / 3)
    assert torch.equal(read['adv'], samples['adv'])


@pytest.mark.parametrize('kind', ['ppo', 'ppg', 'ppo_offpolicy', 'ppg_offpolicy'])
def test_value_clip_is_around_what_the_normalised_critic_puts_out_before_the_first_step(kind: str) -> None:
    # The returns, near 500, change the statistics of value_norm before the first step; the clip must ignore this change.
    # Steps of 1e-5 move an output by far less than the clip range .2, so the clip is never active and changes nothing.
    epochs = dict(epoch_per_collect=1) if kind.startswith('ppo') else {}

    def after(clip: bool) -> dict[str, Tensor]:
        learn = dict(
            value_norm=True,
            value_loss='clip' if clip else 'mse',
            learning_rate=1e-5,
            batch_size=N,
            adv_norm='off',
            **epochs,
        )
        collect = dict(n_step=N_STEP, discount_factor=0.9, gae_lambda=0.8)
        policy = make_policy(OBS, TWO_ACTIONS, learn=learn, collect=collect, type=kind)
        samples = samples_of(policy)
        samples['return_'] = 500 + 20 * samples['obs'][:, 0]
        policy.learn_mode.forward(samples)
        policy.learn_mode.forward(samples)  # the same samples again: the clip is still around the outputs at collection
        return parameters(policy)

    with_clip, without = after(True), after(False)
    for name, x in with_clip.items():  # two steps of Adam move a parameter by 2e-5
        torch.testing.assert_close(x, without[name], atol=1e-6, rtol=0)


def test_value_clip_with_value_norm_is_around_the_output_of_the_critic() -> None:
    policy = ppo(dict(value_norm=True, value_loss='clip'))
    samples = samples_of(policy)
    samples['return_'] = 500 + 20 * samples['obs'][:, 0]
    policy.normalizers['value'].update(samples['return_'])  # as an update does before its first step
    now = policy.model.compute_critic(samples['obs']).detach()
    torch.testing.assert_close(policy.samples.read_by_steps(samples)['value'], now, atol=1e-6, rtol=0)
