"""Critics of normalised returns: units of samples and critic, and of the clip of values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.policy.hand import MODES, collect, hand_policy
from tests.policy.updates import N_STEP, OBS, N, parameters, ppo, samples_of
from tests.policy_envs import TWO_ACTIONS, make_policy


def test_value_norm_gives_samples_in_return_units() -> None:
    policy = hand_policy(lambda s: s, 5, 0.0, value_norm=True)
    policy.normalizers['value'].update(torch.tensor([47.0, 53.0]))  # mean 50, deviation 3
    samples = policy.collect_mode.get_train_sample(collect(policy, MODES['sync same_step'], 1))
    value = torch.tensor([50.0, 53.0, 56.0, 59.0, 62.0])
    torch.testing.assert_close(samples['value'], value)
    # the value after 62 is 65: that of the final observation
    torch.testing.assert_close(samples['return_'], 1 + 0.9 * (value + 3))


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
