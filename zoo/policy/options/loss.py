"""Options that some losses need: weights of penalties, the critic's output before an update, returns beyond its range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from zoo.config.schedule import schedule_value
from zoo.core.data import Columns, Metrics, Rollout
from zoo.policy.options import Estimated, Owner, UpdateOption
from zoo.rl_utils.ppo import weighted_mean

if TYPE_CHECKING:
    from zoo.policy.slots import UpdateSlots


class Penalties(UpdateOption):
    """Terms added to the loss of the policy (`policy.learn.penalties`); weights without a target follow their schedules."""

    key = 'policy.learn.penalties'

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        self._objective = policy.objective
        self._scheduled: dict[str, float] = {}
        self._weight_names = [f'{penalty.name}_weight' for penalty in self._objective.penalties]
        self.names = (*(f'penalty_{penalty.name}' for penalty in self._objective.penalties), *self._weight_names)

    def set_env_step(self, env_step: int) -> None:
        named = zip(self._objective.penalties, self._objective.common, strict=True)
        self._scheduled = {
            penalty.name: schedule_value(common.weight, env_step) for penalty, common in named if common.target is None
        }

    def choose_weights(self) -> Mapping[str, float]:
        return self._scheduled

    def after_passes(self, batch: Columns, trained: Any) -> Metrics:
        weights = torch.tensor(self._objective.weights, dtype=torch.float64).unbind()
        return dict(zip(self._weight_names, weights, strict=True))


class OldOutput(UpdateOption):
    """Keeps the critic's output, in its own unit, as column 'value_output', for losses that compare with it.

    A value clip limits how far gradient steps move the critic's output. So its centre is the output before the first
    step, also in later draws from a buffer. The column 'value' cannot replace it: it is in return units, and before the
    first step the returns of these samples change the statistics that convert it back. Without a baseline 'value' is 0.
    """

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> Mapping[str, Any]:
        return {'value_output': estimated.output}


class ReturnRange(UpdateOption):
    """Measures the share of returns outside the range that the critic can predict with its value loss."""

    names = ('return_outside',)

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        self._policy = policy

    def after_update(self, batch: Columns) -> Metrics:
        rows, weight = self._policy.samples.rows_once(batch)
        outside = self._policy.objective.value_loss.is_outside(self._policy.samples.units.standardize(rows['return_']))
        return {'return_outside': weighted_mean(outside.float(), weight)}
