"""Says which env of a vector broke the gymnasium interface, at which step, and how."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Literal

import gymnasium
import numpy as np

from zoo.env.errors import (
    RESET_DO,
    STEP_DO,
    BrokenContractError,
    EnvContractError,
    EnvError,
    contract_error,
    location_of,
    show_value,
)

# What numpy and gymnasium raise for a wrong value, and what an env is likely to raise itself.
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


def raise_if_contract(error: Exception, vector: gymnasium.vector.VectorEnv, name: str, step: int) -> None:
    """Raise the EnvContractError behind `error`; if the env's own code raised it, only add a note that says where.

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
    if hasattr(error, 'add_note'):  # from Python 3.11 on
        error.add_note(f'in {location_of(name, index, step)}')


def raise_if_broken(error: Exception, call: Literal['reset', 'step'], result: Any = None, space: Any = None) -> None:
    """Raise a BrokenContractError if `error` comes from what an env returned, and not from the env's own code.

    Args: result: what the call returned, if it returned.   space: the observation space of that env.
    """
    if isinstance(error, BrokenContractError):
        raise error
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not all(file.startswith(_BETWEEN) for file in files):
        return
    if 'unpack' in str(error):
        call = 'reset' if 'expected 2' in str(error) else call
        got, wanted = f'{call} returned another number of values ({error})', f'a tuple of {2 if call == "reset" else 5}'
    else:
        if result is not None:
            check_result(result, space)
        got = f'{call} returned what cannot be used ({type(error).__name__}: {error})'
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
    for what, value in zip(('the reward', 'terminated', 'truncated'), values, strict=False):
        if not (isinstance(value, (bool, int, float)) or getattr(value, 'shape', None) == ()):
            wanted = 'a number' if what == 'the reward' else 'a bool'
            raise BrokenContractError(f'{what} is {show_value(value)}', wanted, do)
    if not isinstance(info, dict):
        raise BrokenContractError(f'info is {show_value(info)}', 'a dict', do)
    check_obs(obs, space, 'unsafe')


def check_obs(obs: Any, space: gymnasium.Space, casting: Literal['same_kind', 'unsafe'] = 'same_kind') -> None:
    """Look at the shape and the type of one observation. Raises: BrokenContractError."""
    try:
        array = np.asarray(obs)
        is_number = array.dtype.kind in 'biuf' and np.can_cast(array.dtype, space.dtype or float, casting)
    except ValueError:  # a ragged list
        is_number = False
    if space.shape is not None and not (is_number and array.shape == space.shape):
        raise BrokenContractError(*_bad_obs(obs, space.shape))


def bad_obs(name: str, index: int | None, step: int, obs: Any, shape: tuple[int, ...]) -> EnvContractError:
    """The error of an observation that is no array of numbers of this shape."""
    return contract_error(name, index, step, *_bad_obs(obs, shape))


def _bad_obs(obs: Any, shape: tuple[int, ...]) -> tuple[str, str, str]:
    got = f'of shape {obs.shape} and dtype {obs.dtype}' if isinstance(obs, np.ndarray) else show_value(obs)
    wanted = f'numbers of shape {shape} as in observation_space'
    return f'the observation is {got}', wanted, 'correct one of the two'


def not_finite_error(
    where: Callable[[int, np.ndarray | None], str],
    what: str,
    values: np.ndarray,
    sent: np.ndarray | None,
    index: np.ndarray | None = None,
) -> EnvError:
    """The error for observations or rewards [K, ...] of which one is not finite; it blames a policy that began it.

    Args: where: names env and step of a row; sent: the actions of all envs; index: which envs the rows are of.
    """
    row = int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0])
    env = row if index is None else int(index[row])
    after = '' if sent is None else f' after action {sent[env]}'
    blame_policy = sent is not None and not np.isfinite(sent[env]).all()
    cause = 'the action is not finite: look at the policy' if blame_policy else 'fix the env, or wrap it'
    none = ' (None becomes nan)' if np.isnan(values[row]).all() else ''
    got = f'is {values[row]}'
    if np.ndim(values[row]) > 1:  # an image would fill the screen
        at = np.argwhere(~np.isfinite(values[row]))[0]
        got = f'has {values[row][tuple(at)]} at {at.tolist()}'
    kind = EnvError if blame_policy else EnvContractError
    return kind(f'{where(row, index)}: {what} {got}{after}, wanted finite numbers{none}; {cause}.')


def wrong_shape_error(
    name: str, step: int, obs_shape: tuple[int, ...], lead: tuple[int, ...], returned: Mapping[str, Any]
) -> EnvContractError:
    """The error for the first of the arrays that `step` returned which has a wrong shape."""
    remedies = {
        'observations': 'make them fit its single_observation_space',
        'rewards': 'return one float for each reward',
    }
    wanted = {what: obs_shape if what == 'observations' else lead for what in returned}
    what = next(what for what, values in returned.items() if np.shape(values) != wanted[what])
    got = f'step returned {what} of shape {np.shape(returned[what])}'
    return contract_error(name, None, step, got, str(wanted[what]), remedies.get(what, 'return one bool for each env'))
