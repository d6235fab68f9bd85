"""Settings of PPG: conflicts among them, runs too short for an auxiliary phase, and published configs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.policy.updates import parameters, ppg, samples_of
from tests.policy_envs import (
    differing,
    job_config,
)
from zoo.core.errors import UserError
from zoo.pipeline import serial_pipeline
from zoo.run.config import resolve_config


def test_separate_draws_for_what_learns_together_are_refused() -> None:
    policy = ppg(arch='shared')
    samples = samples_of(policy)
    before = parameters(policy)
    with pytest.raises(UserError, match="policy and value were drawn apart.*use buffer.type 'replay' or 'rollout'"):
        policy.learn_mode.forward({'policy': samples, 'value': samples})
    assert not differing(before, parameters(policy))


@pytest.mark.parametrize('kind, aux_freq, n_phase', [('ppg', 5, 4), ('ppg', 4, None), ('ppg_offpolicy', 9, 8)])
def test_a_run_too_short_for_an_auxiliary_phase_says_so(
    kind: str, aux_freq: int, n_phase: int | None, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # 256 env steps are 4 rollouts of 4 x 16; off-policy 2 draws each
    cfg = job_config(tmp_path)
    cfg['policy'] |= dict(type=kind, learn=dict(aux_freq=aux_freq, aux_batch_size=32, batch_size=32))
    if kind == 'ppg_offpolicy':
        cfg['buffer'] = dict(size=256, policy=dict(update_per_collect=2, n_sample=32), value=dict(n_sample=32))
    serial_pipeline(cfg, seed=0)
    found = [record.getMessage() for record in caplog.records if 'auxiliary phase never runs' in record.getMessage()]
    assert len(found) == (0 if n_phase is None else 1)
    words = [f'policy.learn.aux_freq is {aux_freq} ', 'max_env_step 256 ', f' {n_phase} policy phases', '320 or more']
    assert all(word in message for message in found for word in words), found


@pytest.mark.parametrize('name', ['procgen_ppg', 'procgen_ppo'])
def test_procgen_configs_have_the_published_numbers(name: str) -> None:
    # arXiv:2009.04416 and its authors' code: Adam with torch's epsilon, a reward normaliser with discount .99, 64 x 256
    # steps in 8 minibatches. The published PPO weighs the squared error with .5: weight 1 for zoo's half squared error.
    cfg = resolve_config(name)
    learn, collect = cfg.policy.learn, cfg.policy.collect
    want = dict(learning_rate=5e-4, adam_eps=1e-8, clip_ratio=0.2, entropy_weight=0.01, batch_size=64 * 256 // 8)
    want |= dict(reward_norm=True, reward_norm_discount=0.99, adv_norm='batch', value_loss='mse', grad_clip=None)
    want |= dict(value_norm=False, dual_clip=None, critic_learning_rate=None)
    if name == 'procgen_ppo':
        want |= dict(epoch_per_collect=3, value_weight=1.0)
    else:
        want |= dict(actor_epoch_per_collect=1, critic_epoch_per_collect=1, aux_freq=32, aux_train_epoch=6)
        want |= dict(aux_bc_weight=1.0, aux_learning_rate=None, aux_batch_size=4 * 256, policy_loss='clip')
    assert {key: learn[key] for key in want} == want
    assert (collect.discount_factor, collect.gae_lambda, collect.n_step) == (0.999, 0.95, 256)
