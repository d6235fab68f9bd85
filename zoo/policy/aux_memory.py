"""Memory of phasic policy gradient between two auxiliary phases: observations, returns, weights and recurrent states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.core.data import STATE_COLUMNS, Columns, first_leaf, leaves, map_tensors
from zoo.core.errors import UserError

KEPT = frozenset(('obs', 'return_', 'weight')) | STATE_COLUMNS
"""Columns that the memory keeps of a batch: all that an auxiliary phase reads of it."""


class AuxMemory:
    """Memory of the batches since the last auxiliary phase, at most `n_part`; the end of a phase empties it.

    The rows are in one block on the device of the first batch, allocated when that batch comes, with room for n_part batches
    of its size. Observations keep their dtype (bytes stay bytes): the block has their size, plus 4 bytes per row for
    returns, and 4 for weights. It is allocated again, larger, only if later batches are larger, as after a resume with
    longer rollouts, or if they have weights and the first had none.
    Attributes: n_row: rows (or sequences) in the block; n_filled: batches that these rows are of; n_since_phase: batches that
      count towards the next auxiliary phase.
    """

    def __init__(self, n_part: int) -> None:
        self._n_part = n_part
        self._block: dict[str, Any] = {}
        self.n_row = 0
        self.n_filled = 0
        self.n_since_phase = 0

    @property
    def device(self) -> torch.device:
        """Device of the rows; defined once rows were stored."""
        return first_leaf(self._block).device

    def append(self, batch: Columns) -> None:
        """Stores a copy of a batch [N]: obs, return_ and, if they are there, weight and the columns of sequences.

        Raises: UserError if its columns have another form than the rows kept; RuntimeError if the memory is full.
        """
        part = {key: x for key, x in batch.items() if key in KEPT}
        if self.n_filled >= self._n_part:
            raise RuntimeError(
                f'the auxiliary memory has its {self._n_part} batches already; call learn_aux() after '
                'each learn_mode.forward(), it empties the memory when the phase is due'
            )
        self._take(part, 1, first_leaf(part).device)
        # not += 1: after a resume it also counts batches of the checkpoint, which may have been dropped since
        self.n_since_phase = self.n_filled

    def end_phase(self) -> None:
        """Called after an auxiliary phase: removes all rows; the block stays allocated."""
        self.n_row = 0
        self.n_filled = 0
        self.n_since_phase = 0

    def columns(self) -> dict[str, Any]:
        """The stored rows, [M] each, as views of the block; valid until the next `append`."""
        if self.n_row:
            return map_tensors(lambda x: x[: self.n_row], self._block)
        return {}

    def _take(self, part: Columns, n_filled: int, device: torch.device) -> None:
        """Stores rows that count as n_filled batches; a new block also has room for the batches that are to come."""
        misfits = self._misfits(part)
        if misfits:
            raise UserError(
                f'samples have other columns than the auxiliary memory ({misfits}); give samples of one form in '
                '`_get_train_sample`'
            )
        n = len(part['return_'])
        n_left = self._n_part - self.n_filled - n_filled
        n_row = self.n_row + n + n_left * -(-n // max(n_filled, 1))
        if not self._block or n_row > len(self._block['return_']) or part.keys() - self._block.keys():
            kept = self.columns()
            like = {**kept, **part}  # the columns of the new block
            self._block = {}
            self._block = map_tensors(lambda x: self._allocate((n_row, *x.shape[1:]), x.dtype, device), like)
            if kept:
                self._write(kept, 0)
        self._write(part, self.n_row)
        self.n_row += n
        self.n_filled += n_filled

    def _misfits(self, part: Columns) -> str:
        """Lists the columns whose form differs from that of the stored rows; '' if there are none."""
        kept, got = ({path: [x.dtype, *x.shape[1:]] for path, x in leaves(tree)} for tree in (self._block, part))
        paths = sorted(path for path in kept.keys() & got.keys() if kept[path] != got[path])
        return ', '.join(f'{path} {got[path]}, was {kept[path]}' for path in paths)

    def _write(self, rows: Columns, start: int) -> None:
        """Copies rows into the block, from its row `start` on."""
        at = slice(start, start + len(rows['return_']))
        for key, block in self._block.items():
            if key in rows:
                map_tensors(lambda to, x: to[at].copy_(x), block, rows[key])
            else:  # only weights may be missing
                block[at] = 1

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)
