"""Observation and action spaces as plain data, so that models and checkpoints need no environment library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.core.errors import UserError


@dataclass(frozen=True)
class Discrete:
    """The integers start .. start + n - 1. Inside zoo an action is its index, 0 .. n - 1."""

    n: int
    start: int = 0

    def to_json(self) -> dict[str, Any]:
        return {'kind': 'discrete', 'n': self.n, 'start': self.start}


@dataclass(frozen=True, eq=False)
class Box:
    """Arrays of `shape` between `low` and `high` (arrays of that shape; infinite where unbounded)."""

    low: np.ndarray
    high: np.ndarray
    dtype: str = 'float32'

    @property
    def shape(self) -> tuple[int, ...]:
        return self.low.shape

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Box)
            and self.dtype == other.dtype
            and self.shape == other.shape
            and bool(np.all(self.low == other.low))
            and bool(np.all(self.high == other.high))
        )

    def to_json(self) -> dict[str, Any]:
        # JSON has no infinity: bounds are written as strings that float() reads back exactly
        return {
            'kind': 'box',
            'shape': list(self.shape),
            'dtype': self.dtype,
            'low': self._bound_to_json(self.low),
            'high': self._bound_to_json(self.high),
        }

    def _bound_to_json(self, bound: np.ndarray) -> list[str]:
        values = bound.ravel()
        if len(self.shape) > 1 and len(values) and np.all(values == values[0]):
            values = values[:1]  # one for all: an Atari image has 28,224 of them
        return [repr(float(x)) for x in values]


Space = Discrete | Box


def space_from_json(spec: dict[str, Any]) -> Space:
    """Inverse of `to_json`."""
    if spec['kind'] == 'discrete':
        return Discrete(spec['n'], spec['start'])
    shape = spec['shape']
    bounds = [np.array([float(x) for x in spec[key]]) for key in ('low', 'high')]
    low, high = (b.reshape(shape) if b.size == np.prod(shape) else np.full(shape, b[0]) for b in bounds)
    return Box(low, high, spec['dtype'])


def is_image(space: Space) -> bool:
    """Whether observations are images: a Box of three dimensions, channels first or last."""
    return isinstance(space, Box) and len(space.shape) == 3


def obs_dtype(space: Space) -> torch.dtype:
    """How zoo holds observations: an index as int64, an image of bytes as uint8, all else as f32."""
    if isinstance(space, Discrete):
        return torch.int64
    return torch.uint8 if is_image(space) and space.dtype == 'uint8' else torch.float32


def obs_to_tensor(space: Space, obs: Any, device: torch.device | str = 'cpu') -> Tensor:
    """Raw observations of an env, one or a batch -> what a model takes: [..., *O] or [...], of dtype `obs_dtype`.

    Raises: UserError if they are not of the space: shape, type, range, or not finite.
    """
    array = np.asarray(obs)
    if isinstance(space, Discrete):
        if array.dtype.kind not in 'iu' or array.ndim > 1:
            raise UserError(
                f'the observation {obs!r} is no integer or batch of them, as {space} wants; pass what the env gave'
            )
        if np.any(array < space.start) or np.any(array >= space.start + space.n):
            raise UserError(
                f'the observation {obs!r} lies outside {space.start} .. {space.start + space.n - 1}; '
                'pass what the env gave'
            )
        return torch.as_tensor(array.astype(np.int64) - space.start, device=device)
    n_dim = len(space.shape)
    if array.ndim not in (n_dim, n_dim + 1) or array.shape[array.ndim - n_dim :] != space.shape:
        raise UserError(f'the observation has shape {array.shape} but must have {space.shape}, or be a batch of such')
    if obs_dtype(space) == torch.uint8:
        if array.dtype.kind not in 'iu' or np.any((array < 0) | (array > 255)):
            raise UserError(
                f'the observation is an image of {array.dtype} but must be one of bytes, integers from 0 '
                'to 255; pass what the env gave'
            )
        return torch.as_tensor(array.astype(np.uint8), device=device)
    array = np.array(array, dtype=np.float32)  # a copy: any strides, also of read-only arrays
    if not np.isfinite(array).all():
        raise UserError(f'the observation {obs!r} is not finite; a policy can only act on numbers')
    return torch.as_tensor(array, device=device)
