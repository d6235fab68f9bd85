"""A policy on an accelerator, with envs on the host: the host waits only where statistics are read.

Without a GPU the device is torch's 'meta'. Its tensors have no data, so reading a value raises an error;
every operation still shows the devices of its tensors.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from tests.crossings import Crossings
from tests.gpu import needs_gpu, no_waiting
from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, make_policy
from zoo.core.data import Rollout, Timestep
from zoo.core.spaces import Box
from zoo.policy import base
from zoo.policy.base import Policy
from zoo.rl_utils.optimizer import FlatAdam

OBS = Box(np.full(3, -np.inf), np.full(3, np.inf))
T, B = 8, 4
LEARN: dict[str, dict[str, Any]] = {
    'plain': {},
    'normalised': dict(value_norm=True, reward_norm=True, adv_norm='batch', value_loss='clip'),
}


def make(device: str, kind: str, space: Any, monkeypatch: pytest.MonkeyPatch, **learn: Any) -> Policy:
    monkeypatch.setattr(base, 'device_of', lambda name: torch.device(device))
    learn = dict(batch_size=16, compile='off', **learn)
    return make_policy(OBS, space, type=kind, learn=learn, collect=dict(n_step=T), model=dict(obs_norm=True))


def rollout_of(policy: Policy, with_resets: bool) -> Rollout:
    """A rollout as collected from host envs; one episode ends, and its final observation is stored separately."""
    obs, ends = torch.randn(T + 1, B, 3), torch.zeros(T, B, dtype=torch.bool)
    ends[2, 1] = True
    acting = policy.collect_mode.start(obs)
    with torch.no_grad():
        acting.begin()
        for t in range(T):
            acting.step(t)
    resets = ends.roll(1, 0) if with_resets else None
    steps = Timestep(obs[1:], torch.randn(T, B), ends, torch.zeros_like(ends), None, None, {}, is_reset=resets)
    transition = policy.collect_mode.process_transition(obs[:-1], acting.output, steps)
    index = torch.tensor([[2, 1]])
    return Rollout(transition, obs[-1], torch.randn(1, 3), index)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('kind', 'space', 'learn', 'with_resets'),
    [
        ('ppo', TWO_ACTIONS, 'plain', False),
        ('ppo', ONE_NUMBER, 'normalised', True),
        ('ppg', TWO_ACTIONS, 'normalised', False),
        ('ppg', ONE_NUMBER, 'plain', True),
    ],
)
def test_host_waits_once_an_update_for_its_statistics(
    kind: str, space: Any, learn: str, with_resets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update may wait only in `count_skipped`, once for each optimiser."""
    policy = make('meta', kind, space, monkeypatch, **LEARN[learn])
    reads: list[FlatAdam] = []
    monkeypatch.setattr(FlatAdam, 'count_skipped', lambda self, limit: reads.append(self) or 0)
    with Crossings() as crossings:
        batch = policy.collect_mode.get_train_sample(rollout_of(policy, with_resets))
        assert batch['adv'].device.type == 'meta' and crossings.n_sent > T
        policy.learn_mode.forward(batch)
    assert crossings.waited == []
    assert reads and len(reads) == len(set(map(id, reads)))


@pytest.mark.long
@pytest.mark.slow
def test_auxiliary_phase_waits_for_nothing_but_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make('meta', 'ppg', TWO_ACTIONS, monkeypatch, aux_freq=1, aux_batch_size=8)
    monkeypatch.setattr(FlatAdam, 'count_skipped', lambda self, limit: 0)
    with Crossings() as crossings:
        metrics = policy.learn_mode.forward(policy.collect_mode.get_train_sample(rollout_of(policy, False)))
    assert 'auxiliary_loss' in metrics
    assert crossings.waited == []


def test_a_look_at_a_value_or_a_copy_that_waits_is_found() -> None:
    """Tests `Crossings` itself."""
    x = torch.ones(3, device='meta')
    with Crossings() as crossings:
        for look in (lambda: float(x.sum()), lambda: x[x > 0], lambda: bool((x > 0).any()), lambda: x.tolist()):
            with pytest.raises((RuntimeError, NotImplementedError)):
                look()
        torch.ones(3).to('meta', non_blocking=True)
        x.copy_(torch.ones(3), non_blocking=True)
        assert crossings.waited == [] and crossings.n_sent == 2
        torch.ones(3).to('meta')
        x.copy_(torch.ones(3))
    assert crossings.waited == ['aten::_to_copy', 'aten::copy_']


@pytest.mark.slow
def test_intrinsic_rewards_learn_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their random generator is on the host for every device."""
    intrinsic = {'type': 'rnd', 'batch_size': 16}
    policy = make('meta', 'ppo', TWO_ACTIONS, monkeypatch, intrinsic=intrinsic)
    monkeypatch.setattr(FlatAdam, 'count_skipped', lambda self, limit: 0)
    batch = policy.collect_mode.get_train_sample(rollout_of(policy, False))
    part = next(option.component for option in policy.options if hasattr(option, 'component'))  # type: ignore[attr-defined]
    with Crossings(counts_draws=True) as crossings:
        part.update()
    assert batch['adv'].device.type == 'meta' and crossings.waited == [] and crossings.n_sent > 0


@needs_gpu
@pytest.mark.parametrize('executor', ['eager', 'graph'])
@pytest.mark.parametrize('kind', ['ppo', 'ppg'])
def test_cuda_says_the_same(
    kind: str, executor: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    learn = dict(batch_size=8, executor=executor)
    policy = make_policy(OBS, TWO_ACTIONS, type=kind, device='cuda', learn=learn, collect=dict(n_step=T))
    assert policy.executor_name.startswith(executor)
    for _ in range(3):  # the first one compiles, the second one captures
        policy.learn_mode.forward(policy.collect_mode.get_train_sample(rollout_of(policy, False)))
    batch = policy.collect_mode.get_train_sample(rollout_of(policy, False))
    monkeypatch.setattr(FlatAdam, 'count_skipped', lambda self, limit: 0)
    with no_waiting():
        policy.learn_mode.forward(batch)
    # no warning that a step is not compiled
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
