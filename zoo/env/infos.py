"""Reads the infos of single envs from the info of a vector env, which has several forms.

`VectorEnv.receive` and Timestep.info give the info of the vector env. Envs that zoo steps itself (vectorization sync and
async) put the numbers of an episode's last info into FINAL_INFO, in every autoreset mode. Entries that `VectorEnv.request_infos`
names are in the info of every step, as in gymnasium: values [B, ...] under 'key', and under '_key' which envs gave one.
Batched envs and families have infos of their own form: arrays [B], with masks or without, in FINAL_INFO where an ended
env was reset in the same step.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from zoo.env.errors import BrokenContractError

BROKEN = 'broken'  # key of the infos of a vector env: [B] bool, the env failed in this step and was recreated
RAW = 'raw_reward_and_end'  # metadata key of a vector env whose info has RAW_REWARD and RAW_END at every step
RAW_REWARD = 'raw_reward'
RAW_END = 'raw_end'
FINAL_OBS = 'final_obs'  # a key of gymnasium's infos
FINAL_INFO = 'final_info'  # a key of gymnasium's infos
OWN_KEYS = {FINAL_OBS, FINAL_INFO, BROKEN, RAW_REWARD, RAW_END}  # of the vector env itself, not of single envs
LAST_OBS = (FINAL_OBS, 'final_observation', 'terminal_observation')
"""Keys of infos with the last observation of an episode, in envs that reset themselves: of gymnasium, before 1.0, of SB3."""
NOT_NESTED = {*LAST_OBS, FINAL_INFO, 'episode', 'action_mask', 'reset_mask'}
"""Entries of vector envs and wrappers whose parts are no numbers of the env's own."""
MAX_DEPTH = 4  # of nested infos
MOST_NESTED = 1_000  # numbers of nested infos; one may hold the whole state of a simulator
LARGEST = int(sys.float_info.max)  # a larger int cannot become a float
Number = bool | int | float


class InfoColumn(NamedTuple):
    """One entry of the infos of B envs. values: [B, ...] f32; is_given: [B] bool, which envs gave it."""

    values: np.ndarray
    is_given: np.ndarray


def end_infos(
    info: Mapping[str, Any] | None, index: Sequence[int] | np.ndarray, autoreset: str
) -> list[dict[str, Number]]:
    """The numbers and bools in the last info of the episodes that ended, one dict for each of the envs `index`.

    Args: info: of the vector at the step that ended them; autoreset: of the vector, such as 'same_step'.
    """
    if not info:
        return [{} for _ in index]
    finals = info.get(FINAL_INFO)
    if finals is not None and not isinstance(finals, Mapping):  # one dict (or None) for each env
        return [dict(finals[i] or {}) for i in index]
    last = info
    if finals is not None and autoreset == 'same_step':
        last = finals
    return [numbers_of(_of_env(last, int(i), OWN_KEYS)) for i in index]


def step_values(info: Mapping[str, Any], key: str, n_env: int) -> InfoColumn | None:
    """One entry of the infos of a step; None if no env gave one.

    Where an ended env was reset in the same step, the value is that of the last step, not of the reset. A row that is
    only a reset has the value of the reset, or none.
    """
    column = _column(info, key, n_env)
    finals = info.get(FINAL_INFO)
    if isinstance(finals, Mapping):
        last = _column(finals, key, n_env)
        has_last = np.zeros(n_env, dtype=bool)
        if last is not None:
            has_last = last.is_given
        is_over = has_last
        if info.get(f'_{FINAL_INFO}') is not None:
            is_over = np.asarray(info[f'_{FINAL_INFO}'], dtype=bool)
        column = _with_last(column, last, has_last, is_over)
    if column is None or not column.is_given.any():
        return None
    return column


def _with_last(
    column: InfoColumn | None, last: InfoColumn | None, has_last: np.ndarray, is_over: np.ndarray
) -> InfoColumn | None:
    """The column with the values of `last` where an episode is over; there `column` has those of the next episode."""
    if column is None:
        if last is None:
            return None
        return InfoColumn(last.values, has_last & is_over)
    values = column.values
    if last is not None:
        is_replaced = (is_over & has_last).reshape(-1, *[1] * (values.ndim - 1))
        values = np.where(is_replaced, last.values, values)
    return InfoColumn(values, np.where(is_over, has_last, column.is_given))


def last_obs(obs: Any, info: Mapping[str, Any]) -> Any:
    """The last observation of an episode of a single env.

    That is `obs`, but for an env that has reset itself: there `obs` begins the next episode, and the info has the last one.
    """
    for key in LAST_OBS:
        if info.get(key) is not None:
            return info[key]
    return obs


def numbers_of(info: object) -> dict[str, Number]:
    """The entries of one env's info that are a number or bool, or an array of one, as int, float or bool of Python.

    Entries of nested infos have their path as name, {'rewards': {'speed': 0.5}} is rewards/speed, see `named_parts`.
    """
    parts = named_parts(info)
    if parts is None:
        return {}
    numbers: dict[str, Number] = {}
    nested: dict[str, Number] = {}
    for key, value in parts.items():
        as_number = number(value)
        if as_number is not None:
            numbers[key] = as_number
        elif key not in NOT_NESTED:
            _add_nested(nested, key, value, 1)
    return {**nested, **numbers}  # an entry that is itself called rewards/speed comes first


