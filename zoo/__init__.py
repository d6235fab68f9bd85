"""zoo: PPO and PPG policies by name, trained from one call.

Public names load on first use, so that importing zoo is quick.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.checkpoint import CheckpointError
    from zoo.config import ConfigError, Section
    from zoo.evaluator import evaluate
    from zoo.pipeline import TrainResult, serial_pipeline
    from zoo.registry import BUFFER_REGISTRY, ENV_REGISTRY, MODEL_REGISTRY, POLICY_REGISTRY
    from zoo.saved import load_policy

__version__ = '0.1.0'

_HOME = {
    'BUFFER_REGISTRY': 'zoo.registry', 'CheckpointError': 'zoo.checkpoint', 'ConfigError': 'zoo.config',
    'ENV_REGISTRY': 'zoo.registry', 'MODEL_REGISTRY': 'zoo.registry', 'POLICY_REGISTRY': 'zoo.registry',
    'Section': 'zoo.config', 'TrainResult': 'zoo.pipeline', 'evaluate': 'zoo.evaluator',
    'load_policy': 'zoo.saved', 'serial_pipeline': 'zoo.pipeline',
}

__all__ = [
    'BUFFER_REGISTRY', 'ENV_REGISTRY', 'MODEL_REGISTRY', 'POLICY_REGISTRY', 'CheckpointError', 'ConfigError', 'Section',
    'TrainResult', 'evaluate', 'load_policy', 'serial_pipeline',
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f'module zoo has no attribute {name!r}; it has {", ".join(__all__)}')
    return getattr(importlib.import_module(_HOME[name]), name)
