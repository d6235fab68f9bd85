"""The storage of replay buffers: the newest samples, in one block that is written round and round."""

from __future__ import annotations

import logging
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from zoo.buffer.base import BufferConfig
from zoo.core.data import Columns, leaves, map_tensors
from zoo.core.errors import UserError
from zoo.core.transfer import send

logger = logging.getLogger(__name__)


class RingConfig(BufferConfig):
    """Section `buffer` of buffers that keep samples."""

    size: int = Field(8192, ge=1, description='samples kept, the newest ones; at least a rollout and a draw')
    device: Literal['auto', 'cpu'] = Field(
        'auto', description="where samples are kept: 'auto' (where the policy computes) or 'cpu'"
    )


class Ring:
    """The newest `size` samples, each with the number of the push that brought it.

    The block is allocated at the first push, with the keys, dtypes and trailing shapes found there, and keeps its place
    in memory; a push copies into it and a gather copies out of it. What is known of the rows (push numbers, and what
    the users of a ring count) is kept on the CPU, so that choosing rows waits for no device.
    """

    def __init__(self, size: int, device: Literal['auto', 'cpu'] = 'auto') -> None:
        self.size, self.n_row, self.n_push = size, 0, 0
        self._device, self._cursor = device, 0  # the cursor is the next row to write
        self._data: dict[str, Any] | None = None
        self._form: dict[str, str] = {}
        self._is_loaded = False  # what it holds is of a checkpoint, and nothing was pushed since
        self._batch_device = torch.device('cpu')
        self._push_number = torch.zeros(size, dtype=torch.int64)

    @torch.no_grad()
    def push(self, samples: Columns) -> list[slice]:
        """Copies samples [N] over the oldest rows, the last `size` of them if N is more; returns the rows written.

        Samples of a checkpoint that have other columns are dropped, with a warning.
        Raises: UserError if keys, dtypes or trailing shapes are not those of the first push.
        """
        data = self._fit(samples)
        self.n_push += 1
        samples = map_tensors(lambda x: x[-self.size :], samples)
        n, start = _n_row(samples), self._cursor
        n_head = min(n, self.size - start)
        parts = [(slice(start, start + n_head), slice(0, n_head)), (slice(0, n - n_head), slice(n_head, n))]
        parts = [(rows, part) for rows, part in parts if rows.stop > rows.start]
        for rows, part in parts:
            map_tensors(lambda block, x: block[rows].copy_(x[part]), data, samples)  # noqa: B023
            self._push_number[rows] = self.n_push
        self._cursor = (start + n) % self.size
        self.n_row = min(self.n_row + n, self.size)
        return [rows for rows, _ in parts]

    def staleness(self, rows: Tensor | slice) -> Tensor:
        """Pushes that came after the ones of these rows, int64; the newest samples have 0."""
        return self.n_push - self._push_number[rows]

    def age(self, rows: slice) -> Tensor:
        """Samples that came after those of these rows, int64; the newest sample has 0."""
        return (self._cursor - 1 - torch.arange(self.size)[rows]) % self.size

    @torch.no_grad()
    def gather(self, rows: Tensor) -> dict[str, Any]:
        """A copy of rows [n], with 'staleness' [n] f32 in pushes, on the device that samples come from."""
        assert self._data is not None, 'there are no rows before the first push'
        here, there = _device_of(self._data), self._batch_device
        index = send(rows, here)
        batch = map_tensors(lambda x: x[index].to(there), self._data)
        return {**batch, 'staleness': send(self.staleness(rows).to(torch.float32), there)}

    def state_dict(self) -> dict[str, Any]:
        """The filled part of the block as views, and where it is written next."""
        data = {} if self._data is None else map_tensors(lambda x: x[: self.n_row], self._data)
        return {
            'data': data,
            'push_number': self._push_number[: self.n_row],
            'n_push': self.n_push,
            'cursor': self._cursor,
            'size': self.size,
        }

    def load_state_dict(self, state: dict[str, Any]) -> Tensor:
        """Copies a `state_dict` in; returns which of its rows [n] were taken, in the order in which they lie now.

        From a ring of the same size every row keeps its place; from another, the newest that fit are laid out again.
        Raises: ValueError if no ring gave this state.
        """
        _check_state(state)
        n, cursor = len(state['push_number']), state['cursor']
        rows = torch.arange(n)
        if state['size'] != self.size:
            oldest = cursor if n == state['size'] else 0
            rows = ((rows + oldest) % max(n, 1))[-self.size :]
            cursor = len(rows) % self.size
        self.n_row, self.n_push, self._cursor = len(rows), state['n_push'], cursor
        self._push_number[: len(rows)] = state['push_number'][rows]
        self._data, self._is_loaded = None, bool(state['data'])
        if state['data']:
            self._allocate(state['data'], torch.device('cpu'))  # the first push brings it to the samples' device
            map_tensors(lambda block, x: block[: len(rows)].copy_(x[rows]), self._data, state['data'])
        return rows

    def _fit(self, samples: Columns) -> dict[str, Any]:
        """The block for samples like these."""
        sizes = {len(x) if x.dim() else -1 for _, x in leaves(samples)}
        if len(sizes) != 1 or -1 in sizes:
            raise UserError(
                f'samples have columns of {sorted(sizes)} rows but a buffer takes one row for each sample; flatten '
                'time and envs in `_get_train_sample`'
            )
        form = _form_of(samples)
        cpu = torch.device('cpu')
        self._batch_device = _device_of(samples)
        place = self._batch_device if self._device == 'auto' else cpu
        if self._is_loaded and form != self._form:
            logger.warning(
                'samples now have %s where those of the checkpoint have %s: the replay buffer begins empty',
                _misfits(form, self._form),
                _misfits(self._form, form),
            )
            self._data, self.n_row, self._cursor = None, 0, 0
        self._is_loaded = False
        if self._data is None:
            if 'staleness' in form:
                raise UserError(
                    "samples have the key 'staleness', which replay buffers add to their batches; rename "
                    'it in `_get_train_sample`'
                )
            self._allocate(samples, place)
        elif form != self._form:
            raise UserError(
                f'samples have {_misfits(form, self._form)} but the buffer keeps '
                f'{_misfits(self._form, form)}; give samples of one form in `_get_train_sample`'
            )
        elif _device_of(self._data) != place:
            self._data = map_tensors(lambda x: x.to(place), self._data)
        assert self._data is not None
        return self._data

    def _allocate(self, like: Columns, device: torch.device) -> None:
        self._form = _form_of(like)
        self._data = map_tensors(lambda x: torch.empty((self.size, *x.shape[1:]), dtype=x.dtype, device=device), like)


