"""Buffers between collection and learning: they take the samples of rollouts and choose the batches to learn from.

Names load on first use, so that an on-policy run loads no replay buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.buffer.replay import MultiBuffer, MultiConfig, PrioritizedDraws, ReplayBuffer, ReplayConfig, draw_problems
    from zoo.buffer.ring import DrawConfig
    from zoo.buffer.rollout import (
        Batch,
        Buffer,
        BufferConfig,
        RolloutBuffer,
        in_sequences,
        n_draw_of,
        n_rows_drawn,
        reuse_of,
    )

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

_OF_REPLAY = ('MultiBuffer', 'MultiConfig', 'PrioritizedDraws', 'ReplayBuffer', 'ReplayConfig', 'draw_problems')
_HOME = dict.fromkeys(__all__, 'zoo.buffer.rollout') | dict.fromkeys(_OF_REPLAY, 'zoo.buffer.replay')
__getattr__, __dir__ = lazy_names(__name__, _HOME | {'DrawConfig': 'zoo.buffer.ring'})
