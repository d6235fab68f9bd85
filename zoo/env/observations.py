"""Reads the observations of vector envs leaf by leaf: conversion to zoo's dtypes, and checks of shapes and values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from zoo.core.action_map import Actions
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, Leaf, MultiBinary, MultiDiscrete, Space, obs_dtype
from zoo.env.errors import BrokenContractError, EnvContractError, Place, bad_obs, not_finite_error, of_entry
from zoo.env.masks import as_bits


class LeafReader(ABC):
    """Reads the observations [B, *O] of one leaf."""

    def __init__(self, space: Leaf, n_env: int, path: str, place: Place) -> None:
        self._shape = n_env, *space.shape
        self._path, self._place = path, place

    @abstractmethod
    def read(self, raw: ArrayLike) -> np.ndarray:
        """What the envs returned, or what some of them did, in zoo's dtype; without a copy where it has it already."""

    @abstractmethod
    def check(self, obs: np.ndarray, sent: Actions | None = None, index: np.ndarray | None = None) -> None:
        """Looks at the values. sent: the actions that led to them; index: which envs they are of, None: all.

        Raises: EnvError that names the first env whose values cannot be.
        """

    def misfit(self, obs: np.ndarray) -> tuple[str, str] | None:
        """(got, wanted) if the observations of all envs have a wrong shape."""
        if obs.shape == self._shape:
            return None
        return f'observations{of_entry(self._path)} of shape {obs.shape}', str(self._shape)

    def write(self, row: np.ndarray, obs: np.ndarray) -> None:
        """Copies the observations of all envs to a row of a block."""
        row[...] = obs

    def take(self, row: np.ndarray, index: np.ndarray) -> np.ndarray:
        """A copy of the observations of some envs."""
        return row[index]

    def final(self, raw: np.ndarray, index: np.ndarray) -> np.ndarray:
        """The last observations of some envs: raw is one array for all, or an array of objects (gymnasium)."""
        rows = raw[index]
        return self.stack(list(rows), index) if rows.dtype == object else self.read(rows)

    def stack(self, rows: Sequence[Any], index: np.ndarray) -> np.ndarray:
        """The same of one array for each of some envs, which nothing has looked at yet."""
        wanted = self._raw_shape
        for i, row in zip(index, rows, strict=True):
            if row is None or np.shape(row) != wanted:
                raise self._place.error(int(i), *bad_obs(row, wanted, self._path))
        return self.read(np.stack(rows))

    @property
    def _raw_shape(self) -> tuple[int, ...]:
        """Of one env, as the env gives it."""
        return self._shape[1:]

    def _at(self, row: int, index: np.ndarray | None) -> int:
        return row if index is None else int(index[row])


class IndexReader(LeafReader):
    """Discrete and MultiDiscrete: integers, as indices from 0."""

    def __init__(self, space: Discrete | MultiDiscrete, n_env: int, path: str, place: Place) -> None:
        super().__init__(space, n_env, path, place)
        self._n: int | np.ndarray = space.n if isinstance(space, Discrete) else np.reshape(space.nvec, space.shape)
        self._start: int | np.ndarray = (
            space.start if isinstance(space, Discrete) else np.reshape(space.start, space.shape)
        )

    def read(self, raw: ArrayLike) -> np.ndarray:
        return np.asarray(raw).astype(np.int64) - self._start

    def check(self, obs: np.ndarray, sent: Actions | None = None, index: np.ndarray | None = None) -> None:
        if obs.min() < 0 or np.count_nonzero(obs >= self._n):
            row, *at = map(int, np.argwhere((obs < 0) | (obs >= self._n))[0])
            start, n = (int(np.asarray(x)[tuple(at)]) for x in (self._start, self._n))
            got = f'is {obs[row] + start}' if not at else f'has {obs[row][tuple(at)] + start} at {at}'
            raise EnvContractError(
                f'{self._place.of(self._at(row, index))}: observation{of_entry(self._path)} {got}, outside of the '
                f'space {start} .. {start + n - 1}; make the space as large as what the env returns.'
            )


class BinaryReader(LeafReader):
    """MultiBinary: zeros and ones, as bools."""

    def read(self, raw: ArrayLike) -> np.ndarray:
        array = np.asarray(raw)
        try:
            return as_bits(array)
        except BrokenContractError:
            rows = (array.astype(np.bool_) != array).reshape(len(array), -1).any(1)
            index = int(np.flatnonzero(rows)[0]) if len(array) == self._shape[0] else None
            got = f'the observation{of_entry(self._path)} has {array[array.astype(np.bool_) != array].flat[0]}'
            raise self._place.error(index, got, 'zeros and ones as in observation_space', 'correct it') from None

    def check(self, obs: np.ndarray, sent: Actions | None = None, index: np.ndarray | None = None) -> None:
        pass


