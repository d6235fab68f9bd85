"""Tracks returns and lengths of training episodes."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch import Tensor

from zoo.worker.episode_infos import InfoTally


class EpisodeTracker:
    """Undiscounted returns and lengths of the last 100 training episodes, updated once per rollout.

    Attributes: infos: the env's own numbers of episodes, which come when an episode ends; n_reset: episodes begun.
    """

    def __init__(self, n_env: int) -> None:
        self._n_env = n_env
        self.returns: deque[float] = deque(maxlen=100)
        self.lengths: deque[int] = deque(maxlen=100)
        self.n_episode = 0
        self.infos = InfoTally()
        self.n_reset = -n_env  # making it is no reset
        self.reset()

    def reset(self) -> None:
        """All envs begin new episodes."""
        self._return, self._length = np.zeros(self._n_env), np.zeros(self._n_env, dtype=np.int64)
        self.n_reset += self._n_env

    def drop(self, envs: slice) -> None:
        """The unfinished episodes of these envs are lost: they begin new ones."""
        self._return[envs], self._length[envs] = 0.0, 0
        self.n_reset += len(self._length[envs])

    def record(self, reward: Tensor, end: Tensor, is_reset: Tensor | None, is_broken: Tensor | None = None) -> int:
        """Takes the steps of a rollout, [T, B] each; returns the number of transitions (rows that are not only a reset).

        is_broken: ends of episodes that broke off as their env failed: these are not counted.
        """
        total = (
            reward.cumsum(0, dtype=torch.float64).numpy(force=True) + self._return
        )  # numpy's takes three times as long
        if is_reset is None:
            length = np.arange(1, len(total) + 1)[:, None] + self._length
        else:
            length = (~is_reset).cumsum(0).numpy(force=True) + self._length
        n_transition = int(length[-1].sum() - self._length.sum())
        t, b = np.divmod(np.flatnonzero(end.numpy(force=True)), end.shape[1])  # in order of time
        before = _end_before(b)
        whole = np.ones(len(t), dtype=bool) if is_broken is None else ~is_broken.numpy(force=True)[t, b]
        for kept, sums in ((self.returns, total[t, b]), (self.lengths, length[t, b])):
            kept.extend((sums - np.where(before < 0, 0, sums[before]))[whole][-100:].tolist())
        self.n_episode += int(np.count_nonzero(whole))
        self.n_reset += len(t)
        self._return, self._length = total[-1] - _last(total, t, b), length[-1] - _last(length, t, b)
        return n_transition


def mark_broken(is_reset: Tensor, end: Tensor, is_broken: Tensor) -> None:
    """Sets is_reset [T, B] in all rows of a rollout whose episode broke off: from the end before, [T, B], to the break."""
    for t, b in is_broken.nonzero().tolist():
        ends = end[:t, b].nonzero()
        is_reset[int(ends[-1]) + 1 if len(ends) else 0 : t, b] = True


def _end_before(b: np.ndarray) -> np.ndarray:
    """For episode ends in order of time, in envs b: the index of the previous end in the same env, -1 if there is none."""
    order, before = b.argsort(kind='stable'), np.full_like(b, -1)
    again = b[order][1:] == b[order][:-1]
    before[order[1:][again]] = order[:-1][again]
    return before


def _last(sums: np.ndarray, t: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Running sums [T, B] at the last episode end in each env, 0 if there is none."""
    last = np.zeros_like(sums[-1])
    last[b] = sums[t, b]  # of several ends the last is kept
    return last
