"""Options of the loss: penalties, whose weights move with the env steps; a critic that predicts a distribution of returns."""

from __future__ import annotations

import torch

from zoo.config.schedule import schedule_value
from zoo.core.data import Columns, Metrics
from zoo.policy.options.base import Owner, UpdateOption


class Penalties(UpdateOption):
    """Terms added to the loss of the policy (`policy.learn.penalties`); weights without a target follow their schedules."""

    def attach(self, policy: Owner) -> None:
        self._objective = policy.objective
        found = [penalty.name for penalty in self._objective.penalties]
        self.names = tuple(name for each in found for name in (f'penalty_{each}', f'{each}_weight'))

    def set_env_step(self, env_step: int) -> None:
        for i, common in enumerate(self._objective.common):
            if common.target is None:
                self._objective.set_weight(i, schedule_value(common.weight, env_step))

    def after_update(self, batch: Columns) -> Metrics:
        weights = dict(zip(self.names[1::2], self._objective.fixed.penalty_weights, strict=True))
        return {name: torch.tensor(weight, dtype=torch.float64) for name, weight in weights.items()}


class ReturnRange(UpdateOption):
    """The share of returns outside of the range that the value loss predicts."""

    names = ('return_outside',)

    def attach(self, policy: Owner) -> None:
        self._policy = policy

    def after_update(self, batch: Columns) -> Metrics:
        return_ = self._policy.samples.read_by_steps(batch)['return_']
        return {'return_outside': self._policy.objective.value_loss.is_outside(return_).float().mean()}
