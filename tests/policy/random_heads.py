"""Policies with heads of random weights: the first policy is near uniform, which would hide mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.policy_envs import TWO_ACTIONS
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.spaces import Box
from zoo.policy.base import Policy
from zoo.run.config import resolve_policy

OBS = Box(np.full(3, -np.inf), np.full(3, np.inf))
ROWS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


def policy_of(
    kind: str = 'ppo', action: Any = TWO_ACTIONS, obs: Any = OBS, mode: Any = 'clip', **sections: Any
) -> Policy:
    sections['model'] = {'hidden_sizes': [8], **sections.get('model', {})}
    policy = POLICY_REGISTRY.build(kind, resolve_policy({'type': kind, **sections}), obs, action, action_mode=mode)
    torch.manual_seed(1)
    for name, p in policy.model.named_parameters():
        if 'head' in name:  # the initial policy is near uniform, which would hide mistakes
            p.data.normal_()
    return policy
