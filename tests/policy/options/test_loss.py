"""Metrics of the configured loss."""

from __future__ import annotations

import pytest
import torch

from tests.policy.updates import N, ppo, samples_of


@pytest.mark.parametrize('value_norm', [False, True])
def test_return_outside_is_a_share_of_the_rows_with_a_weight_in_units_of_the_critic(value_norm: bool) -> None:
    policy = ppo(dict(value_loss={'type': 'two_hot', 'low': -1.0, 'high': 1.0, 'n_bin': 5}, value_norm=value_norm))
    samples = samples_of(policy)
    samples['return_'] = torch.linspace(-2.0, 2.0, N)  # 16 of the 32 lie beyond 1; the 32 have deviation 1.19
    samples['weight'] = torch.ones(N)
    samples['weight'][:4] = 0.0  # these four lie beyond 1, normalised or not
    beyond = samples['return_'][4:]
    if value_norm:
        beyond = (beyond - beyond.mean()) / beyond.std(correction=0)
    want = (beyond.abs() > 1).float().mean()
    assert policy.learn_mode.forward(samples)['return_outside'].item() == pytest.approx(want.item())
