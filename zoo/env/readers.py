"""Array readers: convert the observations of a vector env to the dtypes of zoo, and check their shapes and values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from zoo.core.data import Obs
from zoo.core.errors import of_entry
from zoo.core.spaces import ACTION_MASK, Dict, Discrete, Leaf, MultiBinary, MultiDiscrete, Raw, Space, obs_dtype
from zoo.env.errors import EnvContractError, Place
from zoo.env.validation import bad_obs, not_finite_error


class ArrayReader:
    """Reads observations of one leaf as float32, also the last ones of episodes, which envs that reset themselves return separately."""

    def __init__(self, space: Leaf, n_env: int, path: str, place: Place) -> None:
        self._shape = n_env, *space.shape
        self._raw_shape: tuple[int, ...] = space.shape  # of one env, as the env gives it
        self._path = path
        self._place = place

    def read(self, raw: Raw) -> Obs:
        """Converts observations of all or some envs to zoo's dtype; no copy if they have it already."""
        return np.asarray(raw, dtype=np.float32)

    def fit(self, obs: Obs, call: str) -> None:
        """Checks the shape of the observations of all envs, which `call` returned. Raises: EnvContractError."""
        if obs.shape != self._shape:
            got = f'{call} returned observations{of_entry(self._path)} of shape {obs.shape}'
            raise self._place.error(None, got, str(self._shape), 'make them fit its single_observation_space')

    def write(self, row: Obs, obs: Obs) -> None:
        """Copies the observations of all envs to a row of a block."""
        row[...] = obs

    def check(self, obs: Obs, sent: Raw = None, index: np.ndarray | None = None) -> None:
        """Checks the values of observations. Raises: EnvError that names the first env with an invalid value.

        Args: sent: the actions that led to them; index: the env of each row, None: all envs.
        """
        if np.count_nonzero(np.isfinite(obs)) != obs.size:
            raise not_finite_error(self._place, f'observation{of_entry(self._path)}', obs, sent, index)

    def final(self, raw: Raw, index: np.ndarray) -> Obs:
        """The last observations of some envs: raw is one array for all, or an array of objects (gymnasium)."""
        rows = raw[index]
        if rows.dtype == object:
            return self.stack(list(rows), index)
        return self.read(rows)

    def stack(self, rows: Sequence[Raw], index: np.ndarray) -> Obs:
        """The last observations of some envs, from one unchecked array for each env."""
        for i, row in zip(index, rows, strict=True):
            if row is None or np.shape(row) != self._raw_shape:
                raise self._place.error(int(i), *bad_obs(row, self._raw_shape, self._path))
        return self.read(np.stack(rows))


class IndexReader(ArrayReader):
    """Reads integers of Discrete and MultiDiscrete spaces as indices from 0."""

    def __init__(self, space: Discrete | MultiDiscrete, n_env: int, path: str, place: Place) -> None:
        super().__init__(space, n_env, path, place)
        if isinstance(space, Discrete):
            self._n = np.reshape(space.n, space.shape)
        else:
            self._n = np.reshape(space.nvec, space.shape)
        self._start = np.reshape(space.start, space.shape)

    def read(self, raw: Raw) -> np.ndarray:
        return np.asarray(raw).astype(np.int64) - self._start

    def check(self, obs: np.ndarray, sent: Raw = None, index: np.ndarray | None = None) -> None:
        if obs.min() < 0 or np.count_nonzero(obs >= self._n):
            row, *at = map(int, np.argwhere((obs < 0) | (obs >= self._n))[0])
            start = int(self._start[tuple(at)])
            n = int(self._n[tuple(at)])
            got = f'is {obs[row] + start}'
            if at:
                got = f'has {obs[row][tuple(at)] + start} at {at}'
            env = row
            if index is not None:
                env = int(index[row])
            raise EnvContractError(
                f'{self._place.of(env)}: observation{of_entry(self._path)} {got}, outside '
                f'of the space {start} .. {start + n - 1}; make the space as large as what the env returns.'
            )


def as_bits(array: np.ndarray) -> np.ndarray | None:
    """An array of zeros and ones as bools, an array of bools unmodified; None if it has other values."""
    if array.dtype == np.bool_:
        return array
    bits = array.astype(np.bool_)
    if np.count_nonzero(bits != array):
        return None
    return bits


