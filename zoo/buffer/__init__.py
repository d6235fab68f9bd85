"""Buffers between collecting and learning: what is pushed, and what the learner is given of it.

Names load on first use, so that an on-policy run loads no replay buffer.
"""

from zoo.core.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        'Batch': 'zoo.buffer.rollout',
        'Buffer': 'zoo.buffer.rollout',
        'BufferConfig': 'zoo.buffer.rollout',
        'DrawConfig': 'zoo.buffer.ring',
        'MultiBuffer': 'zoo.buffer.replay',
        'MultiConfig': 'zoo.buffer.replay',
        'PrioritizedDraws': 'zoo.buffer.replay',
        'ReplayBuffer': 'zoo.buffer.replay',
        'ReplayConfig': 'zoo.buffer.replay',
        'RolloutBuffer': 'zoo.buffer.rollout',
        'draw_problems': 'zoo.buffer.replay',
        'in_sequences': 'zoo.buffer.rollout',
        'n_draw_of': 'zoo.buffer.rollout',
        'n_rows_drawn': 'zoo.buffer.rollout',
        'reuse_of': 'zoo.buffer.rollout',
    },
)
