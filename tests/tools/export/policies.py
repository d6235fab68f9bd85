"""Untrained policies to export, with outputs as large as those of trained ones, and ONNX files as functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from zoo.core.registry import POLICY_REGISTRY
from zoo.env.adapter import convert_space
from zoo.env.toy.targets import ACTION_SPACES, OBS_SPACES
from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.run.config import resolve_policy

onnxruntime = pytest.importorskip('onnxruntime', reason='the extra export is not installed')

IMAGE = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)


def make_policy(
    policy_type: str,
    obs: str | gymnasium.Space = 'box',
    action: str | gymnasium.Space = 'discrete',
    mode: Any = 'clip',
    fields: Any = ('eval',),
    **model: Any,
) -> Any:
    """An untrained policy with random statistics and weights of the policy head 100 times larger than their initial values."""
    spaces = [
        convert_space(names[given]() if isinstance(given, str) else given, kind, 'test')
        for names, given, kind in ((OBS_SPACES, obs, 'observation'), (ACTION_SPACES, action, 'action'))
    ]
    cfg = resolve_policy({'type': policy_type, 'device': 'cpu', 'model': model})
    policy = POLICY_REGISTRY.get(policy_type)(cfg, *spaces, action_mode=mode, enable_field=fields, seed=1)
    with torch.no_grad():
        for module in policy.model.policy_head.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.mul_(100)
        for module in policy.model.modules():
            if isinstance(module, RunningMeanStd):
                module.update(3 + 2 * torch.randn(100, *module.mean.shape, generator=torch.Generator().manual_seed(0)))
    return policy


def load_onnx(path: Path) -> Callable[..., list[np.ndarray]]:
    """The file as a function from its inputs to its outputs, both in the order of the file."""
    session = onnxruntime.InferenceSession(path, providers=['CPUExecutionProvider'])
    names = [each.name for each in session.get_inputs()]
    return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))


def samples(space: gymnasium.Space, n: int = 1000, seed: int = 0) -> list[Any]:
    """n observations of a space as gymnasium draws them."""
    space.seed(seed)
    return [space.sample() for _ in range(n)]