class BinaryReader(ArrayReader):
    """Reads zeros and ones of MultiBinary spaces as bools."""

    def read(self, raw: Raw) -> np.ndarray:
        array = np.asarray(raw)
        bits = as_bits(array)
        if bits is None:
            raise self._other_value_error(array)
        return bits

    def _other_value_error(self, array: np.ndarray) -> EnvContractError:
        is_wrong = array.astype(np.bool_) != array
        index = None
        if len(array) == self._shape[0]:
            index = int(np.flatnonzero(is_wrong.reshape(len(array), -1).any(1))[0])
        got = f'the observation{of_entry(self._path)} has {array[is_wrong].flat[0]}'
        return self._place.error(index, got, 'zeros and ones as in observation_space', 'correct it')

    def check(self, obs: np.ndarray, sent: Raw = None, index: np.ndarray | None = None) -> None:
        pass


class MaskReader(BinaryReader):
    """Reads the action mask as [B, n_mask], from any shape of the env's own space."""

    def __init__(self, space: Leaf, n_env: int, path: str, place: Place, raw_shape: tuple[int, ...]) -> None:
        super().__init__(space, n_env, path, place)
        self._raw_shape = raw_shape

    def read(self, raw: Raw) -> np.ndarray:
        array = np.asarray(raw)
        return super().read(array.reshape(len(array), -1))


class ByteReader(ArrayReader):
    """Reads images of bytes, whose values are always finite."""

    def read(self, raw: Raw) -> np.ndarray:
        array = np.asarray(raw)
        if array.dtype != np.uint8:
            raise self._place.error(
                None,
                f'the observations{of_entry(self._path)} are of {array.dtype}',
                'uint8 as in observation_space',
                'return obs.astype(np.uint8), or correct the space',
            )
        return array

    def check(self, obs: np.ndarray, sent: Raw = None, index: np.ndarray | None = None) -> None:
        pass


class DictReader(ArrayReader):
    """Reads the observations of Dict and Tuple spaces as dicts."""

    def __init__(self, parts: Mapping[str, ArrayReader], is_tuple: bool, path: str, place: Place) -> None:
        self._parts = parts
        self._path = path
        self._place = place
        keys: Iterable[Any] = parts
        if is_tuple:
            keys = range(len(parts))
        # name, key in what the env returns, reader
        self._keys = [(name, key, part) for key, (name, part) in zip(keys, parts.items(), strict=True)]

    def read(self, raw: Raw) -> Obs:
        return {name: part.read(raw[key]) for name, key, part in self._keys}

    def check(self, obs: Obs, sent: Raw = None, index: np.ndarray | None = None) -> None:
        for name, part in self._parts.items():
            part.check(obs[name], sent, index)

    def fit(self, obs: Obs, call: str) -> None:
        for name, part in self._parts.items():
            part.fit(obs[name], call)

    def write(self, row: Obs, obs: Obs) -> None:
        for name, part in self._parts.items():
            part.write(row[name], obs[name])

    def final(self, raw: Raw, index: np.ndarray) -> Obs:
        if isinstance(raw, np.ndarray):  # of objects, one dict or tuple for each env
            return self.stack(list(raw[index]), index)
        return {name: part.final(raw[key], index) for name, key, part in self._keys}

    def stack(self, rows: Sequence[Raw], index: np.ndarray) -> Obs:
        return {
            name: part.stack([self._entry(row, key, i) for i, row in zip(index, rows, strict=True)], index)
            for name, key, part in self._keys
        }

    def _entry(self, row: Raw, key: str | int, index: int) -> Raw:
        try:
            return row[key]
        except (LookupError, TypeError) as error:
            got = f'the final observation{of_entry(self._path)} has no entry {key!r}'
            wanted = f'{", ".join(map(repr, self._parts))} as in observation_space'
            raise self._place.error(int(index), got, wanted, 'return what the space says') from error


def obs_reader(
    space: Space, n_env: int, place: Place, raw_mask_shape: tuple[int, ...] = (), path: str = ''
) -> ArrayReader:
    """The reader of a space. raw_mask_shape: of the entry 'action_mask' in the env's own space."""
    if isinstance(space, Dict):
        parts: dict[str, ArrayReader] = {}
        for name, part in space.spaces.items():
            part_path = f'{path}.{name}'.removeprefix('.')
            if part_path == ACTION_MASK and isinstance(part, MultiBinary):
                parts[name] = MaskReader(part, n_env, part_path, place, raw_mask_shape)
            else:
                parts[name] = obs_reader(part, n_env, place, path=part_path)
        return DictReader(parts, space.is_tuple, path, place)
    if isinstance(space, Discrete | MultiDiscrete):
        return IndexReader(space, n_env, path, place)
    if isinstance(space, MultiBinary):
        return BinaryReader(space, n_env, path, place)
    if obs_dtype(space) == torch.uint8:
        return ByteReader(space, n_env, path, place)
    return ArrayReader(space, n_env, path, place)
