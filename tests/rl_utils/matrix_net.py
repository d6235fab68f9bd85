"""A network with hidden matrices, and an optimiser that a config names."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo.config.components import checked_spec, make_component
from zoo.core.registry import OPTIMIZER_REGISTRY
from zoo.rl_utils.optimizer import FlatOptimizer

PATH = 'policy.learn.optimizer'


def make_net(seed: int = 0) -> nn.Sequential:
    """Two hidden matrices, a wide and a tall one, between an input and an output layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = ((3, 8), (8, 6), (6, 8), (8, 2))
        return nn.Sequential(*(layer for a, b in sizes for layer in (nn.Linear(a, b), nn.Tanh())))


def optimizer_of(spec: Any, net: nn.Module, *args: Any) -> FlatOptimizer:
    part = make_component(OPTIMIZER_REGISTRY, checked_spec(OPTIMIZER_REGISTRY, spec, PATH))
    return part(net.named_parameters(), *args)
