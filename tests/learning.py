"""Rounds of updates without a run, as `SerialJob.learn_round` does them with a learn mode and a buffer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from zoo.core.data import Metrics
from zoo.policy.modes import LearnMode
from zoo.run.observers.rounds import MetricNames, SampleCount, mean_metrics, refuse_empty


class Learner:
    """Trains on the batches that a buffer yields."""

    name = ''

    def __init__(self, mode: LearnMode, buffer: Any) -> None:
        self.mode, self._buffer, self.n_sample = mode, buffer, 0
        self._observers = MetricNames(), SampleCount()

    @property
    def train_iter(self) -> int:
        return self.mode.train_iter()

    def train(self, env_step: int) -> Metrics:
        """One round of updates at this env step."""
        job: Any = SimpleNamespace(learner=self)
        refuse_empty(self._buffer)
        if hasattr(self._buffer, 'set_env_step'):
            self._buffer.set_env_step(env_step)
        self.mode.set_env_step(env_step)
        found = []
        for batch in self._buffer.batches():
            found.append(self.mode.forward(batch))
            for observer in self._observers:
                observer.on_batch(job, batch, found[-1])
        return mean_metrics(found)
