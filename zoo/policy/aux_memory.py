"""Memory of phasic policy gradient between two auxiliary phases: observations, returns and recurrent states."""

from __future__ import annotations

import logging
import os
import tempfile
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from zoo.core.data import STATE_COLUMNS, Columns, first_leaf, leaves, map_tensors
from zoo.core.errors import RunError, UserError

logger = logging.getLogger(__name__)

MemoryLocation = Literal['device', 'cpu', 'disk']
KEPT = frozenset(('obs', 'return_', 'weight')) | STATE_COLUMNS


class AuxMemory:
    """Block for `n_part` batches, allocated at the first one; each auxiliary phase empties it, unless it is a ring.

    Observations keep their dtype (bytes stay bytes): the block has their size, plus 4 bytes per row (8 with weights).
    Between two phases it grows only after a resume with other rollouts than before.
    Args:
      where: 'device' (that of the batches), 'cpu', or 'disk': an unnamed file in the folder for temporary files (TMPDIR),
        which is deleted when the process ends; its space is reserved at once.
      is_ring: once the memory is full, each batch replaces the oldest one.
    """

    def __init__(self, n_part: int, where: MemoryLocation, is_ring: bool = False) -> None:
        self._n_part, self._where, self.is_ring = n_part, where, is_ring
        self.oldest = 0  # in a full ring, the batch that the next one replaces
        self._block: dict[str, Any] = {}
        self.n_row, self.n_filled = 0, 0  # rows (or sequences) kept, and batches
        self.n_since_phase = 0  # batches since the last auxiliary phase
        self._is_loaded = False  # the rows come from a checkpoint, and nothing was appended since

    @property
    def device(self) -> torch.device:
        """Device of the rows; defined once rows were stored."""
        return first_leaf(self._block).device

    def append(self, batch: Columns) -> None:
        """Stores a copy of a batch [N]: obs, return_ and, if they are there, weight and the columns of sequences.

        Rows from a checkpoint that have another form are dropped, with a warning.
        Raises: RunError at the first batch if the disk has no room for the block; RuntimeError if the memory is full.
        """
        if self.n_filled >= self._n_part and not self.is_ring:
            raise RuntimeError(
                f'the auxiliary memory has its {self._n_part} batches already; call learn_aux() after '
                'each learn_mode.forward(), it empties the memory when the phase is due'
            )
        part = {key: x for key, x in batch.items() if key in KEPT}
        if self._is_loaded and (misfits := self._misfits(part)):
            logger.warning(
                'samples now have other columns (%s) than those of the checkpoint: the auxiliary memory begins empty, '
                'and the next auxiliary phase comes %d policy phases later',
                misfits,
                self.n_filled,
            )
            self._reset()
        self._is_loaded = False
        n, is_full = len(part['return_']), self.n_filled >= self._n_part
        if is_full and (n * self.n_filled != self.n_row or part.keys() - self._block.keys()):
            self._reset()  # all batches of a ring have the same size
            is_full = False
        if misfits := self._misfits(part):
            raise UserError(
                f'samples have other columns than the auxiliary memory ({misfits}); give samples of one form in '
                '`_get_train_sample`'
            )
        if is_full:
            self._write(part, self.oldest * n)
            self.oldest = (self.oldest + 1) % self._n_part
        else:
            self._take(part, 1, first_leaf(part).device)
        # a ring also counts batches that it has dropped; otherwise batches dropped for their form do not count
        self.n_since_phase = self.n_since_phase + 1 if self.is_ring else self.n_filled

    def end_phase(self) -> None:
        """Called after an auxiliary phase: removes all rows, unless the memory is a ring."""
        self.n_since_phase = 0
        if not self.is_ring:
            self.clear()

    def columns(self) -> dict[str, Any]:
        """The stored rows, [M] each, as views of the block; valid until the next `append`."""
        return map_tensors(lambda x: x[: self.n_row], self._block) if self.n_row else {}

    state_dict = columns

    def clear(self) -> None:
        """Removes all rows; the block stays allocated."""
        self.n_row, self.n_filled, self.oldest = 0, 0, 0

    def _reset(self) -> None:
        """Removes all rows and the block, so that rows of another form may follow."""
        self._block = {}
        self.clear()

    def load_state_dict(self, state: dict[str, Any], n_filled: int, device: torch.device, oldest: int = 0) -> None:
        """Copies a `state_dict` in, which counts as `n_filled` batches; an empty one leaves the memory empty.

        A ring of another size takes the newest batches that fit. If not all fit and they have several sizes, they
        cannot be separated, and the ring begins empty, with a warning.
        Args: oldest: index of the oldest batch in the state of a ring.
        """
        self._reset()
        if state and self.is_ring and n_filled != self._n_part:
            state, n_filled, oldest = self._newest(state, n_filled, oldest)
        if state:
            self._take(state, n_filled, device)
            self.oldest = oldest % self._n_part
        self._is_loaded = bool(state)

    def _newest(self, state: dict[str, Any], n_filled: int, oldest: int) -> tuple[dict[str, Any], int, int]:
        """Returns the newest batches from a ring of another size: their state in order, number, and the index of the oldest."""
        n = len(state['return_'])
        if n_filled < 1 or n % n_filled:
            if n_filled <= self._n_part:
                return state, n_filled, 0
            logger.warning(
                'policy.learn.aux_window is %d but the checkpoint has %d rollouts or draws of several sizes: the auxiliary '
                'memory begins empty',
                self._n_part,
                n_filled,
            )
            return {}, 0, 0
        n_row, n_kept = n // n_filled, min(n_filled, self._n_part)
        start = oldest % n_filled * n_row
        in_order = map_tensors(lambda x: torch.cat((x[start:], x[:start])), state) if start else state
        return map_tensors(lambda x: x[(n_filled - n_kept) * n_row :], in_order), n_kept, 0

    def _take(self, part: Columns, n_filled: int, device: torch.device) -> None:
        """Stores rows that count as n_filled batches; a new block also has room for the batches that are to come."""
        n, n_left = len(part['return_']), self._n_part - self.n_filled - n_filled
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
        if self._where != 'disk':
            return torch.empty(shape, dtype=dtype, device='cpu' if self._where == 'cpu' else device)
        numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
        n_byte = int(np.prod(shape)) * numpy_dtype.itemsize
        try:
            with tempfile.TemporaryFile() as file:
                if hasattr(os, 'posix_fallocate'):  # else a full disk shows as a bus error in the middle of a copy
                    os.posix_fallocate(file.fileno(), 0, n_byte)
                return torch.from_numpy(np.memmap(file, numpy_dtype, 'r+', shape=shape))
        except OSError as error:
            raise RunError(
                f"policy.learn.aux_memory is 'disk' but {tempfile.gettempdir()} has no room for "
                f'{n_byte / 1e6:.1f} MB ({error.strerror or error}); set TMPDIR to a folder with more, or '
                "use aux_memory 'cpu'"
            ) from error
