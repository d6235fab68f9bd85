"""Checkpoints: their files, their schema, which are kept, and what one may ask for."""

from zoo.run.checkpoint.file import Checkpoint as Checkpoint
from zoo.run.checkpoint.file import CheckpointError as CheckpointError
from zoo.run.checkpoint.file import load_checkpoint as load_checkpoint
from zoo.run.checkpoint.file import save_checkpoint as save_checkpoint
