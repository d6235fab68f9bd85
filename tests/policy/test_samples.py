"""Columns of a rollout that a gradient step reads."""

from __future__ import annotations

import pytest

from tests.policy.updates import N_STEP, N, ppo, samples_of


@pytest.mark.parametrize('value_norm', [False, True])
@pytest.mark.parametrize('baseline', ['critic', 'none'])
def test_value_of_before_the_update_is_the_critics_output_with_and_without_a_baseline(
    baseline: str, value_norm: bool
) -> None:
    """At the first step nothing has moved, so the value has not drifted; without a baseline the column 'value' is 0."""
    learn = dict(baseline=baseline, value_norm=value_norm, penalties=['value_drift'], batch_size=N, epoch_per_collect=1)
    estimator = 'returns' if baseline == 'none' else 'gae'
    policy = ppo(learn, collect=dict(n_step=N_STEP, estimator=estimator))
    samples = samples_of(policy)
    assert bool(samples['value'].any()) == (baseline == 'critic')
    assert policy.compute_critic(samples['obs']).abs().max() > 1e-3
    assert policy.learn_mode.forward(samples)['penalty_value_drift'] == pytest.approx(0, abs=1e-10)


def test_no_output_is_kept_that_no_loss_reads() -> None:
    policy = ppo(dict(baseline='none'), collect=dict(n_step=N_STEP, estimator='returns'))
    assert 'value_output' not in samples_of(policy)
