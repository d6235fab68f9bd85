"""Checks of what envs return: shapes, types, flags and finite numbers; the errors say what was wanted."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from zoo.core.action_map import Action, Actions
from zoo.core.errors import of_entry, show_error
from zoo.core.spaces import ACTION_MASK
from zoo.env.errors import (
    NOT_RESTARTED,
    BrokenContractError,
    EnvContractError,
    EnvError,
    Place,
    UnsupportedEnvError,
    add_place,
    show_value,
)

RESET_DO = 'write `def reset(self, *, seed=None, options=None)` that returns `obs, info`'
STEP_DO = '`return obs, reward, terminated, truncated, info`'
RETURN_DO = {'reset': RESET_DO, 'step': STEP_DO}
N_RETURNED = {'reset': 2, 'step': 5}
# Exceptions that numpy and gymnasium raise for a wrong value.
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
FLAGS = frozenset((bool, np.bool_))  # types of a flag that need no further check


def check_spaces(env: gymnasium.Env, spaces: tuple[gymnasium.Space, gymnasium.Space]) -> None:
    """Checks that an env has the spaces (observations, actions) of the first env. Raises: BrokenContractError."""
    for what, wanted in zip(('observation_space', 'action_space'), spaces, strict=True):
        space = getattr(env, what)
        if space != wanted:
            raise BrokenContractError(
                f'its {what} is {space}', f'that of the first env, {wanted}', 'make all envs alike'
            )


def raise_if_contract(error: BaseException, vector: gymnasium.vector.VectorEnv, place: Place) -> None:
    """Raises an EnvContractError if a wrong result of an env caused `error`; else only adds the env's place to `error`.

    The index is known for zoo's own vector envs: they set `failed_index`, and have separated the two cases before.
    """
    if isinstance(error, EnvError):
        return
    index = getattr(vector, 'failed_index', None)
    try:
        if index is None or isinstance(error, BrokenContractError):
            call: Literal['reset', 'step'] = 'step'
            if place.step == 0:
                call = 'reset'
            raise_if_broken(error, call)
    except BrokenContractError as broken:
        raise place.error(index, *broken.args) from error
    add_place(error, place.of(index))


def raise_if_broken(
    error: BaseException,
    call: Literal['reset', 'step'],
    result: Sequence[Any] | None = None,
    space: gymnasium.Space | None = None,
) -> None:
    """Raises a BrokenContractError if `error` comes from a value that an env returned, and not from the env's own code.

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
        if 'expected 2' in str(error):
            call = 'reset'
        got = f'{call} returned another number of values ({error})'
        wanted = f'a tuple of {N_RETURNED[call]}'
    else:
        if result is not None and space is not None:
            check_result(call, result, space)
        got = f'{call} returned what cannot be used ({show_error(error)})'
        wanted = 'what the gymnasium interface asks for'
    raise BrokenContractError(got, wanted, RETURN_DO[call]) from error


