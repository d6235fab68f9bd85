"""Batches x learn mode -> metrics."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.buffer import Batch, Buffer
from zoo.core.data import Metrics, first_leaf
from zoo.core.errors import UserError
from zoo.policy.metrics import summary
from zoo.policy.modes import LearnMode


class Learner:
    """Trains on the batches that the buffer yields, and tells the policy how far the run is."""

    def __init__(self, mode: LearnMode, buffer: Buffer) -> None:
        self._mode, self._buffer = mode, buffer
        self._names_checked = False
        self._n_sample = 0
        self._waiting: Tensor | None = None  # samples that are not in _n_sample yet

    @property
    def n_sample(self) -> int:
        """Samples of all batches so far that have a weight above 0; passes over a batch do not count again, other draws do.

        To read it waits for the device, where batches have weights.
        """
        if self._waiting is not None:
            self._n_sample, self._waiting = self._n_sample + int(self._waiting), None
        return self._n_sample

    @n_sample.setter
    def n_sample(self, n: int) -> None:
        self._n_sample, self._waiting = n, None

    @property
    def train_iter(self) -> int:
        """Optimiser steps so far."""
        return self._mode.train_iter()

    def train(self, env_step: int) -> Metrics:
        """One round of updates at this env step; returns the mean of each metric over the batches that gave it.

        Raises: UserError if the buffer is empty, and says so (an attribute `is_empty`, which it need not have).
        """
        if getattr(self._buffer, 'is_empty', False):
            raise UserError(
                'there is nothing to learn from: the buffer is empty; collect a rollout and push its samples before each '
                'round of updates'
            )
        self._mode.set_env_step(env_step)
        if hasattr(self._buffer, 'set_env_step'):  # for its schedules, where it has any
            self._buffer.set_env_step(env_step)
        metrics: list[Metrics] = []
        for batch in self._buffer.batches():
            metrics.append(self._mode.forward(batch))
            self._check_names(batch, metrics[-1])
            n = _n_sample(batch)
            if isinstance(n, Tensor):  # is added later: no wait for the device
                self._waiting = n if self._waiting is None else self._waiting + n
            else:
                self._n_sample += n
        values: dict[str, list[Tensor]] = {}
        for each in metrics:
            for name, value in each.items():
                values.setdefault(name, []).append(value)
        return {name: v[0] if len(v) == 1 else summary(name, torch.stack(v)) for name, v in values.items()}

    def _check_names(self, batch: Batch, metrics: Metrics) -> None:
        """At the first batch for the whole update; one for a part of it gives a part of the metrics."""
        if self._names_checked:
            return
        parts = self._mode.get_batch_size()
        if isinstance(parts, dict) and batch.keys() < parts.keys():
            return
        wanted = set(self._mode.monitor_vars())
        if not (metrics.keys() >= wanted if self._mode.has_aux else metrics.keys() == wanted):
            raise ValueError(
                f'_forward_learn returned the metrics {sorted(metrics)} but _monitor_vars_learn names '
                f'{sorted(wanted)}; make the two agree'
            )
        self._names_checked = True


def _n_sample(batch: Batch) -> int | Tensor:
    """Rows, or steps of all sequences, less those of weight 0; of draws for parts of an update those of the policy."""
    if batch.keys() <= {'policy', 'value'}:
        return _n_sample(batch['policy']) if 'policy' in batch else 0
    if 'weight' in batch:
        return torch.count_nonzero(batch['weight'])
    column = next((batch[name] for name in ('adv', 'return_') if name in batch), None)
    return len(first_leaf(batch)) if column is None else column.numel()
