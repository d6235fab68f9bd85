"""Says which env of a vector broke the gymnasium interface, at which step, and how."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium
import numpy as np

from zoo.core.errors import show_error
from zoo.env.errors import (
    RESET_DO,
    STEP_DO,
    BrokenContractError,
    EnvContractError,
    EnvError,
    Place,
    add_place,
    contract_error,
    location_of,
    of_entry,
    show_value,
)

# What numpy and gymnasium raise for a wrong value.
RAW_ERRORS = (
    *(BrokenContractError, ArithmeticError, AssertionError, AttributeError),
    *(LookupError, RuntimeError, TypeError, ValueError),
)
_GYMNASIUM = os.path.dirname(gymnasium.__file__)
_BETWEEN = (  # code between a vector step and an env; an exception from here means that it was handed a wrong value
    *(os.path.join(_GYMNASIUM, part, '') for part in ('vector', 'wrappers', 'spaces')),
    *(os.path.join(os.path.dirname(path), '') for path in (__file__, np.__file__)),
    os.path.join(_GYMNASIUM, 'core.py'),
)


def raise_if_contract(error: BaseException, vector: gymnasium.vector.VectorEnv, name: str, step: int) -> None:
    """Raise the EnvContractError behind `error`; if the env's own code raised it, only add where that was.

    The index is known for zoo's own vector envs, which set `failed_index` and have told the two cases apart.
    """
    if isinstance(error, EnvError):
        return
    index = getattr(vector, 'failed_index', None)
    try:
        if index is None or isinstance(error, BrokenContractError):
            raise_if_broken(error, 'reset' if step == 0 else 'step')
    except BrokenContractError as broken:
        raise contract_error(name, index, step, *broken.args) from error
    add_place(error, location_of(name, index, step))


def raise_if_broken(
    error: BaseException, call: Literal['reset', 'step'], result: Any = None, space: Any = None
) -> None:
    """Raise a BrokenContractError if `error` comes from what an env returned, and not from the env's own code.

    Args: result: what the call returned, if it returned.   space: the observation space of that env.
    """
    if isinstance(error, BrokenContractError):
        raise error
    if isinstance(error, EnvError) or not isinstance(error, RAW_ERRORS):
        return
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not all(file.startswith(_BETWEEN) for file in files):
        return
    if 'unpack' in str(error):
        call = 'reset' if 'expected 2' in str(error) else call
        got, wanted = f'{call} returned another number of values ({error})', f'a tuple of {2 if call == "reset" else 5}'
    else:
        if result is not None:
            check_result(result, space)
        got = f'{call} returned what cannot be used ({show_error(error)})'
        wanted = 'what the gymnasium interface asks for'
    raise BrokenContractError(got, wanted, RESET_DO if call == 'reset' else STEP_DO) from error


def checked_call(call: Literal['reset', 'step'], space: gymnasium.Space, method: Any, *args: Any, **kwargs: Any) -> Any:
    """What a reset or a step of one env returns. Raises: BrokenContractError; what the env's own code raises."""
    result = None
    try:
        result = method(*args, **kwargs)
        if call == 'reset':
            _, _ = result
        else:
            _, _, _, _, _ = result
        check_result(result, space)
    except RAW_ERRORS as error:
        raise_if_broken(error, call, result, space)
        raise
    return result


def check_result(result: Any, space: gymnasium.Space) -> None:
    """Look at the values that a reset or a step returned. Raises: BrokenContractError."""
    obs, *values, info = result
    do = STEP_DO if values else RESET_DO
    if values:
        reward, terminated, truncated = values
        if not (isinstance(reward, (bool, int, float)) or getattr(reward, 'shape', None) == ()):
            raise BrokenContractError(f'the reward is {show_value(reward)}', 'a number', do)
        as_flag('terminated', terminated)
        as_flag('truncated', truncated)
    if not isinstance(info, dict):
        raise BrokenContractError(f'info is {show_value(info)}', 'a dict', do)
    check_obs(obs, space, 'unsafe')


FLAGS = frozenset((bool, np.bool_))
"""Types of a flag that need no further look."""


def as_flag(what: str, value: Any) -> bool:
    """The flag of an env as a bool: it is one, or an integer or an array without dimensions that is 0 or 1.

    Raises: BrokenContractError for all else, such as None, text or 2.5, which Python would take for true or false.
    """
    if type(value) in FLAGS:
        return bool(value)
    if isinstance(value, (int, np.generic)) or getattr(value, 'shape', None) == ():
        array = np.asarray(value)
        if array.dtype.kind in 'biu' and array in (0, 1):
            return bool(array)
    raise BrokenContractError(f'{what} is {show_value(value)}', 'a bool', f'return bool({what})')


def flag_array(place: Place, what: str, values: Any) -> np.ndarray:
    """The flags [B] of a vector of envs as bools. Raises: EnvContractError that names the first which is none."""
    array = np.asarray(values)
    if array.dtype.kind == 'b':
        return array
    flags = np.zeros(array.shape, dtype=bool)
    for i, value in enumerate(array):
        try:
            flags[i] = as_flag(what, value)
        except BrokenContractError as broken:
            raise place.error(i, *broken.args) from None
    return flags


