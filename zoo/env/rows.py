"""Readers of observations that are not one array of floats; rules for resets, ends, masks, raw rewards and restarts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Obs, map_tensors
from zoo.core.errors import of_entry
from zoo.core.spaces import ACTION_MASK, Dict, Discrete, Leaf, MultiBinary, MultiDiscrete, Raw, Space, obs_dtype
from zoo.env.config import EndsConfig
from zoo.env.errors import BROKEN, RAW_END, RAW_REWARD, BrokenContractError, EnvContractError, Place, bad_obs
from zoo.env.infos import FINAL_OBS, Number, end_infos, last_obs
from zoo.env.interface import BlockField, StepBlock
from zoo.env.masks import ChoiceCheck, as_bits
from zoo.env.stepping import ArrayReader, RowRule, RowVectorEnv

N_END_SEEN = 100  # ends of episodes after which Ends warns of entries that no info had
logger = logging.getLogger(__name__)


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


def ended_envs(block: StepBlock, t: int) -> np.ndarray:
    """[B] bool, true for the envs whose episode ended in row t."""
    return block.rows[t].terminated | block.rows[t].truncated


class SameStep(RowRule):
    """Rule for envs that reset themselves in the step that ends an episode; the info has the true last observations."""

    def __init__(self, reader: FinalReader) -> None:
        self._reader = reader

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        ended = ended_envs(block, t)
        if np.count_nonzero(ended):
            index = ended.nonzero()[0]
            final = self._reader.final(_finals(info), index)
            self._reader.check(final, env.sent, index)
            block.finals.append((t, index, final))


def _finals(info: dict[str, Any]) -> Any:
    """The last observations in the info of a step that ended episodes. Raises: KeyError if it has none."""
    finals = last_obs(None, info)
    if finals is None:
        return info[FINAL_OBS]
    return finals


class Disabled(RowRule):
    """Rule for envs that never reset themselves: zoo resets them after the step that ended an episode."""

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        ended = ended_envs(block, t)
        row = block.rows[t]
        if np.count_nonzero(ended):
            index = ended.nonzero()[0]
            final = map_tensors(lambda x: x[index], row.obs)
            obs, _ = env.reset_envs('step', options={'reset_mask': ended})
            env.reader.write(row.obs, obs)
            env.reader.check(row.obs, env.sent)
            block.finals.append((t, index, final))


class Masks(RowRule):
    """Refuses action masks that allow nothing; at the end of an episode, where no action follows, makes such masks all true.

    Args: shows_ends: whether rows have the last observations of episodes (autoreset next_step).
    """

    def __init__(self, action_space: Space, place: Place, shows_ends: bool) -> None:
        self._choices = ChoiceCheck(action_space)
        self._place = place
        self._shows_ends = shows_ends

    def on_reset(self, obs: Any) -> None:
        self._refuse(obs[ACTION_MASK], self._choices.empty(obs[ACTION_MASK]))

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        for at, _, final in block.finals[-1:]:
            if at == t:
                final[ACTION_MASK][self._choices.empty(final[ACTION_MASK])] = True
        mask = block.rows[t].obs[ACTION_MASK]
        empty = self._choices.empty(mask)
        if self._shows_ends and np.count_nonzero(empty):
            ended = ended_envs(block, t)
            mask[empty & ended] = True
            empty &= ~ended
        self._refuse(mask, empty)

    def _refuse(self, mask: np.ndarray, empty: np.ndarray) -> None:
        if np.count_nonzero(empty):
            index = int(np.flatnonzero(empty)[0])
            raise self._place.error(index, *self._choices.fault(mask[index]))


class Ends(RowRule):
    """Decides which ends of episodes are terminal, as env.ends says; whether an episode ends stays as it is."""

    def __init__(self, cfg: EndsConfig, name: str, autoreset: str) -> None:
        self._cfg = cfg
        self._name = name
        self._autoreset = autoreset
        if cfg.both is None:
            both = cfg.terminated
        else:
            both = cfg.both
        self._both_is_terminal = both == 'terminal'
        self._unseen = {*cfg.bootstrap_if, *cfg.terminal_if}  # entries that no info has had so far
        self._has_marks = bool(self._unseen)
        self._n_end = 0

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        row = block.rows[t]
        ended = ended_envs(block, t)
        if not np.count_nonzero(ended):
            return
        is_both = row.terminated & row.truncated
        is_terminal = is_both & self._both_is_terminal
        is_terminal |= row.terminated & ~is_both & (self._cfg.terminated == 'terminal')
        is_terminal |= row.truncated & ~is_both & (self._cfg.truncated == 'terminal')
        if self._has_marks:
            index = ended.nonzero()[0]
            for i, last in zip(index, end_infos(info, index, self._autoreset), strict=True):
                self._look_for_entries(last)
                if _has_any(last, self._cfg.bootstrap_if):
                    is_terminal[i] = False
                if _has_any(last, self._cfg.terminal_if):
                    is_terminal[i] = True
        row.terminated[:] = is_terminal
        row.truncated[:] = ended & ~is_terminal

    def _look_for_entries(self, last: Mapping[str, Number]) -> None:
        """Warns once of entries that no info has after N_END_SEEN ends: a wrong name would change nothing, in silence."""
        if not self._unseen:
            return
        self._unseen -= last.keys()
        self._n_end += 1
        if self._unseen and self._n_end == N_END_SEEN:
            logger.warning(
                'env %r: env.ends looks for %s in the infos, but at none of the first %d ends of episodes the info had a '
                'number or bool of that name; the last one had %s. Correct the name, or leave it out.',
                self._name,
                ', '.join(map(repr, sorted(self._unseen))),
                N_END_SEEN,
                ', '.join(map(repr, last)) or 'none',
            )


def _has_any(info: Mapping[str, Number], marks: Mapping[str, Number]) -> bool:
    return any(name in info and info[name] == value for name, value in marks.items())


class RawRewards(RowRule):
    """Writes the game's own rewards and ends; 0 and false in rows that are only a reset."""

    columns = ('raw_reward', 'raw_end')

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        row = block.rows[t]
        row.raw_reward[:] = info[RAW_REWARD]
        row.raw_end[:] = info[RAW_END]
        if row.is_reset is not None:
            row.raw_reward[row.is_reset] = 0.0
            row.raw_end[row.is_reset] = False


class BrokenEpisodes(RowRule):
    """Marks episodes that broke off because their env failed and was recreated (env.on_error=restart).

    Args: resets_are_marked: whether another rule writes `is_reset` (autoreset next_step).
    """

    def __init__(self, resets_are_marked: bool) -> None:
        self._resets_are_marked = resets_are_marked
        self.columns: tuple[BlockField, ...]
        if resets_are_marked:
            self.columns = ('begins',)
        else:
            self.columns = ('is_reset', 'begins')

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        row = block.rows[t]
        if self._resets_are_marked:
            row.begins[:] = row.is_reset
        else:
            row.is_reset[:], row.begins[:] = False, ended_envs(block, t)
        if BROKEN in info:  # the row is no transition, and the trajectory ends with it
            broken = info[BROKEN]
            row.begins[broken] = row.is_reset[broken] = row.truncated[broken] = True


def mark_broken(is_reset: Tensor, end: Tensor, is_broken: Tensor) -> None:
    """Sets is_reset in the rows of broken episodes, from the row after the previous end to the break. All arguments: [T, B]."""
    for t, b in is_broken.nonzero().tolist():
        ends = end[:t, b].nonzero()
        is_reset[int(ends[-1]) + 1 if len(ends) else 0 : t, b] = True
