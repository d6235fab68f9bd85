"""Options of PPG's memory: its place (`aux_memory`), the newest batches in a ring (`aux_window`), and its resume."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Columns, first_leaf, map_tensors
from zoo.core.errors import RunError
from zoo.policy.aux_memory import KEPT, AuxMemory
from zoo.policy.options import Owner, UpdateOption

if TYPE_CHECKING:
    from zoo.policy.slots import UpdateSlots

logger = logging.getLogger(__name__)


class ChosenMemory(UpdateOption):
    """Keeps the batches for the auxiliary phase in another place (`aux_memory`), or the newest ones (`aux_window`)."""

    key = 'policy.learn.aux_memory'

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        learn = policy.cfg.learn
        window = learn['aux_window']
        self._memory = make_memory(window or learn['aux_freq'], learn['aux_memory'], is_ring=window is not None)
        update.memory.fill(self, self._memory)

    def state_dict(self) -> dict[str, Any]:
        return self._memory.ring_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._memory.load_ring_state(state)


class ResumableMemory(AuxMemory):
    """Memory in a chosen place, which takes the rows of a checkpoint.

    Args: place: 'device': that of the batches; 'cpu', or 'disk'.
    Attributes: saved_ring: number of batches in the checkpoint's ring, and the index of the oldest; 0, 0 if it has none.
    """

    def __init__(self, n_part: int, place: str = 'device') -> None:
        super().__init__(n_part)
        self._place = place
        self.saved_ring = (0, 0)
        self._is_loaded = False  # the rows come from a checkpoint, and nothing was appended since

    def ring_state(self) -> dict[str, Any]:
        """Returns what a resume needs in addition to the rows: of a ring, the number of its batches and the oldest one."""
        return {}

    def load_ring_state(self, state: Mapping[str, Any]) -> None:
        """Keeps the `ring_state` of a checkpoint for `resumed_memory`, which gets the rows later."""
        self.saved_ring = (state.get('aux_filled', 0), state.get('aux_oldest', 0))

    def append(self, batch: Columns) -> None:
        """Stores a copy of a batch, see `AuxMemory`. Rows of a checkpoint that have another form are dropped, with a warning."""
        if self._is_loaded and (misfits := self._misfits(batch)):
            logger.warning(
                'samples now have other columns (%s) than those of the checkpoint: the auxiliary memory begins empty, '
                'and the next auxiliary phase comes %d policy phases later',
                misfits,
                self.n_filled,
            )
            self._reset()
        self._is_loaded = False
        self._store(batch)

    def _store(self, batch: Columns) -> None:
        super().append(batch)

    def load_state_dict(self, state: dict[str, Any], n_filled: int, device: torch.device) -> None:
        """Copies the `columns` of a memory in, which count as `n_filled` batches; {} leaves the memory empty."""
        self._reset()
        if state:
            self._take(state, n_filled, device)
        self._is_loaded = bool(state)

    def _reset(self) -> None:
        """Removes all rows and the block, so that rows of another form may follow."""
        self._block = {}
        self.n_row = 0
        self.n_filled = 0

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        if self._place == 'disk':
            return on_disk(shape, dtype)
        if self._place == 'cpu':
            device = torch.device('cpu')
        return super()._allocate(shape, dtype, device)


class RingMemory(ResumableMemory):
    """Memory of the newest `n_part` batches: once it is full, each batch replaces the oldest one; a phase removes none.

    Attributes: oldest: in a full ring, the batch that the next one replaces. n_since_phase also counts batches that it dropped.
    """

    def __init__(self, n_part: int, place: str = 'device') -> None:
        super().__init__(n_part, place)
        self.oldest = 0

    def ring_state(self) -> dict[str, Any]:
        return {'aux_filled': self.n_filled, 'aux_oldest': self.oldest}

    def _store(self, batch: Columns) -> None:
        part = {key: x for key, x in batch.items() if key in KEPT}
        n = len(part['return_'])
        is_full = self.n_filled >= self._n_part
        if is_full and (n * self.n_filled != self.n_row or part.keys() - self._block.keys()):
            self._reset()  # all batches of a ring have the same size
            is_full = False
        if is_full and not self._misfits(part):
            self._write(part, self.oldest * n)
            self.oldest = (self.oldest + 1) % self._n_part
        else:
            self._take(part, 1, first_leaf(part).device)
        self.n_since_phase += 1

    def end_phase(self) -> None:
        self.n_since_phase = 0

    def _reset(self) -> None:
        super()._reset()
        self.oldest = 0

    def load_state_dict(self, state: dict[str, Any], n_filled: int, device: torch.device, oldest: int = 0) -> None:
        """Copies the `columns` of a memory in, which count as `n_filled` batches.

        A ring of another size takes the newest batches that fit. If not all fit and they have several sizes, they
        cannot be separated, and the ring begins empty, with a warning.
        Args: oldest: index of the oldest batch in the state.
        """
        if state and n_filled != self._n_part:
            state, n_filled, oldest = self._newest(state, n_filled, oldest)
        super().load_state_dict(state, n_filled, device)
        if state:
            self.oldest = oldest % self._n_part
        else:
            self.oldest = 0

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
        n_row = n // n_filled
        n_kept = min(n_filled, self._n_part)
        start = oldest % n_filled * n_row
        if start:
            in_order = map_tensors(lambda x: torch.cat((x[start:], x[:start])), state)
        else:
            in_order = state
        return map_tensors(lambda x: x[(n_filled - n_kept) * n_row :], in_order), n_kept, 0


def resumed_memory(memory: AuxMemory, state: dict[str, Any], n_part: int, device: torch.device) -> ResumableMemory:
    """Returns a memory with the rows of a checkpoint, `state`; `memory.n_since_phase` was already set from it.

    Args: n_part: aux_freq of now, maybe less than then.
    """
    if not isinstance(memory, ResumableMemory):
        memory, plain = make_memory(n_part, 'device', is_ring=False), memory
        memory.n_since_phase = plain.n_since_phase
    if memory.n_since_phase and not state:
        logger.warning(
            'the checkpoint has no auxiliary memory: what was kept of %d policy phases is lost, and the '
            'next auxiliary phase comes as many later',
            memory.n_since_phase,
        )
        memory.n_since_phase = 0
    memory.n_since_phase = min(memory.n_since_phase, n_part - 1)
    if isinstance(memory, RingMemory):
        n_filled, oldest = memory.saved_ring
        memory.load_state_dict(state, n_filled or memory.n_since_phase, device, oldest)
        return memory
    if state and not memory.n_since_phase:  # with an aux_freq of 1 each phase starts from an empty memory
        logger.warning('policy.learn.aux_freq is 1: the auxiliary memory of the checkpoint is not used')
        state = {}
    memory.load_state_dict(state, memory.n_since_phase, device)
    return memory


def make_memory(n_part: int, where: str, is_ring: bool) -> ResumableMemory:
    """A memory for n_part batches in a place. Args: where: 'device', 'cpu' or 'disk'; is_ring: whether it is a `RingMemory`."""
    if is_ring:
        return RingMemory(n_part, where)
    return ResumableMemory(n_part, where)


def on_disk(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor in an unnamed file in the folder for temporary files (TMPDIR), which is deleted when the process ends.

    Raises: RunError if there is no room for it; its space is reserved at once.
    """
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