def named_parts(info: object) -> dict[str, Any] | None:
    """The parts of an info that has names for them, a mapping, dataclass or named tuple; None for other values."""
    if isinstance(info, Mapping):
        return {str(key): value for key, value in info.items()}
    if dataclasses.is_dataclass(info) and not isinstance(info, type):
        names = [field.name for field in dataclasses.fields(info)]
        return {name: getattr(info, name) for name in names if hasattr(info, name)}
    if isinstance(info, tuple) and hasattr(info, '_fields'):
        return dict(zip(info._fields, info, strict=False))
    return None


def _add_nested(numbers: dict[str, Number], path: str, value: object, depth: int) -> None:
    """Adds the numbers in a part of an info that has parts itself, by path."""
    if depth >= MAX_DEPTH or len(numbers) >= MOST_NESTED:
        return
    parts = named_parts(value) or {}
    for key, part in parts.items():
        as_number = number(part)
        if as_number is None:
            _add_nested(numbers, f'{path}/{key}', part, depth + 1)
        else:
            numbers[f'{path}/{key}'] = as_number


def number(value: object) -> Number | None:
    """A value as an int, float or bool of Python; None if it is no number or bool, or an int larger than every float."""
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        if -LARGEST <= value <= LARGEST:
            return value
        return None
    if getattr(value, 'shape', None) in ((), (1,)) and getattr(value, 'size', 1) == 1 or hasattr(value, 'numel'):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in 'biuf':
            return array.reshape(())[()].item()
    return None


def requested_of(keys: Sequence[str], info: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The entries of one env's info that `keys` names and that are numbers or arrays of numbers, as f32."""
    arrays: dict[str, np.ndarray] = {}
    for key in keys:
        value = entry_of(info, key)
        if value is not None:
            with suppress(TypeError, ValueError, OverflowError):  # an entry that is no number is left out
                arrays[key] = np.asarray(value, dtype=np.float32)
    return arrays


def entry_of(info: object, key: str) -> Any:
    """An entry of an info by its name, or by its path in nested infos, such as rewards/speed; None if there is none."""
    parts = named_parts(info) or {}
    if key in parts:
        return parts[key]
    first, _, rest = key.partition('/')
    if rest and first in parts:
        return entry_of(parts[first], rest)
    return None


def add_requested(infos: dict[str, Any], values: Mapping[str, np.ndarray], i: int, n_env: int) -> None:
    """Puts the values of env i into the info of the vector, as gymnasium does.

    Raises: BrokenContractError if another env's value has another shape.
    """
    for key, value in values.items():
        if key not in infos:
            infos[key] = np.zeros((n_env, *value.shape), np.float32)
            infos[f'_{key}'] = np.zeros(n_env, dtype=bool)
        if infos[key].shape[1:] != value.shape:
            raise other_shape_error(key, value.shape, 'of the other envs', infos[key].shape[1:])
        infos[key][i] = value
        infos[f'_{key}'][i] = True


def other_shape_error(key: str, shape: tuple[int, ...], whose: str, wanted: tuple[int, ...]) -> BrokenContractError:
    """The error for an entry whose shape differs from that of the other envs, or of the steps before."""
    return BrokenContractError(
        f'the entry {key!r} of its info has the shape {shape}',
        f'that {whose}, {wanted}',
        'give it one shape in all envs and steps, or leave it out of env.info_columns',
    )


def _of_env(info: Mapping[str, Any], i: int, left_out: Set[str] = frozenset()) -> dict[str, Any]:
    """The info of env i in that of a vector, whose entries, also those of nested infos, are arrays [B, ...] with masks."""
    entries: dict[str, Any] = {}
    for key, values in info.items():
        is_mask = str(key).startswith('_') and key[1:] in info
        if key in left_out or is_mask or isinstance(values, str):
            continue
        mask = info.get(f'_{key}')
        if mask is not None and not mask[i]:
            continue
        if isinstance(values, Mapping):
            entries[key] = _of_env(values, i)
        elif hasattr(values, '__len__') and len(values) > i:
            entries[key] = values[i]
    return entries


def _column(info: Mapping[str, Any], key: str, n_env: int) -> InfoColumn | None:
    """An entry of the info of a vector; None if there is no such array."""
    first, _, rest = key.partition('/')
    if key not in info and rest and isinstance(info.get(first), Mapping):  # a path in nested infos
        return _column(info[first], rest, n_env)
    try:
        values = np.asarray(info[key], dtype=np.float32)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if values.ndim == 0 or len(values) != n_env:
        return None
    mask = info.get(f'_{key}')
    if mask is None:
        return InfoColumn(values, np.ones(n_env, dtype=bool))
    return InfoColumn(values, np.asarray(mask, dtype=bool))
