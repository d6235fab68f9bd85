"""Prioritised draws from a ring: samples with a large priority more often, and weights that correct for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from pydantic import Field, model_validator
from torch import Tensor

from zoo.buffer.ring import DrawConfig, Draws, Ring
from zoo.config.schedule import Linear, Points, greatest, schedule_value
from zoo.core.data import Columns, first_leaf
from zoo.core.errors import UserError

LEAST = 1e-6
"""A smaller priority counts as this one: a sample with priority 0 would never be drawn again."""


class PriorityConfig(DrawConfig):
    """Draws by priority."""

    alpha: float = Field(
        0.0,
        ge=0,
        le=2,
        description='samples are drawn in proportion to priority^alpha (0.6 is usual), the priority being the column that '
        "the policy writes, batch['priority']; 0: all alike",
    )
    beta: Annotated[float, Field(ge=0, le=1)] | Linear | Points = Field(
        0.4,
        description="how far the column 'weight' corrects for draws by priority: 0 not at all, 1 fully; 0.4 to 1 is usual, "
        'as a schedule from 0.4 to 1',
    )

    @model_validator(mode='after')
    def _beta_is_at_most_1(self) -> PriorityConfig:
        if (most := greatest(self.beta)) > 1:
            raise ValueError(f'beta reaches {most:g} but must be 0 to 1; use 1 for a full correction.')
        return self


class PrioritizedDraws(Draws):
    """Draws of `n_sample` rows of a ring, of which row i is drawn with probability P(i) = priority_i^alpha / sum.

    The rows of a draw come from `n_sample` equal ranges of the summed probability, one from each, so a row may come
    several times. The column 'weight' of a batch is multiplied by w_i = (n P(i))^-beta, n rows being eligible, divided by
    the largest w of the batch. The policy writes the column 'priority' [n] into the batch that it learns from, such as
    the size of its error; it is read when the next draw is asked for. New samples have the largest priority so far.

    Which rows are eligible: see `Draws`; here `max_use` counts the draws that a row was part of.
    Source: Schaul et al. 2016, arXiv:1511.05952, sec. 3.3 and 3.4. Departs: a draw adds up the priorities of all rows, one
    pass over 100,000 doubles for 100,000 samples, where the paper has a tree of sums; and the largest weight is that of
    the batch, not of the memory.
    """

    _cfg: PriorityConfig

    def __init__(self, ring: Ring, cfg: PriorityConfig, generator: torch.Generator, size: int) -> None:
        super().__init__(ring, cfg, generator, size)
        beta = cfg.beta
        self._beta = float(beta) if isinstance(beta, int | float) else None  # None: the env step is not known yet
        self._largest = 1.0
        self._priority = torch.ones(ring.size, dtype=torch.float64)
        self._mass = torch.ones(ring.size, dtype=torch.float64)  # priority^alpha

    def batches(self) -> Iterator[Columns]:
        for _ in range(self._cfg.update_per_collect):
            rows = self._draw()
            if rows is None:
                return
            batch, n_push = self._weighted(rows), self._ring.n_push
            yield batch
            self._take(rows, batch, self._ring.n_push - n_push)

    def renew(self, rows: slice) -> None:
        super().renew(rows)
        self._set(rows, torch.tensor(self._largest, dtype=torch.float64))

    def set_env_step(self, env_step: int) -> None:
        self._beta = schedule_value(self._cfg.beta, env_step)

    def state_dict(self) -> dict[str, Any]:
        """As of `Draws`, with the priorities."""
        return {**super().state_dict(), 'priority': self._priority[: self._ring.n_row], 'largest': self._largest}

    def load_state_dict(self, state: dict[str, Any], rows: Tensor) -> None:
        """Copies a `state_dict` in; that of uniform draws has no priorities: then all are 1."""
        super().load_state_dict(state, rows)
        if 'priority' not in state:
            return
        priority, self._largest = state['priority'], float(state['largest'])
        if not (priority.isfinite().all() and (priority > 0).all() and 0 < self._largest < float('inf')):
            raise ValueError('priorities should be finite and above 0')
        self._set(slice(0, len(rows)), priority[rows].double())

    def _set(self, rows: Tensor | slice, priority: Tensor) -> None:
        self._priority[rows] = priority
        self._mass[rows] = priority**self._cfg.alpha

    def _draw(self) -> Tensor | None:
        eligible, n = self._eligible(), self._cfg.n_sample
        mass = self._mass[: self._ring.n_row] if eligible is None else self._mass[eligible]
        if not self._suffice(len(mass)):
            return None
        self._n_eligible, total = len(mass), mass.cumsum(0)
        self._sum = float(total[-1])
        at = (torch.arange(n) + torch.rand(n, generator=self._generator, dtype=torch.float64)) * (self._sum / n)
        rows = torch.searchsorted(total, at, right=True).clamp_(max=len(mass) - 1)
        rows = rows if eligible is None else eligible[rows]
        self._n_use[rows] += 1  # a row that comes several times is counted once
        return rows

    def _weighted(self, rows: Tensor) -> dict[str, Any]:
        """A copy of the rows, their column 'weight' corrected for how they were drawn."""
        if self._beta is None:
            raise UserError(
                'buffer.beta is a schedule but the buffer was not told how far the run is; call its set_env_step(env_step) '
                'before each round, or use a number'
            )
        batch = self._ring.gather(rows)
        if 'priority' in batch:
            raise UserError(
                "samples have the key 'priority', which prioritised draws take from the policy; rename it in "
                '`_get_train_sample`, or use buffer.alpha 0'
            )
        weight = (self._n_eligible * self._mass[rows] / self._sum) ** -self._beta
        weight = (weight / weight.max()).float().to(first_leaf(batch).device)
        if 'weight' in batch:  # [n], or [n, L] where samples are sequences
            weight = batch['weight'] * weight.view(-1, *(1,) * (batch['weight'].dim() - 1))
        return {**batch, 'weight': weight}

    def _take(self, rows: Tensor, batch: dict[str, Any], n_push: int) -> None:
        """Takes the priorities that the policy wrote, the largest of a row that came several times. Waits for the device.

        n_push: pushes since the draw; rows that they wrote over keep the priority of new samples.
        """
        if 'priority' not in batch:
            raise UserError(
                f"buffer.alpha is {self._cfg.alpha} but the policy wrote no column 'priority' into its batch; write "
                "batch['priority'] = ... [n] in `_forward_learn`, or use buffer.alpha 0"
            )
        priority = batch['priority'].detach().to('cpu', torch.float64)
        if priority.shape != rows.shape:
            raise UserError(
                f"the policy's column 'priority' has shape {list(priority.shape)} but the batch has {len(rows)} samples; "
                'write one number for each'
            )
        if not (priority.isfinite() & (priority >= 0)).all():
            raise UserError(
                "the policy's column 'priority' has numbers that are negative or not finite; use e.g. |error|"
            )
        priority = priority.clamp(min=LEAST)
        self._largest = max(self._largest, float(priority.max()))
        is_kept = self._ring.staleness(rows) >= n_push
        rows, priority = rows[is_kept], priority[is_kept]
        self._priority.scatter_reduce_(0, rows, priority, 'amax', include_self=False)
        self._set(rows, self._priority[rows])