def checked_call(
    call: Literal['reset', 'step'], space: gymnasium.Space, method: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Calls reset or step of one env and returns the checked result. Raises: BrokenContractError; errors of the env's code."""
    result = None
    try:
        result = method(*args, **kwargs)
        check_result(call, result, space)
    except RAW_ERRORS as error:
        raise_if_broken(error, call, result, space)
        raise
    return result


def check_result(call: Literal['reset', 'step'], result: Sequence[Any], space: gymnasium.Space) -> None:
    """Checks the values that a reset or a step returned. Raises: BrokenContractError; ValueError if their number is wrong."""
    if call == 'reset':
        obs, info = result
    else:
        obs, reward, terminated, truncated, info = result
        if not (isinstance(reward, (bool, int, float)) or getattr(reward, 'shape', None) == ()):
            raise BrokenContractError(*bad_reward(reward))
        as_flag('terminated', terminated)
        as_flag('truncated', truncated)
    if not isinstance(info, dict):
        raise BrokenContractError(f'info is {show_value(info)}', 'a dict', RETURN_DO[call])
    check_obs(obs, space, 'unsafe')


def bad_reward(reward: object) -> tuple[str, str, str]:
    """(got, wanted, do) of a reward that is no number."""
    do = 'return float(reward)'
    if isinstance(reward, np.ndarray | list | tuple) and fits(reward, (len(reward),), np.float64) and len(reward) > 1:
        weights = ', '.join(['1.0'] * len(reward))
        do = (
            f'set env.reward_weights=[{weights}] (with your own weights, of which the reward is the weighted sum), or wrap the '
            'env, as by env.wrappers=[mo_gymnasium.wrappers:LinearReward]; if they are rewards of agents, each with a space in '
            f'Tuples of spaces, give the env the attribute n_agents = {len(reward)}'
        )
    return f'the reward is {show_value(reward)}', 'a number', do


def as_flag(what: str, value: object) -> bool:
    """Converts a flag of an env to a bool: from a bool, or from an integer or 0-dimensional array that is 0 or 1.

    Raises: BrokenContractError for all else, such as None, text or 2.5, which Python would take for true or false.
    """
    if type(value) in FLAGS:
        return bool(value)
    if isinstance(value, (int, np.generic)) or getattr(value, 'shape', None) == ():
        array = np.asarray(value)
        if array.dtype.kind in 'biu' and array in (0, 1):
            return bool(array)
    raise BrokenContractError(f'{what} is {show_value(value)}', 'a bool', f'return bool({what})')


def flag_array(place: Place, what: str, values: ArrayLike) -> np.ndarray:
    """The flags [B] of a vector env as bools. Raises: EnvContractError that names the first env without a valid flag."""
    array = np.asarray(values)
    if array.dtype.kind == 'b' or array.ndim != 1:  # the caller refuses another shape
        return array
    flags = np.zeros(array.shape, dtype=bool)
    for i, value in enumerate(array):
        try:
            flags[i] = as_flag(what, value)
        except BrokenContractError as broken:
            raise place.error(i, *broken.args) from None
    return flags


def shapes_error(place: Place, n_env: int, **arrays: np.ndarray) -> EnvContractError:
    """The error for rewards or flags of a step, one of which is not one value for each env."""
    name, array = next((name, array) for name, array in arrays.items() if array.shape != (n_env,))
    kind = 'bool'
    if name == 'rewards':
        kind = 'float'
    do = f'return one {kind} for each env'
    return place.error(None, f'step returned {name} of shape {array.shape}', str((n_env,)), do)


def check_obs(
    obs: object, space: gymnasium.Space, casting: Literal['same_kind', 'unsafe'] = 'same_kind', path: str = ''
) -> None:
    """Checks the entries, shapes and types of one observation. Raises: BrokenContractError."""
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        if isinstance(space, gymnasium.spaces.Tuple):
            parts = {str(i): part for i, part in enumerate(space.spaces)}
        else:
            parts = {str(key): part for key, part in space.spaces.items()}
        what = f'the observation{of_entry(path)}'
        do = 'return what observation_space says'
        entries = entries_of(obs, parts, isinstance(space, gymnasium.spaces.Tuple), what, do)
        missing = [key for key in parts if key not in entries]
        if missing:
            wanted = f'{", ".join(map(repr, parts))} as in observation_space'
            raise BrokenContractError(f'{what} has no entry {missing[0]!r}', wanted, do)
        for key, part in parts.items():
            part_path = key
            if path:
                part_path = f'{path}.{key}'
            check_obs(entries[key], part, casting, part_path)
        return
    if space.shape is not None and not fits(obs, space.shape, space.dtype or float, casting):
        raise BrokenContractError(*bad_obs(obs, space.shape, path))


def fits(
    obs: object, shape: tuple[int, ...], dtype: DTypeLike, casting: Literal['same_kind', 'unsafe'] = 'same_kind'
) -> bool:
    """Whether an observation has this shape and numbers that can be cast to this dtype."""
    try:
        array = np.asarray(obs)
    except ValueError:  # a ragged list
        return False
    return array.shape == shape and array.dtype.kind in 'biuf' and np.can_cast(array.dtype, dtype, casting)


def entries_of(obs: object, names: Collection[str], is_tuple: bool, what: str, do: str) -> Mapping[str, Any]:
    """The entries of an observation of a Dict or Tuple space, by name; some entries of a Dict may be missing.

    Raises: BrokenContractError if it is no dict, or no tuple of that length.
    """
    if is_tuple and isinstance(obs, tuple) and len(obs) == len(names):
        return dict(zip(names, obs, strict=True))
    if is_tuple or not isinstance(obs, Mapping):
        wanted = f'a dict with {", ".join(map(repr, names))}'
        if is_tuple:
            wanted = f'a tuple of {len(names)}'
        raise BrokenContractError(f'{what} is {show_value(obs)}', f'{wanted} as in observation_space', do)
    return obs


def bad_obs(obs: object, shape: tuple[int, ...], path: str = '') -> tuple[str, str, str]:
    """(got, wanted, do) of an observation that is no array of numbers of this shape."""
    is_what = show_value(obs)
    if isinstance(obs, np.ndarray):
        is_what = f'of shape {obs.shape} and dtype {obs.dtype}'
    got = f'the observation{of_entry(path)} is {is_what}'
    wanted = f'numbers of shape {shape} as in observation_space'
    return got, wanted, reshaping(obs, shape) or 'correct one of the two'


def reshaping(obs: object, shape: tuple[int, ...], dtype: str = 'float32') -> str | None:
    """The remedy for numbers that are as many as wanted, in another shape; None for others."""
    try:
        array = np.asarray(obs)
    except ValueError:  # a ragged list
        return None
    if array.shape == shape or array.size != math.prod(shape) or array.dtype.kind not in 'biuf':
        return None
    if shape == (1,) and array.ndim == 0:
        return f'return np.array([x], dtype=np.{dtype}) for the number x'
    return f'return np.reshape(obs, {shape})'


def not_finite_error(
    place: Place, what: str, values: np.ndarray, sent: Actions | None, index: np.ndarray | None = None
) -> EnvError:
    """The error for observations or rewards [K, ...] that are not all finite; it blames the policy if its action was not.

    Args: sent: the actions of all envs, None after a reset; index: the env of each row, None: all envs.
    """
    row = int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0])
    env = row
    if index is not None:
        env = int(index[row])
    got = f'is {values[row]}'
    if np.ndim(values[row]) > 1:  # an image would fill the screen
        at = np.argwhere(~np.isfinite(values[row]))[0]
        got = f'has {values[row][tuple(at)]} at {at.tolist()}'
    wanted = 'finite numbers'
    if np.isnan(values[row]).all():
        wanted = 'finite numbers (None becomes nan)'
    scope = ''
    if place.restarts:
        scope = NOT_RESTARTED
    if sent is None:
        return EnvContractError(f'{place.of(env)}: {what} {got}, wanted {wanted}; fix the env, or wrap it{scope}.')
    action = action_of(sent, env)
    after = ' '.join(str(action).split())  # on one line, also for an array
    sentence = f'{place.of(env)}: {what} {got} after action {after}, wanted {wanted}; '
    if not _is_finite(action):
        return EnvError(f'{sentence}the action is not finite: look at the policy{scope}.')
    return EnvContractError(f'{sentence}fix the env, or wrap it{scope}.')


