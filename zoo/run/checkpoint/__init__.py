"""Checkpoints: their files, their schema, the ones that are kept, and consent to what they ask for."""

from zoo.run.checkpoint.file import (
    Checkpoint,
    CheckpointError,
    State,
    check_finite,
    fit_state,
    load_checkpoint,
    malformed,
    save_checkpoint,
    shown,
    steps_of,
)
from zoo.run.checkpoint.manager import CheckpointManager, SaveError, of_rank, refuse_unsavable
from zoo.run.checkpoint.schema import (
    BY_HAND,
    SavedRun,
    causes_of_misfits,
    check_config_size,
    check_given_model,
    check_saved_modes,
    leaf_values,
    saved_meta,
    saved_run,
)

__all__ = [
    'BY_HAND',
    'Checkpoint',
    'CheckpointError',
    'CheckpointManager',
    'SaveError',
    'SavedRun',
    'State',
    'causes_of_misfits',
    'check_config_size',
    'check_finite',
    'check_given_model',
    'check_saved_modes',
    'fit_state',
    'leaf_values',
    'load_checkpoint',
    'malformed',
    'of_rank',
    'refuse_unsavable',
    'save_checkpoint',
    'saved_meta',
    'saved_run',
    'shown',
    'steps_of',
]
