# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Device functions that read and write tiles of rows; in memory a row begins at element `start`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(ptr, start, is_row, n_column, COLUMNS: tl.constexpr, FILL: tl.constexpr):
    """[ROWS, COLUMNS] f32; cells beyond the last column are FILL, those of no row 0.

    n_column: one number, or one for each row, [ROWS, 1].
    """
    column = tl.arange(0, COLUMNS)[None, :]
    x = tl.load(ptr + start[:, None] + column, mask=is_row[:, None] & (column < n_column), other=FILL).to(tl.float32)
    return tl.where(is_row[:, None], x, 0.0)


@triton.jit
def store_rows(ptr, start, is_row, n_column, x, COLUMNS: tl.constexpr):
    """Writes [ROWS, COLUMNS] without its padding; n_column as in `load_rows`."""
    column = tl.arange(0, COLUMNS)[None, :]
    tl.store(ptr + start[:, None] + column, x.to(ptr.dtype.element_ty), mask=is_row[:, None] & (column < n_column))


@triton.jit
def load_weight(ptr, row, is_row, HAS_WEIGHT: tl.constexpr):
    """[ROWS] f32: the weights, 1 where there are none; 0 beyond the last row."""
    if HAS_WEIGHT:
        weight = tl.load(ptr + row, mask=is_row, other=0.0).to(tl.float32)
    else:
        weight = is_row.to(tl.float32)
    return weight
