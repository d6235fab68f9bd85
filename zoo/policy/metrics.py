"""How well the critic predicted the returns of a batch."""

from __future__ import annotations

from torch import Tensor

from zoo.core.data import Columns


def explained_variance(batch: Columns) -> Tensor:
    """1 - Var(return - value) / Var(return): 1 is a perfect critic, 0 as good as a constant."""
    return_, value, weight = batch['return_'], batch['value'], batch.get('weight', None)
    valid = None if weight is None else weight > 0
    return 1 - _variance(return_ - value, valid) / _variance(return_, valid).clamp(min=1e-12)


def _variance(x: Tensor, valid: Tensor | None) -> Tensor:
    """Of the valid rows; picking them out would make the host wait for the device."""
    if valid is None:
        return x.var(correction=0)
    mean = x.where(valid, 0.0).sum() / valid.sum()
    return (x - mean).square().where(valid, 0.0).sum() / valid.sum()