class MaskReader(BinaryReader):
    """The action mask, whatever the shape of the env's own space: [B, n_mask]."""

    def __init__(self, space: Leaf, n_env: int, path: str, place: Place, raw_shape: tuple[int, ...]) -> None:
        super().__init__(space, n_env, path, place)
        self._one = raw_shape

    def read(self, raw: ArrayLike) -> np.ndarray:
        array = np.asarray(raw)
        return super().read(array.reshape(len(array), -1))

    @property
    def _raw_shape(self) -> tuple[int, ...]:
        return self._one


class ByteReader(LeafReader):
    """Images of bytes; every value is finite."""

    def read(self, raw: ArrayLike) -> np.ndarray:
        array = np.asarray(raw)
        if array.dtype != np.uint8:
            raise self._place.error(
                None,
                f'the observations{of_entry(self._path)} are of {array.dtype}',
                'uint8 as in observation_space',
                'return obs.astype(np.uint8), or correct the space',
            )
        return array

    def check(self, obs: np.ndarray, sent: Actions | None = None, index: np.ndarray | None = None) -> None:
        pass


class FloatReader(LeafReader):
    """Every other Box, as float32."""

    def read(self, raw: ArrayLike) -> np.ndarray:
        return np.asarray(raw, dtype=np.float32)

    def check(self, obs: np.ndarray, sent: Actions | None = None, index: np.ndarray | None = None) -> None:
        if np.count_nonzero(np.isfinite(obs)) != obs.size:
            raise not_finite_error(self._place, f'observation{of_entry(self._path)}', obs, sent, index)


RawParts = dict[Any, Any]  # or a tuple: the observations of the entries of a Dict or Tuple space


class DictReader:
    """Reads the observations of Dict and Tuple spaces as dicts, with the methods of LeafReader."""

    def __init__(self, parts: Mapping[str, Reader], is_tuple: bool, path: str, place: Place) -> None:
        self._parts, self._path, self._place = parts, path, place
        self._keys = [(name, i if is_tuple else name, part) for i, (name, part) in enumerate(parts.items())]

    def read(self, raw: RawParts) -> dict[str, Any]:
        return {name: part.read(raw[key]) for name, key, part in self._keys}

    def check(self, obs: Mapping[str, Any], sent: Actions | None = None, index: np.ndarray | None = None) -> None:
        for name, part in self._parts.items():
            part.check(obs[name], sent, index)

    def misfit(self, obs: Mapping[str, Any]) -> tuple[str, str] | None:
        for name, part in self._parts.items():
            if fault := part.misfit(obs[name]):
                return fault
        return None

    def write(self, row: Mapping[str, Any], obs: Mapping[str, Any]) -> None:
        for name, part in self._parts.items():
            part.write(row[name], obs[name])

    def take(self, row: Mapping[str, Any], index: np.ndarray) -> dict[str, Any]:
        return {name: part.take(row[name], index) for name, part in self._parts.items()}

    def final(self, raw: RawParts | np.ndarray, index: np.ndarray) -> dict[str, Any]:
        if isinstance(raw, np.ndarray):  # of objects, one dict or tuple for each env
            return self.stack(list(raw[index]), index)
        return {name: part.final(raw[key], index) for name, key, part in self._keys}

    def stack(self, rows: Sequence[Any], index: np.ndarray) -> dict[str, Any]:
        return {
            name: part.stack([self._entry(row, key, i) for i, row in zip(index, rows, strict=True)], index)
            for name, key, part in self._keys
        }

    def _entry(self, row: RawParts, key: str | int, index: int) -> Any:
        try:
            return row[key]
        except (LookupError, TypeError) as error:
            got = f'the final observation{of_entry(self._path)} has no entry {key!r}'
            wanted = f'{", ".join(map(repr, self._parts))} as in observation_space'
            raise self._place.error(int(index), got, wanted, 'return what the space says') from error


Reader = LeafReader | DictReader


def obs_reader(space: Space, n_env: int, place: Place, raw_mask_shape: tuple[int, ...] = (), path: str = '') -> Reader:
    """The reader of a space. raw_mask_shape: of the entry 'action_mask' in the env's own space."""
    if isinstance(space, Dict):
        parts: dict[str, Reader] = {}
        for name, each in space.spaces.items():
            inner = f'{path}.{name}' if path else name
            if inner == ACTION_MASK and isinstance(each, MultiBinary):
                parts[name] = MaskReader(each, n_env, inner, place, raw_mask_shape)
            else:
                parts[name] = obs_reader(each, n_env, place, path=inner)
        return DictReader(parts, space.is_tuple, path, place)
    if isinstance(space, Discrete | MultiDiscrete):
        return IndexReader(space, n_env, path, place)
    if isinstance(space, MultiBinary):
        return BinaryReader(space, n_env, path, place)
    assert isinstance(space, Box)
    kind = ByteReader if obs_dtype(space) == torch.uint8 else FloatReader
    return kind(space, n_env, path, place)
