# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Registration of ops, launches of their kernels, and sums over all programs of a launch.

Sums are deterministic without a second launch: every program stores its partial sum, and the program that finishes last
(found by an integer counter) adds these in their order. No float is ever added atomically.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_LIBRARY = torch.library.Library('zoo', 'FRAGMENT')
_TILE = 512  # cells, mostly 4 for each of 128 threads: with more, the per-row numbers that threads share use up the registers
_WARP_PER_SM = 64  # an H100's
_N_SLOT = 256  # streams of a device that get a permanent counter
_slots: dict[torch.device, Tensor] = {}
_counters: dict[tuple[torch.device, int], Tensor] = {}
_bounds: dict[tuple[torch.device, tuple[int, ...]], Tensor] = {}


def custom_op(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a launcher as `torch.ops.zoo.<name>`, so that torch.compile takes it as one opaque op.

    Args: schema: as in `torch.library`; fake: the launcher's outputs without data, for tracing.
    Returns: a decorator; the decorated launcher bypasses the dispatcher unless torch.compile is tracing.
    """
    name = schema.partition('(')[0]

    def register(launch: Callable[..., Any]) -> Callable[..., Any]:
        _LIBRARY.define(schema)
        for key in ('CUDA', 'CPU'):  # CPU: under Triton's interpreter
            _LIBRARY.impl(name, launch, key)
        torch.library.register_fake(f'zoo::{name}', fake, lib=_LIBRARY)
        op = getattr(torch.ops.zoo, name).default

        @wraps(launch)
        def call(*args: Any) -> Any:
            if torch.compiler.is_compiling():
                return op(*args)
            return launch(*args)

        return call

    return register


class Tiling:
    """The division of rows into n_tile tiles of ROWS whole rows, which n_program programs share.

    A row has n_group groups of up to n_column cells each. GROUPS groups of a row are held at once, each padded to COLUMNS
    cells.
    """

    def __init__(self, n_row: int, n_column: int, device: torch.device, n_group: int = 1) -> None:
        columns = triton.next_power_of_2(n_column)
        self.groups = min(triton.next_power_of_2(n_group), max(_TILE // columns, 1))
        rows = max(_TILE // (columns * self.groups), 1)
        self.n_tile = triton.cdiv(n_row, rows)
        # one row of up to _TILE cells is one warp's work: its reductions need no barrier
        n_warp = min(max(rows * self.groups * columns // _TILE, 1 if rows == 1 else 4), 32)
        self.n_program = min(self.n_tile, _WARP_PER_SM // n_warp * _n_sm(device))
        self.constants = {'ROWS': rows, 'COLUMNS': columns, 'num_warps': n_warp}


def flat(x: Tensor) -> Tensor:
    """[...] -> [N], contiguous; a view where possible."""
    return x.reshape(-1).contiguous()


def scalars(x: Tensor) -> list[Tensor]:
    """[n] -> n 0-dim tensors that autograd treats as independent tensors, not as views, which must not be changed."""
    if torch.compiler.is_compiling():  # torch 2.11's compiler gives views, and tensors squeezed in place, no gradient
        return [one.clone() for one in x.unbind()]
    return [one.squeeze_(0) for one in torch.unsafe_chunk(x, x.numel())]


def as_rows(x: Tensor) -> Tensor:
    """[..., C] -> [N, C] with columns of stride 1; rows may have any stride, also 0 (an expanded tensor)."""
    if x.dim() != 2:
        x = x.reshape(-1, x.shape[-1])
    if x.stride(1) == 1 or x.shape[1] == 1:
        return x
    return x.contiguous()


def prepare(device: torch.device, nvec: tuple[int, ...] = ()) -> None:
    """Allocates the permanent tensors, the counters of a device and the bounds of nvec, before any launch.

    A launch by torch.compile may run in a pool of memory that is later freed.
    """
    has_counters = device in _slots
    has_bounds = not nvec or (device, nvec) in _bounds
    if not has_counters:
        _slots[device] = torch.zeros(_N_SLOT, dtype=torch.int32, device=device)
    if not has_bounds:
        _bounds[device, nvec] = _bounds_of(nvec, device)
    if device.type == 'cuda' and not (has_counters and has_bounds):
        torch.cuda.synchronize(device)  # any stream may use them from here on


def bounds(nvec: Sequence[int], device: torch.device) -> Tensor | None:
    """[K + 1] int32: the places in a row where the logits of K choices begin, and where the last ones end; None if K is 0.

    nvec: the number of logits of each choice.
    """
    if not nvec:
        return None
    known_bounds = _bounds.get((device, tuple(nvec)))
    if known_bounds is None:
        return _bounds_of(nvec, device)
    return known_bounds


def counter(device: torch.device) -> Tensor:
    """The int32 counter of `add_programs`, which starts at zero and ends at zero.

    Launches on one stream follow each other and share a counter. A captured graph has its own, since it may be replayed on
    any stream.
    """
    stream = 0
    if device.type == 'cuda':
        if torch.cuda.is_current_stream_capturing():
            return torch.zeros(1, dtype=torch.int32, device=device)
        stream = torch.cuda.current_stream(device).cuda_stream
    slot = _counters.get((device, stream))
    if slot is None:
        n_taken = sum(other == device for other, _ in _counters)
        if device not in _slots or n_taken == _N_SLOT:
            return torch.zeros(1, dtype=torch.int32, device=device)
        slot = _counters[device, stream] = _slots[device][n_taken : n_taken + 1]
    return slot


def _bounds_of(nvec: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor((0, *accumulate(nvec)), dtype=torch.int32, device=device)


@cache
def _n_sm(device: torch.device) -> int:
    if device.type == 'cuda':
        return torch.cuda.get_device_properties(device).multi_processor_count
    return 1


@triton.jit
def add_programs(partial_ptr, counter_ptr, out_ptr, WIDTH: tl.constexpr):
    """out[w] = sum over programs p of partial[p, w]; each has stored its row, and the last to arrive computes the sum."""
    n_program = tl.num_programs(0)
    tl.debug_barrier()  # this program's row is stored before it is counted
    if tl.atomic_add(counter_ptr, 1, sem='acq_rel') == n_program - 1:
        column = tl.arange(0, WIDTH)
        index = tl.arange(0, 128)
        total = tl.zeros((128, WIDTH), partial_ptr.dtype.element_ty)
        for start in range(0, n_program, 128):
            row = start + index
            total += tl.load(
                partial_ptr + row[:, None] * WIDTH + column[None, :],
                mask=(row < n_program)[:, None],
                other=0.0,
                cache_modifier='.cg',
            )  # bypasses the L1 cache, which other programs don't write to
        tl.store(out_ptr + column, tl.sum(total, 0))
        tl.store(counter_ptr, 0)
