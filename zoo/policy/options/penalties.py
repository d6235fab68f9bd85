"""Penalties of the loss: their weights at an env step, and their metrics."""

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
