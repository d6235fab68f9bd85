"""When a policy decides to compile: by the gradient steps of the whole run, as soon as these are known."""

from __future__ import annotations

import pytest
import torch

from tests.policy.test_actor_critic import OBS
from tests.policy_envs import TWO_ACTIONS, make_policy
from zoo.buffer import reuse_of
from zoo.run.config import resolve_config


def test_reuse_of_draws_is_their_samples_over_those_of_a_rollout() -> None:
    # 4 draws of 512 from rollouts of 1,024 are 2 uses; the value part has 6 of 256
    draw = {'n_sample': 512, 'update_per_collect': 4}
    assert reuse_of({'size': 4096, **draw}, 1024) == {'policy': 2.0, 'value': 2.0}
    parts = {'policy': draw, 'value': {'n_sample': 256, 'update_per_collect': 6}}
    assert reuse_of({'size': 4096, **parts}, 1024) == {'policy': 2.0, 'value': 1.5}
    assert reuse_of({'type': 'rollout'}, 1024) == {'policy': 1.0, 'value': 1.0}


@pytest.mark.parametrize('name, n_step', [('cartpole_ppo', 3906), ('cartpole_ppo_offpolicy', 3880)])
def test_estimate_of_gradient_steps_is_what_the_run_takes(name: str, n_step: int) -> None:
    """Within the first rounds, in which an off-policy buffer has too few samples for all draws."""
    cfg = resolve_config(name)
    policy = make_policy(
        OBS,
        TWO_ACTIONS,
        type=cfg.policy.type,
        learn=dict(batch_size=cfg.policy.learn.batch_size, epoch_per_collect=cfg.policy.learn.epoch_per_collect),
    )
    policy.reuse = reuse_of(cfg.buffer, cfg.policy.collect.n_sample)
    assert sum(policy._steps_per_env_step()) * cfg.max_env_step == pytest.approx(n_step, rel=0.02)


def test_acting_before_the_length_is_known_settles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('CXX', 'true')
    policy = make_policy(OBS, TWO_ACTIONS)
    policy.collect_mode.forward(torch.zeros(2, 1), None)
    assert not policy.compiled
    policy.max_env_step = 10**9
    assert policy.compiled
    policy.max_env_step = 100  # it is used again, for a short run
    assert not policy.compiled
