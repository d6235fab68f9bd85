"""zoo: PPO and PPG policies by name, trained from one call.

Public names load on first use, so that importing zoo is quick.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoo.config.section import ConfigError as ConfigError, Section as Section
    from zoo.core.errors import CallbackError as CallbackError
    from zoo.core.registry import (
        BUFFER_REGISTRY as BUFFER_REGISTRY,
        CELL_REGISTRY as CELL_REGISTRY,
        CONSTRAINT_REGISTRY as CONSTRAINT_REGISTRY,
        CORRECTION_REGISTRY as CORRECTION_REGISTRY,
        DISTRIBUTION_REGISTRY as DISTRIBUTION_REGISTRY,
        DRAW_REGISTRY as DRAW_REGISTRY,
        ENCODER_REGISTRY as ENCODER_REGISTRY,
        ENV_REGISTRY as ENV_REGISTRY,
        ESTIMATOR_REGISTRY as ESTIMATOR_REGISTRY,
        EXPLORATION_REGISTRY as EXPLORATION_REGISTRY,
        INTRINSIC_REGISTRY as INTRINSIC_REGISTRY,
        MODEL_REGISTRY as MODEL_REGISTRY,
        OPTIMIZER_REGISTRY as OPTIMIZER_REGISTRY,
        OPTION_REGISTRY as OPTION_REGISTRY,
        PENALTY_REGISTRY as PENALTY_REGISTRY,
        PHASE_REGISTRY as PHASE_REGISTRY,
        PIPELINE_REGISTRY as PIPELINE_REGISTRY,
        PLASTICITY_REGISTRY as PLASTICITY_REGISTRY,
        POLICY_REGISTRY as POLICY_REGISTRY,
        PROXIMAL_REGISTRY as PROXIMAL_REGISTRY,
        SINK_REGISTRY as SINK_REGISTRY,
        STOP_REGISTRY as STOP_REGISTRY,
        SURROGATE_REGISTRY as SURROGATE_REGISTRY,
        VALUE_LOSS_REGISTRY as VALUE_LOSS_REGISTRY,
    )
    from zoo.env.inspection.inspect import inspect_env as inspect_env
    from zoo.pipeline import serial_pipeline as serial_pipeline
    from zoo.run.build import make_policy as make_policy
    from zoo.run.checkpoint.file import CheckpointError as CheckpointError
    from zoo.run.checkpoint.manager import SaveError as SaveError
    from zoo.run.fork import fork as fork
    from zoo.run.job import SerialJob as SerialJob
    from zoo.run.log.sinks import Sink as Sink
    from zoo.run.observers.base import Callback as Callback
    from zoo.run.observers.stop_rules import StopRule as StopRule
    from zoo.run.policy_file import load_policies as load_policies, load_policy as load_policy
    from zoo.run.result import RoundResult as RoundResult, TrainResult as TrainResult
    from zoo.tools import population as population
    from zoo.tools.exchange.load import import_policy as import_policy
    from zoo.tools.imitation.demonstrations import (
        record_demonstrations as record_demonstrations,
        save_demonstrations as save_demonstrations,
    )
    from zoo.tools.imitation.pretrain import pretrain as pretrain
    from zoo.tools.matches.exact import exploitability as exploitability
    from zoo.tools.matches.match import MatchResult as MatchResult, match as match
    from zoo.tools.media.recording import record_video as record_video
    from zoo.tools.results.read import read_run as read_run
    from zoo.worker.evaluator import Evaluation as Evaluation, evaluate as evaluate

from zoo.core import VERSION
from zoo.core.lazy import lazy_names
from zoo.core.moved import keep_old_paths

__version__ = VERSION
keep_old_paths()

_KINDS = (
    'BUFFER CELL CONSTRAINT CORRECTION DISTRIBUTION DRAW ENCODER ENV ESTIMATOR EXPLORATION INTRINSIC MODEL OPTIMIZER '
    'OPTION PENALTY PHASE PIPELINE PLASTICITY POLICY PROXIMAL SINK STOP SURROGATE VALUE_LOSS'
)
__getattr__, _, __all__ = lazy_names(
    __name__,
    {
        'zoo.core.registry': ' '.join(f'{kind}_REGISTRY' for kind in _KINDS.split()),
        'zoo.config.section': 'ConfigError Section',
        'zoo.core.errors': 'CallbackError',
        'zoo.env.inspection.inspect': 'inspect_env',
        'zoo.pipeline': 'serial_pipeline',
        'zoo.run.build': 'make_policy',
        'zoo.run.checkpoint.file': 'CheckpointError',
        'zoo.run.checkpoint.manager': 'SaveError',
        'zoo.run.fork': 'fork',
        'zoo.run.job': 'SerialJob',
        'zoo.run.log.sinks': 'Sink',
        'zoo.run.observers.base': 'Callback',
        'zoo.run.observers.stop_rules': 'StopRule',
        'zoo.run.policy_file': 'load_policies load_policy',
        'zoo.run.result': 'RoundResult TrainResult',
        'zoo.tools.exchange.load': 'import_policy',
        'zoo.tools.imitation.demonstrations': 'record_demonstrations save_demonstrations',
        'zoo.tools.imitation.pretrain': 'pretrain',
        'zoo.tools.matches.exact': 'exploitability',
        'zoo.tools.matches.match': 'match MatchResult',
        'zoo.tools.media.recording': 'record_video',
        'zoo.tools.population': 'population=',
        'zoo.tools.results.read': 'read_run',
        'zoo.worker.evaluator': 'evaluate Evaluation',
    },
    hints={
        "zoo.serial_pipeline('cartpole_ppo')": 'train fit learn run Trainer Algorithm',
        "zoo.serial_pipeline({'policy': {'type': 'ppo'}})": 'PPO PPG A2C DQN PPOPolicy PPOConfig',
        "zoo.serial_pipeline({'env': {'id': 'CartPole-v1'}})": 'make make_env make_vec_env make_vec',
        "zoo.load_policy('runs/...').act(obs)": 'load predict from_checkpoint',
        'zoo.evaluate': 'evaluate_policy test',
    },
)


def __dir__() -> list[str]:
    return [*__all__, '__version__']
