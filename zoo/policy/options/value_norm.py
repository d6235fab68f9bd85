"""Option 'value_norm': a critic that predicts returns normalised by their running mean and deviation."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import Tensor

from zoo.core.data import Columns
from zoo.policy.options import Owner, UpdateOption
from zoo.rl_utils.normalizer import RunningMeanStd


class ValueNorm(UpdateOption):
    """Makes the critic predict returns normalised by their running mean and deviation.

    The returns of a batch update the statistics before its first step, so that the critic's new outputs are converted
    with the same statistics with which it was trained. If a buffer gives draws, returns count once, when they are collected.
    """

    phase: ClassVar[Literal['policy', 'value', 'all']] = 'value'

    def attach(self, policy: Owner) -> None:
        self._samples = policy.samples
        self._learns_from_draws = policy.run.n_draw is not None
        self._statistics = policy.normalizers['value'] = RunningMeanStd(ranks=policy.run.ranks).to(policy.device)
        policy.samples.units = self._statistics
        policy.samples.inputs.append(self.in_units_of_critic)

    def in_units_of_critic(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Converts 'value' and 'return_' to the unit of the critic's output, in which steps read them."""
        return columns | {key: self._statistics.standardize(columns[key]) for key in ('value', 'return_')}

    def rows_collected(self, rows: Columns, weight: Tensor | None) -> None:
        self._statistics.update(rows['return_'], weight)

    def before_update(self, batch: Columns) -> Columns:
        if not self._learns_from_draws:
            self.rows_collected(*self._samples.rows_once(batch))
        return batch
