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
        CORRECTION_REGISTRY,
        DISTRIBUTION_REGISTRY,
        DRAW_REGISTRY,
        ENCODER_REGISTRY,
        ENV_REGISTRY,
        ESTIMATOR_REGISTRY,
        EXPLORATION_REGISTRY,
        INTRINSIC_REGISTRY,
        MODEL_REGISTRY,
        OPTIMIZER_REGISTRY,
        PENALTY_REGISTRY,
        PHASE_REGISTRY,
        PIPELINE_REGISTRY,
        PLASTICITY_REGISTRY,
        POLICY_REGISTRY,
        PROXIMAL_REGISTRY,
        SINK_REGISTRY,
        STOP_REGISTRY,
        SURROGATE_REGISTRY,
        VALUE_LOSS_REGISTRY,
    )
    from zoo.env.inspect import inspect_env
    from zoo.pipeline import serial_pipeline
    from zoo.results.read import read_run
    from zoo.run.callbacks import Callback, CallbackError
    from zoo.run.checkpoint import CheckpointError
    from zoo.run.job import SerialJob, TrainResult
    from zoo.run.load import load_policy
    from zoo.run.make_policy import make_policy
    from zoo.run.pretrain import pretrain
    from zoo.run.saving import SaveError
    from zoo.run.sinks import Sink
    from zoo.run.stop_rules import StopRule
    from zoo.worker.demonstrations import record_demonstrations, save_demonstrations
    from zoo.worker.evaluation import Evaluation
    from zoo.worker.evaluator import evaluate
    from zoo.worker.recording import record_video

from zoo.core.version import VERSION

__version__ = VERSION

_HOME = {
    'BUFFER_REGISTRY': 'zoo.core.registry',
    'CORRECTION_REGISTRY': 'zoo.core.registry',
    'Callback': 'zoo.run.callbacks',
    'CallbackError': 'zoo.run.callbacks',
    'CheckpointError': 'zoo.run.checkpoint',
    'ConfigError': 'zoo.config.section',
    'DISTRIBUTION_REGISTRY': 'zoo.core.registry',
    'DRAW_REGISTRY': 'zoo.core.registry',
    'ENCODER_REGISTRY': 'zoo.core.registry',
    'ENV_REGISTRY': 'zoo.core.registry',
    'ESTIMATOR_REGISTRY': 'zoo.core.registry',
    'EXPLORATION_REGISTRY': 'zoo.core.registry',
    'INTRINSIC_REGISTRY': 'zoo.core.registry',
    'MODEL_REGISTRY': 'zoo.core.registry',
    'OPTIMIZER_REGISTRY': 'zoo.core.registry',
    'PENALTY_REGISTRY': 'zoo.core.registry',
    'PHASE_REGISTRY': 'zoo.core.registry',
    'PIPELINE_REGISTRY': 'zoo.core.registry',
    'PLASTICITY_REGISTRY': 'zoo.core.registry',
    'POLICY_REGISTRY': 'zoo.core.registry',
    'PROXIMAL_REGISTRY': 'zoo.core.registry',
    'SINK_REGISTRY': 'zoo.core.registry',
    'STOP_REGISTRY': 'zoo.core.registry',
    'SURROGATE_REGISTRY': 'zoo.core.registry',
    'SaveError': 'zoo.run.saving',
    'SerialJob': 'zoo.run.job',
    'Section': 'zoo.config.section',
    'Sink': 'zoo.run.sinks',
    'StopRule': 'zoo.run.stop_rules',
    'TrainResult': 'zoo.run.job',
    'VALUE_LOSS_REGISTRY': 'zoo.core.registry',
    'Evaluation': 'zoo.worker.evaluation',
    'evaluate': 'zoo.worker.evaluator',
    'inspect_env': 'zoo.env.inspect',
    'load_policy': 'zoo.run.load',
    'record_video': 'zoo.worker.recording',
    'make_policy': 'zoo.run.make_policy',
    'read_run': 'zoo.results.read',
    'pretrain': 'zoo.run.pretrain',
    'record_demonstrations': 'zoo.worker.demonstrations',
    'save_demonstrations': 'zoo.worker.demonstrations',
    'serial_pipeline': 'zoo.pipeline',
}

__all__ = [
    'BUFFER_REGISTRY',
    'CORRECTION_REGISTRY',
    'DISTRIBUTION_REGISTRY',
    'DRAW_REGISTRY',
    'ENCODER_REGISTRY',
    'ENV_REGISTRY',
    'ESTIMATOR_REGISTRY',
    'EXPLORATION_REGISTRY',
    'INTRINSIC_REGISTRY',
    'MODEL_REGISTRY',
    'OPTIMIZER_REGISTRY',
    'PENALTY_REGISTRY',
    'PHASE_REGISTRY',
    'PIPELINE_REGISTRY',
    'PLASTICITY_REGISTRY',
    'POLICY_REGISTRY',
    'PROXIMAL_REGISTRY',
    'SINK_REGISTRY',
    'STOP_REGISTRY',
    'SURROGATE_REGISTRY',
    'VALUE_LOSS_REGISTRY',
    'Callback',
    'CallbackError',
    'CheckpointError',
    'ConfigError',
    'SaveError',
    'Section',
    'SerialJob',
    'Sink',
    'StopRule',
    'TrainResult',
    'Evaluation',
    'evaluate',
    'inspect_env',
    'load_policy',
    'record_video',
    'make_policy',
    'read_run',
    'pretrain',
    'record_demonstrations',
    'save_demonstrations',
    'serial_pipeline',
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f'module zoo has no attribute {name!r}; it has {", ".join(__all__)}')
    return getattr(importlib.import_module(_HOME[name]), name)
