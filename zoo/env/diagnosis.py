"""From an exception in the middle of a vector step to the env that broke the contract, and how."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import re
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

from zoo.env.errors import RESET_DO, STEP_DO, EnvContractError, EnvError, contract_error, show, where
from zoo.env.workers import WorkerTraceback

# What numpy and gymnasium raise when they are handed what no env may return, and what an env is likely to raise itself.
RAW_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

_GYMNASIUM = os.path.dirname(gymnasium.__file__)
_BETWEEN = (  # code between a vector step and an env; an exception from here means that it was handed a wrong value
    *(os.path.join(_GYMNASIUM, part, '') for part in ('vector', 'wrappers', 'spaces')),
    *(os.path.join(os.path.dirname(path), '') for path in (__file__, np.__file__, multiprocessing.__file__)),
    os.path.join(_GYMNASIUM, 'core.py'),
    functools.__file__,
    contextlib.__file__,
)


def raise_if_contract(error: Exception, vector: gymnasium.vector.VectorEnv, name: str, step: int) -> None:
    """Raise the EnvContractError behind `error`; if the env's own code raised it, only add a note that says where."""
    if isinstance(error, EnvError):
        return
    frames = _frames(error)
    worker = error.__cause__ if isinstance(error.__cause__, WorkerTraceback) else None
    index = _index(frames, vector) if worker is None else worker.index
    files = (
        [frame.f_code.co_filename for frame in frames]
        if worker is None
        else re.findall(r'^ +File "(.*?)", line', worker.text, re.MULTILINE)
    )
    if not all(file.startswith(_BETWEEN) for file in files):
        if hasattr(error, 'add_note'):  # from Python 3.11 on
            error.add_note(f'in {where(name, index, step)}')
        return
    raise (
        _bad_info(frames, name, step)
        or _bad_flag(worker, frames, name, step)
        or _bad_count(error, frames, name, index, step)
        or _bad_obs(error, frames, files, vector, name, index, step)
        or _bad_result(error, frames, vector, name, index, step)
    ) from error


def bad_obs(name: str, index: int | None, step: int, obs: Any, shape: tuple[int, ...]) -> EnvContractError:
    """The error of an observation that is no array of numbers of this shape."""
    got = show(obs) if not isinstance(obs, np.ndarray) else f'of shape {obs.shape} and dtype {obs.dtype}'
    return contract_error(
        name,
        index,
        step,
        f'the observation is {got}',
        f'numbers of shape {shape} as in observation_space',
        'correct one of the two',
    )


def _frames(error: Exception) -> list[FrameType]:
    """Outermost first, from the vector step on."""
    trace, frames = error.__traceback__, []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames


def _index(frames: list[FrameType], vector: gymnasium.vector.VectorEnv) -> int | None:
    """Where a SyncVectorEnv was in its loop over the envs."""
    loops = [frame.f_locals.get('i') for frame in frames if frame.f_locals.get('self') is vector]
    return loops[-1] if loops and isinstance(vector, SyncVectorEnv) else None


def _call(frames: list[FrameType]) -> tuple[str, str]:
    is_reset = frames[0].f_code.co_name == 'reset' or 'reset' in [frame.f_code.co_name for frame in frames[-2:]]
    return ('reset', RESET_DO) if is_reset else ('step', STEP_DO)


def _bad_info(frames: list[FrameType], name: str, step: int) -> EnvContractError | None:
    adds = [frame.f_locals for frame in frames if frame.f_code.co_name == '_add_info']
    if not adds or isinstance(adds[0]['env_info'], dict):
        return None
    return contract_error(
        name, adds[0]['env_num'], step, f'info is {show(adds[0]["env_info"])}', 'a dict', _call(frames)[1]
    )


def _bad_flag(worker: WorkerTraceback | None, frames: list[FrameType], name: str, step: int) -> EnvContractError | None:
    """A reward or flag that is no single value, where all workers sent theirs."""
    for frame in frames if worker is None else ():
        if frame.f_code.co_name == 'step_wait':
            for what, values in (
                ('the reward', 'rewards'),
                ('terminated', 'terminations'),
                ('truncated', 'truncations'),
            ):
                for index, value in enumerate(frame.f_locals.get(values, ())):
                    if not _is_single(value):
                        return contract_error(
                            name,
                            index,
                            step,
                            f'{what} is {show(value)}',
                            'a number' if values == 'rewards' else 'a bool',
                            STEP_DO,
                        )
    return None


def _bad_count(
    error: Exception, frames: list[FrameType], name: str, index: int | None, step: int
) -> EnvContractError | None:
    if 'unpack' not in str(error):
        return None
    call, do = ('reset', RESET_DO) if 'expected 2' in str(error) else _call(frames)
    return contract_error(
        name,
        index,
        step,
        f'{call} returned another number of values ({error})',
        f'a tuple of {2 if call == "reset" else 5}',
        do,
    )


def _bad_obs(
    error: Exception,
    frames: list[FrameType],
    files: list[str],
    vector: gymnasium.vector.VectorEnv,
    name: str,
    index: int | None,
    step: int,
) -> EnvContractError | None:
    if any(file.endswith('shared_memory.py') for file in files):  # the observation itself stayed in the worker
        return contract_error(
            name,
            index,
            step,
            f'the observation does not fit observation_space ({error})',
            f'numbers of shape {vector.single_observation_space.shape}',
            'correct one of the two',
        )
    if any(file.endswith('space_utils.py') for file in files):
        space = vector.single_observation_space
        for i, obs in enumerate(getattr(vector, '_env_obs', ())):
            if not _fits(obs, space):
                return bad_obs(name, i, step, obs, space.shape or ())
        return _bad_result(error, frames, vector, name, None, step)  # the loop over the envs was over
    return None


def _fits(obs: Any, space: gymnasium.Space) -> bool:
    try:
        array = np.asarray(obs)
    except ValueError:  # a ragged list
        return False
    return array.shape == space.shape and np.can_cast(array.dtype, space.dtype or float, 'same_kind')


def _bad_result(
    error: Exception,
    frames: list[FrameType],
    vector: gymnasium.vector.VectorEnv,
    name: str,
    index: int | None,
    step: int,
) -> EnvContractError:
    call, do = _call(frames)
    if isinstance(vector, SyncVectorEnv) and frames[-1].f_locals.get('self') is vector:  # it puts them into arrays
        return contract_error(
            name,
            index,
            step,
            f'the reward, terminated or truncated is no single value ({error})',
            'a number and two bools',
            do,
        )
    return contract_error(
        name,
        index,
        step,
        f'{call} returned what cannot be used ({type(error).__name__}: {error})',
        'what the gymnasium interface asks for',
        do,
    )


def _is_single(value: Any) -> bool:
    return isinstance(value, (bool, int, float, np.number, np.bool_)) or getattr(value, 'shape', None) == ()
