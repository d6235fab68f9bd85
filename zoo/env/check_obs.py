"""Checks one observation of an env against its space, leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from zoo.core.spaces import Box, Dict, Discrete, Leaf, MultiBinary, MultiDiscrete, Space
from zoo.env.errors import BrokenContractError, of_entry, show_value

CORRECT = 'correct one of the two'


class ToleratedError(BrokenContractError):
    """A break that only the check refuses: a run without the check takes such a value."""


Note = Callable[[BrokenContractError], None]
"""Is given a break after which the check could continue; it may raise it."""


def checked_leaves(obs: Any, space: Space, source: str, note: Note) -> dict[str, np.ndarray]:
    """Copies of the leaves of an observation by their paths, without those that a note is made of.

    Args: source: 'reset' or 'step', for the error.
      note: gets a BrokenContractError for each leaf that is missing, or has another type, shape, dtype or range than in
        the space.
    """
    found = {}
    try:
        for path, leaf, value in _leaves(obs, space, '', source):
            what = f'the observation{of_entry(path)} of {source}'
            try:
                if isinstance(leaf, Discrete):
                    _check_discrete(value, leaf, what)
                else:
                    _check_array(value, leaf, what, note)
            except ToleratedError as error:
                note(error)
            except BrokenContractError as error:
                note(error)
                continue
            found[path] = np.array(value)
    except BrokenContractError as error:  # of the entries
        note(error)
    return found


def difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The path of the first leaf that differs, or is missing."""
    return next((path for path in was if path not in now or not _equal(was[path], now[path])), None)


def _equal(a: Any, b: Any) -> bool:
    are_floats = all(np.asarray(x).dtype.kind == 'f' for x in (a, b))
    return bool(np.array_equal(a, b, equal_nan=are_floats))


def _leaves(obs: Any, space: Space, path: str, source: str) -> Iterator[tuple[str, Leaf, Any]]:
    if not isinstance(space, Dict):
        yield path, space, obs
        return
    what = f'the observation{of_entry(path)} of {source}'
    n = len(space.spaces)
    entries: Any = obs
    if space.is_tuple:
        entries = dict(zip(space.spaces, obs, strict=True)) if isinstance(obs, tuple) and len(obs) == n else None
    if not isinstance(entries, Mapping):
        wanted = f'a tuple of {n}' if space.is_tuple else f'a dict with {", ".join(map(repr, space.spaces))}'
        raise BrokenContractError(f'{what} is {show_value(obs)}', f'{wanted} as in observation_space', CORRECT)
    if set(entries) != set(space.spaces):
        has = f'{what} has the entries {", ".join(map(repr, entries))}'
        kind = ToleratedError if set(entries) > set(space.spaces) else BrokenContractError
        raise kind(has, f'{", ".join(map(repr, space.spaces))} as in observation_space', CORRECT)
    for name, each in space.spaces.items():
        yield from _leaves(entries[name], each, f'{path}.{name}' if path else name, source)


def _check_discrete(obs: Any, space: Discrete, what: str) -> None:
    if isinstance(obs, bool) or np.shape(obs) != () or np.asarray(obs).dtype.kind not in 'iu':
        kind = ToleratedError if isinstance(obs, bool) else BrokenContractError
        raise kind(f'{what} is {show_value(obs)}', 'an int', 'return int(obs)')
    if not 0 <= int(obs) - space.start < space.n:
        wanted = f'{space.start} to {space.start + space.n - 1} as in observation_space'
        raise BrokenContractError(f'{what} is {obs}', wanted, CORRECT)


def _check_array(obs: Any, space: Box | MultiDiscrete | MultiBinary, what: str, note: Note) -> None:
    dtype = space.dtype if isinstance(space, Box) else 'int8' if isinstance(space, MultiBinary) else 'int64'
    if not isinstance(obs, np.ndarray | np.generic):
        do = f'return np.asarray(obs, dtype=np.{dtype})'
        kind = ToleratedError if _fits(obs, space.shape, dtype) else BrokenContractError
        raise kind(f'{what} is {show_value(obs)}', 'a numpy array', do)
    if obs.shape != space.shape:
        raise BrokenContractError(f'{what} has shape {obs.shape}', f'{space.shape} as in observation_space', CORRECT)
    if obs.dtype != dtype if isinstance(space, Box) else obs.dtype.kind not in 'biu':
        wanted = f'{dtype} as in observation_space' if isinstance(space, Box) else 'integers'
        got, do = f'{what} has dtype {obs.dtype}', f'return obs.astype(np.{dtype})'
        if not _fits(obs, space.shape, dtype):
            raise BrokenContractError(got, wanted, do)
        note(ToleratedError(got, wanted, do))
    _check_values(np.asarray(obs), *_bounds(space), what, isinstance(space, Box))


def _fits(obs: Any, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether a run makes an array of the space of it."""
    try:
        array = np.asarray(obs)
    except ValueError:  # a ragged list
        return False
    return array.shape == shape and array.dtype.kind in 'biuf' and np.can_cast(array.dtype, dtype, 'same_kind')


def _bounds(space: Box | MultiDiscrete | MultiBinary) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, Box):
        return space.low, space.high
    if isinstance(space, MultiBinary):
        return np.zeros(space.shape), np.ones(space.shape)
    low, n = (np.reshape(x, space.shape) for x in (space.start, space.nvec))
    return low, low + n - 1


def _check_values(obs: np.ndarray, low: np.ndarray, high: np.ndarray, what: str, is_box: bool) -> None:
    finite = np.isfinite(obs)
    wrong = np.argwhere(~(finite & (low <= obs) & (obs <= high)))
    if not len(wrong):
        return
    at = tuple(map(int, wrong[0]))
    got = f'{what} has {obs[at]} at {list(at)}' if at else f'{what} is {obs}'
    if not finite[at]:
        raise BrokenContractError(got, 'finite numbers', 'find where it comes from')
    wanted = f'{low[at]:g} to {high[at]:g} as in observation_space'
    raise (ToleratedError if is_box else BrokenContractError)(got, wanted, 'correct it, or widen the space')
