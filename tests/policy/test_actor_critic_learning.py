"""Policies learn one-step envs from scratch: the best action is the observed number ('match') or half of it ('aim')."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import job_config
from zoo.env import EnvConfig
from zoo.pipeline import serial_pipeline
from zoo.worker.evaluator import evaluate

PPO = dict(batch_size=64, epoch_per_collect=4)
PPG = dict(batch_size=64, actor_epoch_per_collect=4, critic_epoch_per_collect=4, aux_freq=5, aux_batch_size=64)
OFF = dict(batch_size=64, aux_freq=20, aux_train_epoch=1, aux_batch_size=64)
DRAW = dict(n_sample=64, update_per_collect=4, max_staleness=3)
CASES: dict[str, dict[str, Any]] = {
    'ppo': dict(policy=dict(learn=PPO)),
    'ppg dual clip': dict(policy=dict(type='ppg', learn=PPG)),
    'ppg detach kl': dict(policy=dict(type='ppg', learn=dict(policy_loss='kl', **PPG), model=dict(arch='detach'))),
    'ppg shared clip': dict(policy=dict(type='ppg', learn=PPG, model=dict(arch='shared'))),
    'ppo_offpolicy': dict(policy=dict(type='ppo_offpolicy', learn=dict(batch_size=64)), buffer=dict(size=256, **DRAW)),
    'ppg_offpolicy': dict(policy=dict(type='ppg_offpolicy', learn=OFF), buffer=dict(size=256, policy=DRAW, value=DRAW)),
    'pg': dict(policy=dict(type='pg')),
    'a2c': dict(policy=dict(type='a2c', collect=dict(n_step=5)), max_env_step=2400),
    'impala': dict(policy=dict(type='impala', collect=dict(n_step=5)), max_env_step=2400),
    'dqn': dict(
        policy=dict(
            type='dqn',
            model=dict(obs_norm=False),
            learn=dict(batch_size=32, target_freq=10),
            collect=dict(n_step=16, eps=dict(start=1.0, end=0.1, over=2000)),
        ),
        buffer=dict(size=512, n_sample=64, update_per_collect=4, alpha=0.6),
        max_env_step=2400,
    ),
}


def learned(folder: Path, env: str, case: str, learning_rate: float = 1e-2, **top: Any) -> float:
    """Mean return of 200 greedy episodes after `max_env_step` one-step episodes."""
    env_id, sections = f'tests.policy_envs:{env}_env', CASES[case]
    cfg = job_config(folder, env_id, **{'max_env_step': 2560, **{k: v for k, v in sections.items() if k != 'policy'}})
    kind = sections['policy']
    model = dict(hidden_sizes=[16], **(dict(log_std_init=-1.0) if env == 'aim' else {}), **kind.get('model', {}))
    learn = dict(learning_rate=learning_rate, **kind.get('learn', {}))
    collect = kind.get('collect', cfg['policy']['collect'])
    cfg['policy'] = {'type': 'ppo', **kind, 'model': model, 'learn': learn, 'collect': collect}
    return evaluate(serial_pipeline({**cfg, **top}).policy, EnvConfig(id=env_id), 200, seed=1).return_mean


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_policy_learns_to_match_a_number(case: str, tmp_path: Path) -> None:
    assert learned(tmp_path, 'match', case) == 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('case', ['ppo', 'ppg dual clip', 'ppg detach kl', 'ppo_offpolicy', 'ppg_offpolicy'])
def test_policy_learns_to_aim(case: str, tmp_path: Path) -> None:
    # acting 0 gives -E[x^2] / 4 = -1 / 12
    assert learned(tmp_path, 'aim', case) > -0.01


@pytest.mark.parametrize(('env', 'bound'), [('match', 0.9), ('aim', -0.03)])
def test_policy_learns_nothing_at_a_vanishing_learning_rate(env: str, bound: float, tmp_path: Path) -> None:
    """Shows that the two tests above cannot pass by luck."""
    assert learned(tmp_path, env, 'ppo', 1e-9, max_env_step=640) < bound