def _check_state(state: dict[str, Any]) -> None:
    counts = n_push, cursor, size = [state[name] for name in ('n_push', 'cursor', 'size')]
    n_row = len(state['push_number'])
    lengths = {len(x) for _, x in leaves(state['data'])}
    if any(type(count) is not int for count in counts) or not (n_push >= 0 <= cursor <= size >= n_row):
        raise ValueError(f'a ring of {n_row} rows has n_push {n_push!r}, cursor {cursor!r} and size {size!r}')
    if lengths != ({n_row} if n_row else set()):
        raise ValueError(f'a ring of {n_row} rows has columns of {sorted(lengths)} rows')


def _n_row(samples: Columns) -> int:
    return len(next(x for _, x in leaves(samples)))


def _device_of(samples: Columns) -> torch.device:
    return next(x.device for _, x in leaves(samples))


def _form_of(samples: Columns) -> dict[str, str]:
    """dtype and shape of one sample, by path."""
    return {path: f'{str(x.dtype).removeprefix("torch.")} {list(x.shape[1:])}' for path, x in leaves(samples)}


def _misfits(form: dict[str, str], other: dict[str, str]) -> str:
    """The entries of a form that the other has not or has otherwise."""
    return ', '.join(
        f'{key} {form[key]}' if key in form else f'no {key}'
        for key in sorted(form.keys() | other.keys())
        if form.get(key) != other.get(key)
    )
