"""A critic that predicts a distribution of returns: how many of them lie outside of it."""

from __future__ import annotations

from zoo.core.data import Columns, Metrics
from zoo.policy.options.base import Owner, UpdateOption


class ReturnRange(UpdateOption):
    """The share of returns outside of the range that the value loss predicts."""

    names = ('return_outside',)

    def attach(self, policy: Owner) -> None:
        self._policy = policy

    def after_update(self, batch: Columns) -> Metrics:
        return_ = self._policy.samples.read_by_steps(batch)['return_']
        return {'return_outside': self._policy.objective.value_loss.is_outside(return_).float().mean()}