def check_obs(
    obs: Any, space: gymnasium.Space, casting: Literal['same_kind', 'unsafe'] = 'same_kind', path: str = ''
) -> None:
    """Look at the entries, shapes and types of one observation. Raises: BrokenContractError."""
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        for key, part, value in _entries(obs, space, path):
            check_obs(value, part, casting, f'{path}.{key}' if path else key)
        return
    try:
        array = np.asarray(obs)
        is_number = array.dtype.kind in 'biuf' and np.can_cast(array.dtype, space.dtype or float, casting)
    except ValueError:  # a ragged list
        is_number = False
    if space.shape is not None and not (is_number and array.shape == space.shape):
        raise BrokenContractError(*bad_obs(obs, space.shape, path))


def _entries(
    obs: Any, space: gymnasium.spaces.Dict | gymnasium.spaces.Tuple, path: str
) -> list[tuple[str, gymnasium.Space, Any]]:
    """(name, space, value) of each entry of an observation. Raises: BrokenContractError if one is missing."""
    do = 'return what observation_space says'
    if isinstance(space, gymnasium.spaces.Dict):
        names = ', '.join(map(repr, space.spaces))
        if not isinstance(obs, Mapping):
            got = f'the observation{of_entry(path)} is {show_value(obs)}'
            raise BrokenContractError(got, f'a dict with {names} as in observation_space', do)
        if missing := [key for key in space.spaces if key not in obs]:
            got = f'the observation{of_entry(path)} has no entry {missing[0]!r}'
            raise BrokenContractError(got, f'{names} as in observation_space', do)
        return [(key, part, obs[key]) for key, part in space.spaces.items()]
    if not isinstance(obs, tuple) or len(obs) != len(space.spaces):
        got = f'the observation{of_entry(path)} is {show_value(obs)}'
        raise BrokenContractError(got, f'a tuple of {len(space.spaces)} as in observation_space', do)
    return [(str(i), part, value) for i, (part, value) in enumerate(zip(space.spaces, obs, strict=True))]


def bad_obs(obs: Any, shape: tuple[int, ...], path: str = '') -> tuple[str, str, str]:
    """(got, wanted, do) of an observation that is no array of numbers of this shape."""
    got = f'of shape {obs.shape} and dtype {obs.dtype}' if isinstance(obs, np.ndarray) else show_value(obs)
    wanted = f'numbers of shape {shape} as in observation_space'
    return f'the observation{of_entry(path)} is {got}', wanted, 'correct one of the two'


def not_finite_error(
    place: Place, what: str, values: np.ndarray, sent: Any, index: np.ndarray | None = None
) -> EnvError:
    """The error for observations or rewards [K, ...] of which one is not finite; it blames a policy that began it.

    Args: sent: the actions of all envs, None after a reset; index: which envs the rows are of.
    """
    row = int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0])
    env = row if index is None else int(index[row])
    action = None if sent is None else action_of(sent, env)
    after = '' if sent is None else f' after action {" ".join(str(action).split())}'  # arrays are printed in lines
    blame_policy = sent is not None and not _is_finite(action)
    cause = 'the action is not finite: look at the policy' if blame_policy else 'fix the env, or wrap it'
    none = ' (None becomes nan)' if np.isnan(values[row]).all() else ''
    got = f'is {values[row]}'
    if np.ndim(values[row]) > 1:  # an image would fill the screen
        at = np.argwhere(~np.isfinite(values[row]))[0]
        got = f'has {values[row][tuple(at)]} at {at.tolist()}'
    kind = EnvError if blame_policy else EnvContractError
    return kind(f'{place.of(env)}: {what} {got}{after}, wanted finite numbers{none}; {cause}.')


def action_of(sent: Any, env: int) -> Any:
    """The action of one env of a batch, which is an array, or for Dict and Tuple a nested dict or tuple of such."""
    if isinstance(sent, dict):
        return {key: action_of(part, env) for key, part in sent.items()}
    return tuple(action_of(part, env) for part in sent) if isinstance(sent, tuple) else sent[env]


def n_action(sent: Any) -> int:
    """Of how many envs a batch of actions is."""
    while isinstance(sent, dict | tuple):
        sent = next(iter(sent.values() if isinstance(sent, dict) else sent))
    return len(sent)


def _is_finite(action: Any) -> bool:
    if isinstance(action, dict | tuple):
        return all(map(_is_finite, action.values() if isinstance(action, dict) else action))
    return bool(np.isfinite(action).all())


def wrong_shape_error(place: Place, lead: tuple[int, ...], returned: Mapping[str, Any]) -> EnvContractError:
    """The error for the first of the arrays that `step` returned which is not [B]."""
    what = next(what for what, values in returned.items() if np.shape(values) != lead)
    got = f'step returned {what} of shape {np.shape(returned[what])}'
    return place.error(None, got, str(lead), f'return one {"float" if what == "rewards" else "bool"} for each env')