def action_of(sent: Any, env: int) -> Action:
    """The action of one env from a batch. sent: an array, or for Dict and Tuple a nested dict or tuple of arrays."""
    if isinstance(sent, dict):
        return {key: action_of(part, env) for key, part in sent.items()}
    if isinstance(sent, tuple):
        return tuple(action_of(part, env) for part in sent)
    return sent[env]


def n_action(sent: Actions) -> int:
    """The number of envs in a batch of actions."""
    while isinstance(sent, dict | tuple):
        if isinstance(sent, dict):
            sent = tuple(sent.values())
        sent = sent[0]
    return len(sent)


def check_n_action(sent: Actions, n_env: int) -> None:
    """Checks that there is one action for each env: a worker without an action would wait for it. Raises: ValueError."""
    n = n_action(sent)
    if n != n_env:
        raise ValueError(f'step got {n} actions for {n_env} envs')


def _is_finite(action: Action | None) -> bool:
    if isinstance(action, dict):
        return all(map(_is_finite, action.values()))
    if isinstance(action, tuple):
        return all(map(_is_finite, action))
    return bool(np.isfinite(np.asarray(action)).all())


def lost_mask_error(name: str, call: str) -> UnsupportedEnvError:
    """The error for masks in the info of a whole vector env, where env.action_mask=auto cannot use them."""
    return UnsupportedEnvError(
        f'env {name!r}: the info of {call} has {ACTION_MASK!r}, but of envs that step as one batch only an '
        f'entry {ACTION_MASK!r} of the observations is read; give them one, or use env.vectorization=sync if '
        'that env can be made alone, or env.action_mask=off.'
    )
