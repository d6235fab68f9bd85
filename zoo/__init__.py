"""zoo: PPO and PPG policies by name, trained from one call.

Public names load on first use, so that importing zoo is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        OPTION_REGISTRY,
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
    from zoo.env.inspection.inspect import inspect_env
    from zoo.pipeline import serial_pipeline
    from zoo.run.build import make_policy
    from zoo.run.checkpoint.file import CheckpointError
    from zoo.run.checkpoint.manager import SaveError
    from zoo.run.job import SerialJob
    from zoo.run.log.sinks import Sink
    from zoo.run.observers.callbacks import Callback, CallbackError
    from zoo.run.observers.stop_rules import StopRule
    from zoo.run.policy_file import load_policy
    from zoo.run.result import TrainResult
    from zoo.tools.imitation.demonstrations import record_demonstrations, save_demonstrations
    from zoo.tools.imitation.pretrain import pretrain
    from zoo.tools.media.recording import record_video
    from zoo.tools.results.read import read_run
    from zoo.worker.evaluator import Evaluation, evaluate

import zoo.core.moved  # noqa: F401  # old import paths work for one release
from zoo.core.lazy import lazy_names
from zoo.core.version import VERSION

__version__ = VERSION

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
    'OPTION_REGISTRY',
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

_HOME = {
    'Callback': 'zoo.run.observers.callbacks',
    'CallbackError': 'zoo.run.observers.callbacks',
    'CheckpointError': 'zoo.run.checkpoint.file',
    'ConfigError': 'zoo.config.section',
    'evaluate': 'zoo.worker.evaluator',
    'Evaluation': 'zoo.worker.evaluator',
    'inspect_env': 'zoo.env.inspection.inspect',
    'load_policy': 'zoo.run.policy_file',
    'make_policy': 'zoo.run.build',
    'pretrain': 'zoo.tools.imitation.pretrain',
    'read_run': 'zoo.tools.results.read',
    'record_demonstrations': 'zoo.tools.imitation.demonstrations',
    'record_video': 'zoo.tools.media.recording',
    'save_demonstrations': 'zoo.tools.imitation.demonstrations',
    'SaveError': 'zoo.run.checkpoint.manager',
    'Section': 'zoo.config.section',
    'serial_pipeline': 'zoo.pipeline',
    'SerialJob': 'zoo.run.job',
    'Sink': 'zoo.run.log.sinks',
    'StopRule': 'zoo.run.observers.stop_rules',
    'TrainResult': 'zoo.run.result',
}
_HOME |= {name: 'zoo.core.registry' for name in __all__ if name.endswith('_REGISTRY')}

_TRAIN = "zoo.serial_pipeline('cartpole_ppo')"
_BY_NAME = "zoo.serial_pipeline({'policy': {'type': 'ppo'}})"
_HINTS = {
    **dict.fromkeys(('train', 'fit', 'learn', 'run', 'Trainer', 'Algorithm'), _TRAIN),
    **dict.fromkeys(('PPO', 'PPG', 'A2C', 'DQN', 'PPOPolicy', 'PPOConfig'), _BY_NAME),
    **dict.fromkeys(
        ('make', 'make_env', 'make_vec_env', 'make_vec'), "zoo.serial_pipeline({'env': {'id': 'CartPole-v1'}})"
    ),
    **dict.fromkeys(('load', 'predict', 'from_checkpoint'), "zoo.load_policy('runs/...').act(obs)"),
    **dict.fromkeys(('evaluate_policy', 'test'), 'zoo.evaluate'),
}
__getattr__, _ = lazy_names(__name__, _HOME, _HINTS)


def __dir__() -> list[str]:
    return [*__all__, '__version__']
