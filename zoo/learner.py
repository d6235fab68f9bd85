"""Batches x learn mode -> metrics."""
from __future__ import annotations

import torch

from zoo.buffer import RolloutBuffer
from zoo.policy.base import LearnMode, Metrics


class Learner:
    """Trains on whatever the buffer yields, and tells the policy how far the run is."""

    def __init__(self, mode: LearnMode, buffer: RolloutBuffer) -> None:
        self._mode, self._buffer = mode, buffer
        self._names_checked = False

    @property
    def train_iter(self) -> int:
        """Optimiser steps so far."""
        return self._mode.train_iter()

    def train(self, env_step: int) -> Metrics:
        """One round of updates at this env step; returns the mean of each metric over the batches."""
        self._mode.set_env_step(env_step)
        metrics = [self._mode.forward(batch) for batch in self._buffer.batches()]
        if not metrics:
            return {}
        self._check_names(metrics[0])
        mean = metrics[0] if len(metrics) == 1 else {
            name: torch.stack([m[name] for m in metrics]).mean() for name in metrics[0]}
        return {**mean, **self._mode.learn_aux()}

    def _check_names(self, metrics: Metrics) -> None:
        if self._names_checked:
            return
        got, wanted = set(metrics), set(self._mode.monitor_vars())
        if got != wanted:
            raise ValueError(f'_forward_learn returned the metrics {sorted(got)} but _monitor_vars_learn names '
                             f'{sorted(wanted)}; make the two agree')
        self._names_checked = True
