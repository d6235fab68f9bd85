"""Option 'value_norm': a critic that predicts returns normalised by their running mean and deviation."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from zoo.core.data import Columns
from zoo.policy.options import Owner, UpdateOption
from zoo.rl_utils.normalizer import RunningMeanStd


class ValueNorm(UpdateOption):
    """Makes the critic predict returns normalised by their running mean and deviation.

    The returns of a batch update the statistics before its first step, so that the critic's new outputs are converted
    with the same statistics with which it was trained.
    """

    phase: ClassVar[Literal['policy', 'value', 'all']] = 'value'

    def attach(self, policy: Owner) -> None:
        self._samples = policy.samples
        self._statistics = policy.normalizers['value'] = RunningMeanStd(ranks=policy.run.ranks).to(policy.device)
        policy.samples.units = self._statistics
        policy.samples.inputs.append(self.in_units_of_critic)

    def in_units_of_critic(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Converts 'value' and 'return_' to the unit of the critic's output, in which steps read them."""
        return columns | {key: self._statistics.standardize(columns[key]) for key in ('value', 'return_')}

    def before_update(self, batch: Columns) -> Columns:
        rows, weight = self._samples.rows_once(batch)
        self._statistics.update(rows['return_'], weight)
        return batch
