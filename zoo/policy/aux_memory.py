"""What phasic policy gradient keeps between two auxiliary phases: observations and returns, nothing else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from zoo.core.errors import RunError

MemoryLocation = Literal['device', 'cpu', 'disk']


class AuxMemory:
    """One block for `n_part` batches, allocated with the first and refilled for each phase.

    Observations keep their dtype (bytes stay bytes), so the block is as large as they are, and 4 bytes a row more (8
    with weights). Only a resume with other rollouts than before makes it grow between two phases.
    Args:
      where: 'device' (that of the batches), 'cpu', or 'disk': a file in the folder for temporary files (TMPDIR), which
        has no name and is gone with the process; its space is reserved at once.
    """

    def __init__(self, n_part: int, where: MemoryLocation) -> None:
        self._n_part, self._where = n_part, where
        self._block: dict[str, Tensor] = {}
        self._n, self._n_filled = 0, 0  # rows, and batches

    def __len__(self) -> int:
        """Rows kept."""
        return self._n

    @property
    def device(self) -> torch.device:
        """Where the rows lie; there is one once rows are kept."""
        return next(iter(self._block.values())).device

    def append(self, batch: Mapping[str, Tensor]) -> None:
        """Copies obs, return_ and, where there is one, weight of a batch [N] in.

        Raises: RunError if a disk has no room for the block, with the first batch; RuntimeError if all batches are in.
        """
        if self._n_filled >= self._n_part:
            raise RuntimeError(
                f'the auxiliary memory has its {self._n_part} batches already; call learn_aux() after '
                'each learn_mode.forward(), it empties the memory when the phase is due'
            )
        part: dict[str, Tensor] = {key: batch[key] for key in ('obs', 'return_', 'weight') if key in batch.keys()}
        self._take(part, 1, part['obs'].device)

    def columns(self) -> dict[str, Tensor]:
        """The rows kept, [M] each, as views where they lie; valid until the next `append`."""
        return {key: x[: self._n] for key, x in self._block.items()} if self._n else {}

    def clear(self) -> None:
        """Forgets all rows; the block stays."""
        self._n, self._n_filled = 0, 0

    def state_dict(self) -> dict[str, Any]:
        """The rows kept (views, valid until the next `append`)."""
        return self.columns()

    def load_state_dict(self, state: dict[str, Any], n_filled: int, device: torch.device) -> None:
        """Copies a `state_dict` in, to count as `n_filled` batches; an empty one leaves the memory empty."""
        self._block = {}
        self.clear()
        if state:
            self._take(state, n_filled, device)

    def _take(self, part: Mapping[str, Tensor], n_filled: int, device: torch.device) -> None:
        """Copies rows in that count as n_filled batches, with room for as many more as batches are to come."""
        n, n_left = len(part['return_']), self._n_part - self._n_filled - n_filled
        n_row = self._n + n + n_left * -(-n // max(n_filled, 1))
        if not self._block or n_row > len(self._block['return_']) or part.keys() - self._block.keys():
            self._make_room(part, n_row, device)
        for key, block in self._block.items():
            block[self._n : self._n + n] = part.get(key, 1)  # only weights may be missing
        self._n += n
        self._n_filled += n_filled

    def _make_room(self, part: Mapping[str, Tensor], n_row: int, device: torch.device) -> None:
        """A block of n_row rows for what is kept and what is like `part`."""
        kept = self.state_dict()
        self._block = {}
        block = {key: self._allocate((n_row, *x.shape[1:]), x.dtype, device) for key, x in {**kept, **part}.items()}
        for key, x in block.items():
            x[: self._n] = kept.get(key, 1)
        self._block = block

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
