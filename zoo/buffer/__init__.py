"""Buffers between collection and learning: they take the samples of rollouts and choose the batches to learn from.

Names load on first use, so that an on-policy run loads no replay buffer.
"""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.buffer.base import (
        Batch as Batch,
        Buffer as Buffer,
        BufferConfig as BufferConfig,
        in_sequences as in_sequences,
        n_draw_of as n_draw_of,
        n_rows_drawn as n_rows_drawn,
        reuse_of as reuse_of,
    )
    from zoo.buffer.replay import (
        MultiBuffer as MultiBuffer,
        MultiConfig as MultiConfig,
        PrioritizedDraws as PrioritizedDraws,
        ReplayBuffer as ReplayBuffer,
        ReplayConfig as ReplayConfig,
        draw_problems as draw_problems,
    )
    from zoo.buffer.ring import DrawConfig as DrawConfig
    from zoo.buffer.rollout import RolloutBuffer as RolloutBuffer

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'zoo.buffer.base': 'Batch Buffer BufferConfig in_sequences n_draw_of n_rows_drawn reuse_of',
        'zoo.buffer.replay': 'MultiBuffer MultiConfig PrioritizedDraws ReplayBuffer ReplayConfig draw_problems',
        'zoo.buffer.ring': 'DrawConfig',
        'zoo.buffer.rollout': 'RolloutBuffer',
    },
)
