"""Option 'value_norm': a critic that predicts returns normalised by their running mean and deviation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from zoo.core.data import Columns
from zoo.policy.options import Owner, UpdateOption
from zoo.rl_utils.normalizer import RunningMeanStd

if TYPE_CHECKING:
    from zoo.policy.slots import UpdateSlots


class ValueNorm(UpdateOption):
    """Makes the critic predict returns normalised by their running mean and deviation.

    The returns of a batch update the statistics before its first step, so that the critic's new outputs are converted
    with the same statistics with which it was trained. If a buffer gives draws, returns count once, when they are collected.
    """

    key = 'policy.learn.value_norm'
    phase: ClassVar[Literal['policy', 'value', 'all']] = 'value'

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        self._policy = policy
        self._learns_from_draws = policy.run.n_draw is not None
        self._statistics = RunningMeanStd(ranks=policy.run.ranks).to(policy.device)
        update.normalizers['value'] = self._statistics
        update.units.fill(self, self._statistics)
        update.inputs.append(self.in_units_of_critic)

    def in_units_of_critic(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Converts 'value' and 'return_' to the unit of the critic's output, in which steps read them."""
        return columns | {key: self._statistics.standardize(columns[key]) for key in ('value', 'return_')}

    def rows_collected(self, rows: Columns, weight: Tensor | None) -> None:
        self._statistics.update(rows['return_'], weight)

    def before_update(self, batch: Columns) -> Columns:
        if not self._learns_from_draws:
            self.rows_collected(*self._policy.samples.rows_once(batch))
        return batch
