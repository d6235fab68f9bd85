"""Sections that all policies have, and the device that a config names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.gpu import with_gpu_too
from tests.policy_envs import TWO_ACTIONS, make_policy
from zoo.core.spaces import Box
from zoo.policy import base
from zoo.policy.base import Policy
from zoo.run.config import resolve_config

OBS = Box(np.full(2, -np.inf), np.full(2, np.inf))


@with_gpu_too
def test_device_auto_is_where_the_network_is() -> None:
    policy = make_policy(OBS, TWO_ACTIONS, device='auto')
    assert policy.device.type == ('cuda' if torch.cuda.is_available() else 'cpu')
    assert next(policy.model.parameters()).device.type == policy.device.type
    assert make_policy(OBS, TWO_ACTIONS, device='cpu').device.type == 'cpu'


def test_device_of_a_policy_is_written_as_tensors_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """'cuda' is not equal to 'cuda:0', nor 'cpu:0' to 'cpu'; a policy compares its device with the devices of tensors."""
    monkeypatch.setattr(base, 'device_of', lambda name: torch.device('cpu', 0))
    policy = make_policy(OBS, TWO_ACTIONS)
    assert policy.device == next(policy.model.parameters()).device


@pytest.mark.parametrize(
    ('collect', 'n_step', 'n_sample'), [({}, 128, 1024), ({'n_sample': 64}, 8, 64), ({'n_step': 5}, 5, 40)]
)
def test_base_sections_have_the_length_of_a_rollout_and_a_batch_size(
    collect: dict[str, int], n_step: int, n_sample: int, forgets_policies: None
) -> None:
    methods = dict.fromkeys(Policy.__abstractmethods__ - {'default_model'}, lambda self: None)
    Policy.with_updates('bare', {'learn': {'batch_size': None}}, default_model=lambda cls: None, **methods)
    policy = resolve_config({'env': {'id': 'CartPole-v1'}, 'policy': {'type': 'bare', 'collect': collect}}).policy
    assert (policy.collect.n_step, policy.collect.n_sample) == (n_step, n_sample)  # 8 envs
    assert policy.learn == {'batch_size': None, 'freeze': []}
