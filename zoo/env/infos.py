"""Reads the infos of single envs from the info of a vector env, which has several forms.

`VectorEnv.receive` and Timestep.info give the info of the vector env. Envs that zoo steps itself (vectorization sync and
async) put the numbers of an episode's last info into FINAL_INFO, in every autoreset mode. Entries that `VectorEnv.request_infos`
names are in the info of every step, as in gymnasium: values [B, ...] under 'key', and under '_key' which envs gave one.
Batched envs and families have infos of their own form: arrays [B], with masks or without, in FINAL_INFO where an ended
env was reset in the same step.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from zoo.env.errors import BROKEN, RAW_END, RAW_REWARD, BrokenContractError

FINAL_OBS, FINAL_INFO = 'final_obs', 'final_info'  # keys of gymnasium's infos
OWN_KEYS = {FINAL_OBS, FINAL_INFO, BROKEN, RAW_REWARD, RAW_END}  # of the vector env itself, not of single envs

LAST_OBS = (FINAL_OBS, 'final_observation', 'terminal_observation')
"""Keys of infos with the last observation of an episode, in envs that reset themselves: of gymnasium, before 1.0, of SB3."""

Number = bool | int | float
LARGEST = int(sys.float_info.max)  # a larger int cannot become a float


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
    last = finals if finals is not None and autoreset == 'same_step' else info
    return [_taken(last, int(i)) for i in index]


def step_values(info: Mapping[str, Any], key: str, n_env: int) -> tuple[np.ndarray, np.ndarray] | None:
    """One entry of the infos of a step: (values [B, ...] f32, [B] bool, which envs gave one); None if no env gave one.

    Where an ended env was reset in the same step, the value is that of the last step, not of the reset. A row that is
    only a reset has the value of the reset, or none.
    """
    values, given = _array(info, key, n_env)
    finals = info.get(FINAL_INFO)
    if isinstance(finals, Mapping):
        last, is_last = _array(finals, key, n_env)
        ended = info.get(f'_{FINAL_INFO}')
        over = is_last if ended is None else np.asarray(ended, dtype=bool)
        if last is not None and values is None:
            values, given = last, is_last & over
        elif values is not None:
            given = np.where(over, is_last, given)
            if last is not None:
                values = np.where((over & is_last).reshape(-1, *[1] * (values.ndim - 1)), last, values)
    return None if values is None or not given.any() else (values, given)


def last_obs(obs: Any, info: Mapping[str, Any]) -> Any:
    """The last observation of an episode of a single env.

    That is `obs`, but for an env that has reset itself: there `obs` begins the next episode, and the info has the last one.
    """
    for key in LAST_OBS:
        if info.get(key) is not None:
            return info[key]
    return obs


def numbers_of(info: object) -> dict[str, Number]:
    """The entries of one env's info that are a number or bool, or an array of one, as int, float or bool of Python."""
    if not isinstance(info, Mapping):
        return {}
    named = {str(key): number(value) for key, value in info.items()}
    return {key: value for key, value in named.items() if value is not None}


def number(value: object) -> Number | None:
    """A value as an int, float or bool of Python; None if it is no number or bool, or an int larger than every float."""
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -LARGEST <= value <= LARGEST else None
    if getattr(value, 'shape', None) in ((), (1,)) and getattr(value, 'size', 1) == 1 or hasattr(value, 'numel'):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in 'biuf':
            return array.reshape(())[()].item()
    return None


def requested_of(keys: Sequence[str], info: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The entries of one env's info that `keys` names and that are numbers or arrays of numbers, as f32."""
    found: dict[str, np.ndarray] = {}
    for key in keys:
        if key in info:
            with suppress(TypeError, ValueError, OverflowError):  # an entry that is no number is left out
                found[key] = np.asarray(info[key], dtype=np.float32)
    return found


def add_requested(infos: dict[str, Any], values: Mapping[str, np.ndarray], i: int, n_env: int) -> None:
    """Puts the values of env i into the info of the vector, as gymnasium does.

    Raises: BrokenContractError if another env's value has another shape.
    """
    for key, value in values.items():
        if key not in infos:
            infos[key], infos[f'_{key}'] = np.zeros((n_env, *value.shape), np.float32), np.zeros(n_env, dtype=bool)
        if infos[key].shape[1:] != value.shape:
            raise other_shape_error(key, value.shape, 'of the other envs', infos[key].shape[1:])
        infos[key][i], infos[f'_{key}'][i] = value, True


def other_shape_error(key: str, shape: tuple[int, ...], whose: str, wanted: tuple[int, ...]) -> BrokenContractError:
    """The error for an entry whose shape differs from that of the other envs, or of the steps before."""
    return BrokenContractError(
        f'the entry {key!r} of its info has the shape {shape}',
        f'that {whose}, {wanted}',
        'give it one shape in all envs and steps, or leave it out of env.info_columns',
    )


def _taken(info: Mapping[str, Any], i: int) -> dict[str, Number]:
    own: dict[str, Any] = {}
    for key, values in info.items():
        is_of_vector = key in OWN_KEYS or (key.startswith('_') and key[1:] in info) or isinstance(values, Mapping | str)
        given = info.get(f'_{key}')
        if not is_of_vector and (given is None or given[i]) and hasattr(values, '__len__') and len(values) > i:
            own[key] = values[i]
    return numbers_of(own)


def _array(info: Mapping[str, Any], key: str, n_env: int) -> tuple[np.ndarray | None, np.ndarray]:
    """The values of an entry, [B, ...] f32, and which envs gave it; (None, all false) if there is no such array."""
    none = np.zeros(n_env, dtype=bool)
    try:
        values = np.asarray(info[key], dtype=np.float32)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None, none
    if values.ndim == 0 or len(values) != n_env:
        return None, none
    mask = info.get(f'_{key}')
    return values, ~none if mask is None else np.asarray(mask, dtype=bool)
