"""Buffers between collecting and learning: what is pushed, and what the learner is given of it.

Names load on first use, so that an on-policy run loads no replay buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.buffer.priority import PrioritizedDraws
    from zoo.buffer.replay import MultiBuffer, MultiConfig, ReplayBuffer, ReplayConfig, draw_problems
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

_ELSEWHERE = {
    'DrawConfig': 'zoo.buffer.ring',
    'MultiBuffer': 'zoo.buffer.replay',
    'MultiConfig': 'zoo.buffer.replay',
    'PrioritizedDraws': 'zoo.buffer.priority',
    'ReplayBuffer': 'zoo.buffer.replay',
    'ReplayConfig': 'zoo.buffer.replay',
    'draw_problems': 'zoo.buffer.replay',
}
_HOME = {name: _ELSEWHERE.get(name, 'zoo.buffer.rollout') for name in __all__}

__getattr__, __dir__ = lazy_names(__name__, _HOME)
