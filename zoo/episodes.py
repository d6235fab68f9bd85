"""How the episodes of the training envs went."""
from __future__ import annotations

from collections import deque

import numpy as np
from torch import Tensor


class EpisodeTracker:
    """Returns (undiscounted) and lengths of the last 100 training episodes, found once per rollout."""

    def __init__(self, n_env: int) -> None:
        self._n_env = n_env
        self.returns: deque[float] = deque(maxlen=100)
        self.lengths: deque[int] = deque(maxlen=100)
        self.n_episode = 0
        self.reset()

    def reset(self) -> None:
        """All envs begin new episodes."""
        self._return, self._length = np.zeros(self._n_env), np.zeros(self._n_env, dtype=np.int64)

    def record(self, reward: Tensor, end: Tensor, is_reset: Tensor | None) -> int:
        """The steps of a rollout, [T, B] each; returns how many of them were transitions (not mere resets)."""
        reward_, end_ = reward.numpy(force=True).astype(np.float64), end.numpy(force=True)
        counts = np.ones(reward_.shape, dtype=np.int64)
        if is_reset is not None:
            counts -= is_reset.numpy(force=True)
        total, length = reward_.cumsum(0) + self._return, counts.cumsum(0) + self._length
        base_return, base_length = np.zeros(self._n_env), np.zeros(self._n_env, dtype=np.int64)
        for t, b in zip(*end_.nonzero(), strict=True):  # in order of time
            self.returns.append(float(total[t, b] - base_return[b]))
            self.lengths.append(int(length[t, b] - base_length[b]))
            base_return[b], base_length[b] = total[t, b], length[t, b]
            self.n_episode += 1
        self._return, self._length = total[-1] - base_return, length[-1] - base_length
        return int(counts.sum())
