"""Array readers: convert the observations of a vector env to the dtypes of zoo, and check their shapes and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from zoo.core.data import Obs
from zoo.core.errors import of_entry
from zoo.core.spaces import ACTION_MASK, Dict, Discrete, Leaf, MultiBinary, MultiDiscrete, Raw, Space, obs_dtype
from zoo.env.errors import BrokenContractError, EnvContractError, Place, bad_obs, not_finite_error
from zoo.env.masks import as_bits


class ArrayReader:
    """Reads observations of one leaf as float32."""

    def __init__(self, space: Leaf, n_env: int, path: str, place: Place) -> None:
        self._shape = n_env, *space.shape
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


class FinalReader(ArrayReader):
    """Reads float32 observations, also the last ones of episodes, which envs that reset themselves return separately."""

    def __init__(self, space: Leaf, n_env: int, path: str, place: Place) -> None:
        super().__init__(space, n_env, path, place)
        self._raw_shape: tuple[int, ...] = space.shape  # of one env, as the env gives it

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


class IndexReader(FinalReader):
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
            start, n = (int(x[tuple(at)]) for x in (self._start, self._n))
            if not at:
                got = f'is {obs[row] + start}'
            else:
                got = f'has {obs[row][tuple(at)] + start} at {at}'
            raise EnvContractError(
                f'{self._place.of(row if index is None else int(index[row]))}: observation{of_entry(self._path)} {got}, outside '
                f'of the space {start} .. {start + n - 1}; make the space as large as what the env returns.'
            )


class BinaryReader(FinalReader):
    """Reads zeros and ones of MultiBinary spaces as bools."""

    def read(self, raw: Raw) -> np.ndarray:
        array = np.asarray(raw)
        try:
            return as_bits(array)
        except BrokenContractError:
            rows = (array.astype(np.bool_) != array).reshape(len(array), -1).any(1)
            index = None
            if len(array) == self._shape[0]:
                index = int(np.flatnonzero(rows)[0])
            got = f'the observation{of_entry(self._path)} has {array[array.astype(np.bool_) != array].flat[0]}'
            raise self._place.error(index, got, 'zeros and ones as in observation_space', 'correct it') from None

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


class ByteReader(FinalReader):
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


class DictReader(FinalReader):
    """Reads the observations of Dict and Tuple spaces as dicts."""

    def __init__(self, parts: Mapping[str, FinalReader], is_tuple: bool, path: str, place: Place) -> None:
        self._parts = parts
        self._path = path
        self._place = place
        self._keys = [(name, i if is_tuple else name, part) for i, (name, part) in enumerate(parts.items())]

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
) -> FinalReader:
    """The reader of a space. raw_mask_shape: of the entry 'action_mask' in the env's own space."""
    if isinstance(space, Dict):
        parts: dict[str, FinalReader] = {}
        for name, each in space.spaces.items():
            if path:
                inner = f'{path}.{name}'
            else:
                inner = name
            if inner == ACTION_MASK and isinstance(each, MultiBinary):
                parts[name] = MaskReader(each, n_env, inner, place, raw_mask_shape)
            else:
                parts[name] = obs_reader(each, n_env, place, path=inner)
        return DictReader(parts, space.is_tuple, path, place)
    if isinstance(space, Discrete | MultiDiscrete):
        return IndexReader(space, n_env, path, place)
    if isinstance(space, MultiBinary):
        return BinaryReader(space, n_env, path, place)
    if obs_dtype(space) == torch.uint8:
        return ByteReader(space, n_env, path, place)
    return FinalReader(space, n_env, path, place)
