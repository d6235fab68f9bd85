"""zoo: PPO and PPG policies by name, trained from one call.

Public names load on first use, so that importing zoo is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.config.section import ConfigError, Section
    from zoo.core.registry import (
        BUFFER_REGISTRY,
        DISTRIBUTION_REGISTRY,
        ENCODER_REGISTRY,
        ENV_REGISTRY,
        MODEL_REGISTRY,
        POLICY_REGISTRY,
    )
    from zoo.pipeline import serial_pipeline
    from zoo.run.checkpoint import CheckpointError
    from zoo.run.job import TrainResult
    from zoo.run.load import load_policy
    from zoo.run.saving import SaveError
    from zoo.worker.evaluator import evaluate

from zoo.core.version import VERSION

__version__ = VERSION

_HOME = {
    'BUFFER_REGISTRY': 'zoo.core.registry',
    'CheckpointError': 'zoo.run.checkpoint',
    'ConfigError': 'zoo.config.section',
    'DISTRIBUTION_REGISTRY': 'zoo.core.registry',
    'ENCODER_REGISTRY': 'zoo.core.registry',
    'ENV_REGISTRY': 'zoo.core.registry',
    'MODEL_REGISTRY': 'zoo.core.registry',
    'POLICY_REGISTRY': 'zoo.core.registry',
    'SaveError': 'zoo.run.saving',
    'Section': 'zoo.config.section',
    'TrainResult': 'zoo.run.job',
    'evaluate': 'zoo.worker.evaluator',
    'load_policy': 'zoo.run.load',
    'serial_pipeline': 'zoo.pipeline',
}

__all__ = [
    'BUFFER_REGISTRY',
    'DISTRIBUTION_REGISTRY',
    'ENCODER_REGISTRY',
    'ENV_REGISTRY',
    'MODEL_REGISTRY',
    'POLICY_REGISTRY',
    'CheckpointError',
    'ConfigError',
    'SaveError',
    'Section',
    'TrainResult',
    'evaluate',
    'load_policy',
    'serial_pipeline',
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f'module zoo has no attribute {name!r}; it has {", ".join(__all__)}')
    return getattr(importlib.import_module(_HOME[name]), name)
