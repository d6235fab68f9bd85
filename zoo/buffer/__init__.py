"""Buffers between collecting and learning: what is pushed, and what the learner is given of it."""

from zoo.buffer.base import Batch, Buffer, BufferConfig, in_sequences
from zoo.buffer.check import draw_problems
from zoo.buffer.draws import DrawConfig
from zoo.buffer.multi import MultiBuffer, MultiConfig, n_draw_of, n_rows_drawn, reuse_of
from zoo.buffer.priority import PrioritizedDraws
from zoo.buffer.replay import ReplayBuffer, ReplayConfig
from zoo.buffer.rollout import RolloutBuffer

__all__ = [
    'Batch',
    'Buffer',
    'BufferConfig',
    'DrawConfig',
    'MultiBuffer',
    'MultiConfig',
    'PrioritizedDraws',
    'ReplayBuffer',
    'ReplayConfig',
    'RolloutBuffer',
    'draw_problems',
    'in_sequences',
    'n_draw_of',
    'n_rows_drawn',
    'reuse_of',
]
