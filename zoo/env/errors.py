"""Errors of envs, which name the env, the step, the fault and the remedy; checks of what envs return; a record of the
running calls of env code, for the watch on them; restarts and closing."""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from zoo.core.action_map import Action, Actions
from zoo.core.errors import RunError, UserError, of_entry, show_error
from zoo.core.processes import STOP_REQUESTS
from zoo.core.spaces import ACTION_MASK

STOPS = STOP_REQUESTS
"""Exceptions that ask the process to stop. Any other exception that leaves env code, BaseExceptions too, is the env's failure."""
CONSTRUCTION_CALLS = 10.0  # the construction of an env may take 10 times as long as a step


@dataclass
class CallRecord:
    """Record of the call of env code that one thread is in; the code that makes the call writes it.

    Attributes:
      place: function from an env's index to the words for that env in messages; None: no env code runs.
      index: of the env whose code runs.   count: calls that have ended.
      n_timeout: time limit of the call, in multiples of env.step_timeout.   is_watched: whether a watch observes the thread.
    """

    place: Callable[[int | None], str] | None = None
    index: int | None = None
    count: int = 0
    n_timeout: float = 1.0
    is_watched: bool = False

    def state(self) -> tuple[Callable[[int | None], str], int | None, int] | None:
        """A value that is different for each call; None outside of calls."""
        if self.place is None:
            return None
        return self.place, self.index, self.count


CALLS: dict[int, CallRecord] = defaultdict(CallRecord)  # of each thread, by threading.get_ident()


@contextmanager
def env_call(where: str, n_timeout: float = 1.0) -> Iterator[None]:
    """Context that records a call of env code, for calls that are rare. where: the words for the env in messages."""
    calls = CALLS[threading.get_ident()]
    outer = calls.place, calls.index, calls.n_timeout
    calls.place = lambda index: where
    calls.index = None
    calls.n_timeout = n_timeout
    try:
        yield
    finally:
        calls.place, calls.index, calls.n_timeout = outer
        calls.count += 1


RESET_DO = 'write `def reset(self, *, seed=None, options=None)` that returns `obs, info`'
_PART = re.compile(r'\[(\d+):\d+\]$')  # the envs of a group among all envs, see `make_vector_env`
STEP_DO = '`return obs, reward, terminated, truncated, info`'


class EnvError(RunError):
    """An env failed, or returned something that a run cannot continue with."""


class NoAnswerError(EnvError):
    """A call of an env did not return in time."""


class EnvContractError(EnvError):
    """An env breaks the gymnasium interface."""


class BrokenContractError(Exception):
    """A result of one env breaks the interface: (got, wanted, do), without the env's name, index and step."""


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker: the cause of that exception when the main process raises it again.

    Attributes: at: file:line of the env's code that raised it.
    """

    def __init__(self, index: int | None, text: str, at: str = '') -> None:
        super().__init__(f'in the worker of index {index}\n{text}')
        self.at = at


class UnknownEnvError(EnvError, UserError):
    """An env id for which there is no env."""


class UnsupportedEnvError(EnvError, UserError):
    """An env whose spaces zoo does not know, or that lacks the vectorization or autoreset mode of the config."""


class EnvSettingError(UnsupportedEnvError):
    """A value of env.schedule or env.reset_options that the envs do not take.

    Args: key: such as 'schedule.wind'; said: the rest of the sentence after the key; where: the section with the key.
    """

    def __init__(self, key: str, said: str, where: str = 'env') -> None:
        self.key = key
        self.said = said
        super().__init__(f'{where}.{key}{said}')

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.key, self.said, str(self)[: -len(self.key) - len(self.said) - 1])


class EnvKwargsError(EnvError, UserError):
    """env.kwargs that the env's constructor does not take."""


class MissingExtraError(EnvError, UserError):
    """An env whose optional dependency is not installed."""


@contextmanager
def locate(where: str) -> Iterator[None]:
    """Context for the construction of envs: adds `where` to exceptions of their code, see `add_place`."""
    try:
        with env_call(where, CONSTRUCTION_CALLS):
            yield
    except STOPS:
        raise
    except BaseException as error:
        add_place(error, where)
        raise


def add_place(error: BaseException, where: str) -> None:
    """Adds `where` to an exception of an env's own code, unless it has a place already; zoo's own errors name the env.

    The place becomes a note of the exception, and its attribute `env_place`: the command line makes a sentence of it.
    Raises: EnvError in place of a SystemExit, StopIteration or other exception that is no Exception: those would end the run,
      or a loop of it, without a message. A request to stop (STOPS) stays as it is.
    """
    if isinstance(error, STOPS):
        return
    at = raised_at(error)
    if isinstance(error, StopIteration) or not isinstance(error, Exception):
        words = f'{where}: its code raised {show_error(error)} at {at}; raise an error, or end the episode.'
        # contextlib takes a RuntimeError that a StopIteration caused for that StopIteration
        raise EnvError(words) from (None if isinstance(error, StopIteration) else error)
    if isinstance(error, RunError | UserError) or hasattr(error, 'env_place'):
        return
    error.env_place = where, at  # type: ignore[attr-defined]
    if hasattr(error, 'add_note'):  # from Python 3.11 on
        error.add_note(f'in {where}')


def add_hint(error: BaseException, hint: str) -> None:
    """Adds a remedy to an exception of an env's own code: the command line ends its sentence with it."""
    if not hasattr(error, 'env_place'):
        return
    error.env_hint = hint  # type: ignore[attr-defined]
    if hasattr(error, 'add_note'):  # from Python 3.11 on
        error.add_note(hint)


_LIBRARIES = (
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ''),  # zoo
    *(os.path.join(os.path.dirname(str(module.__file__)), '') for module in (gymnasium, np)),
)
_STANDARD = os.path.join(os.path.dirname(os.__file__), '')


def raised_at(error: BaseException) -> str:
    """file:line in the env's code where an exception came from; the innermost line if all code is from libraries."""
    if isinstance(error.__cause__, WorkerTraceback):
        return error.__cause__.at
    lines: list[tuple[str, int]] = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [(file, line) for file, line in lines if not file.startswith((*_LIBRARIES, '<'))]
    return ':'.join(map(str, (own or lines or [('unknown', 0)])[-1]))


def own_line(stack: FrameType | None) -> str:
    """file:line in the env's code where a running thread is; the innermost line if all code is from libraries."""
    lines: list[tuple[str, int]] = []
    while stack is not None and not (lines and stack.f_code.co_filename.startswith(_LIBRARIES[0])):
        lines.append((stack.f_code.co_filename, stack.f_lineno))
        stack = stack.f_back
    own = [(file, line) for file, line in lines if not file.startswith((*_LIBRARIES, _STANDARD, '<'))]
    return ':'.join(map(str, (own or lines)[0]))


def made_at(name: str, index: int | None = None) -> str:
    """The words in messages for an env that was being made."""
    return f'env {name!r}{"" if index is None else f", index {index}"}, while it was made'


def show_value(value: object) -> str:
    """A value on one line, with its type."""
    text = ' '.join(repr(value).split())
    return f'{text if len(text) <= 80 else text[:77] + "..."} ({type(value).__name__})'


NOT_RESTARTED = ' (env.on_error=restart replaces an env that raises, hangs or dies, not one that returns a wrong value)'


@dataclass
class Place:
    """The name of a vector env and its current step, for messages."""

    name: str
    step: int = 0
    restarts: bool = False  # env.on_error=restart

    def of(self, index: int | None) -> str:
        """The words for one env of the vector and the step; in a group 'name[4:8]' also for its index among all envs."""
        part = _PART.search(self.name)
        of_all = ''
        if part and index is not None:
            of_all = f' ({int(part[1]) + index} of all)'
        return f'env {self.name!r}{"" if index is None else f", index {index}{of_all}"}, step {self.step}'

    def error(self, index: int | None, got: str, wanted: str, do: str) -> EnvContractError:
        """The EnvContractError for the env at `index`, or for the whole vector if `index` is None."""
        scope = ''
        if self.restarts:
            scope = NOT_RESTARTED
        return EnvContractError(f'{self.of(index)}: {got}, wanted {wanted}; {do}{scope}.')


MIN_CLOSE_S = 1.0  # seconds that each env has to close, even after the time for all is over
logger = logging.getLogger(__name__)


def close_in_time(closes: Mapping[str, Callable[[], object]], timeout: float, level: int = logging.WARNING) -> None:
    """Calls functions that close envs, one after the other, and warns of those that raise or hang.

    Each function runs in a thread of its own. A thread that takes too long is abandoned, and ends with the process.
    Args: closes: the functions, by the words for their envs; timeout: seconds for all of them together; level: of the log.
    """
    deadline = time.monotonic() + timeout
    failed: dict[str, list[str]] = {}  # the places, by what they failed with
    for place, close in closes.items():
        raised: list[BaseException] = []
        thread = threading.Thread(target=_close, args=(close, raised), name=f'close {place}', daemon=True)
        thread.start()
        seconds = max(deadline - time.monotonic(), MIN_CLOSE_S)
        thread.join(seconds)
        if thread.is_alive():
            failed.setdefault(f'close has not returned after {seconds:.3g} s and is left alone', []).append(place)
        elif raised:
            failed.setdefault(f'close raised {show_error(raised[0])}', []).append(place)
    for words, places in failed.items():
        logger.log(level, '%s', close_words(places[0], words, len(places)))


def close_words(place: str, words: str, n_env: int) -> str:
    """A sentence about envs whose close fails in the same way. place: of the first; n_env: how many."""
    others = ''
    if n_env > 1:
        others = f' and {n_env - 1} more'
    return f'{place}{others}: {words}; fix the env'


def _close(close: Callable[[], object], raised: list[BaseException]) -> None:
    try:
        close()
    except BaseException as error:  # also SystemExit, which in a thread ends nothing
        raised.append(error)


BROKEN = 'broken'  # key of the infos of a vector env: [B] bool, the env failed in this step and was recreated
# the calls in which a recreated env may fail again
CONSTRUCTION = 'its construction'
RESET = 'its reset'
RAW = 'raw_reward_and_end'  # metadata key of a vector env whose info has RAW_REWARD and RAW_END at every step
RAW_REWARD = 'raw_reward'
RAW_END = 'raw_end'
N_LOGGED = 10  # the first restarts are logged one by one; later only every hundredth


class Restarts:
    """Counts the failed envs that were recreated, over all vector envs of a run.

    Args: limit: the largest number of restarts. Attributes: count: restarts so far.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0

    def note(self, where: str, cause: BaseException) -> None:
        """Counts a restart, before the env is recreated.

        Args: where: name and index of the env, and when it failed; cause: its exception, or an error about its process.
        Raises: EnvError if the limit was reached before; `cause` itself if the env breaks the gymnasium interface.
        """
        if isinstance(cause, BrokenContractError | EnvContractError):
            raise cause
        if isinstance(cause, EnvError):
            words = str(cause)
        else:
            words = f'{where}: {show_error(cause)} ({raised_at(cause)})'
        if self.count >= self.limit:
            raise EnvError(
                f'{words.rstrip(".;")}; envs were made anew {self.count} times before, wanted at most {self.limit} times in '
                'a run; fix the env, or raise env.max_restarts.'
            ) from cause
        self.count += 1
        if self.count <= N_LOGGED or self.count % 100 == 0:
            logger.warning(
                '%s; it is made anew (%d of at most %d restarts)', words.rstrip('.;'), self.count, self.limit
            )


Seeds = int | Sequence[int | None] | None  # of a reset of several envs


def seeds_of(seed: Seeds, n_env: int) -> list[int | None]:
    """One seed for each env, as in gymnasium: from an int seed, seed + 1, seed + 2 and so on."""
    if isinstance(seed, int):
        return list(range(seed, seed + n_env))
    return list(seed or [None] * n_env)


def restart_seed(seed: int | None, count: int) -> int | None:
    """The seed of a recreated env, from the seed of the failed env and the number of restarts; None if that seed is None."""
    if seed is None:
        return None
    return int(np.random.SeedSequence((seed, count)).generate_state(1)[0]) >> 1


def check_spaces(env: gymnasium.Env, spaces: tuple[gymnasium.Space, gymnasium.Space]) -> None:
    """Checks that an env has the spaces (observations, actions) of the first env. Raises: BrokenContractError."""
    for what, wanted in zip(('observation_space', 'action_space'), spaces, strict=True):
        space = getattr(env, what)
        if space != wanted:
            raise BrokenContractError(
                f'its {what} is {space}', f'that of the first env, {wanted}', 'make all envs alike'
            )


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


def raise_if_contract(error: BaseException, vector: gymnasium.vector.VectorEnv, place: Place) -> None:
    """Raises an EnvContractError if a wrong result of an env caused `error`; else only adds the env's place to `error`.

    The index is known for zoo's own vector envs: they set `failed_index`, and have separated the two cases before.
    """
    if isinstance(error, EnvError):
        return
    index = getattr(vector, 'failed_index', None)
    try:
        if index is None or isinstance(error, BrokenContractError):
            raise_if_broken(error, 'reset' if place.step == 0 else 'step')
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
        wanted = f'a tuple of {2 if call == "reset" else 5}'
    else:
        if result is not None and space is not None:
            check_result(call, result, space)
        got = f'{call} returned what cannot be used ({show_error(error)})'
        wanted = 'what the gymnasium interface asks for'
    raise BrokenContractError(got, wanted, RESET_DO if call == 'reset' else STEP_DO) from error


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
        raise BrokenContractError(f'info is {show_value(info)}', 'a dict', RESET_DO if call == 'reset' else STEP_DO)
    check_obs(obs, space, 'unsafe')


def bad_reward(reward: object) -> tuple[str, str, str]:
    """(got, wanted, do) of a reward that is no number."""
    do = 'return float(reward)'
    if isinstance(reward, np.ndarray | list | tuple) and fits(reward, (len(reward),), np.float64) and len(reward) > 1:
        weights = ', '.join(['1.0'] * len(reward))
        do = (
            f'set env.reward_weights=[{weights}] (with your own weights, of which the reward is the weighted sum), or wrap the '
            'env, as by env.wrappers=[mo_gymnasium.wrappers:LinearReward]'
        )
    return f'the reward is {show_value(reward)}', 'a number', do


FLAGS = frozenset((bool, np.bool_))  # types of a flag that need no further check


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


def shapes_error(place: Place, n_env: int, **given: np.ndarray) -> EnvContractError:
    """The error for rewards or flags of a step, one of which is not one value for each env."""
    what, array = next((what, array) for what, array in given.items() if array.shape != (n_env,))
    do = f'return one {"float" if what == "rewards" else "bool"} for each env'
    return place.error(None, f'step returned {what} of shape {array.shape}', str((n_env,)), do)


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
            check_obs(entries[key], part, casting, f'{path}.{key}' if path else key)
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
        if is_tuple:
            wanted = f'a tuple of {len(names)}'
        else:
            wanted = f'a dict with {", ".join(map(repr, names))}'
        raise BrokenContractError(f'{what} is {show_value(obs)}', f'{wanted} as in observation_space', do)
    return obs


def bad_obs(obs: object, shape: tuple[int, ...], path: str = '') -> tuple[str, str, str]:
    """(got, wanted, do) of an observation that is no array of numbers of this shape."""
    if isinstance(obs, np.ndarray):
        got = f'of shape {obs.shape} and dtype {obs.dtype}'
    else:
        got = show_value(obs)
    wanted = f'numbers of shape {shape} as in observation_space'
    return f'the observation{of_entry(path)} is {got}', wanted, reshaping(obs, shape) or 'correct one of the two'


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
    if index is None:
        env = row
    else:
        env = int(index[row])
    if sent is None:
        action = None
    else:
        action = action_of(sent, env)
    # on one line, also for an array
    if sent is None:
        after = ''
    else:
        after = f' after action {" ".join(str(action).split())}'
    blame_policy = sent is not None and not _is_finite(action)
    if blame_policy:
        cause = 'the action is not finite: look at the policy'
    else:
        cause = 'fix the env, or wrap it'
    none = ''
    if np.isnan(values[row]).all():
        none = ' (None becomes nan)'
    got = f'is {values[row]}'
    if np.ndim(values[row]) > 1:  # an image would fill the screen
        at = np.argwhere(~np.isfinite(values[row]))[0]
        got = f'has {values[row][tuple(at)]} at {at.tolist()}'
    if blame_policy:
        kind = EnvError
    else:
        kind = EnvContractError
    scope = ''
    if place.restarts:
        scope = NOT_RESTARTED
    return kind(f'{place.of(env)}: {what} {got}{after}, wanted finite numbers{none}; {cause}{scope}.')


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
        sent = next(iter(sent.values() if isinstance(sent, dict) else sent))
    return len(sent)


def check_n_action(sent: Actions, n_env: int) -> None:
    """Checks that there is one action for each env: a worker without an action would wait for it. Raises: ValueError."""
    n = n_action(sent)
    if n != n_env:
        raise ValueError(f'step got {n} actions for {n_env} envs')


def _is_finite(action: Action | None) -> bool:
    if isinstance(action, dict | tuple):
        return all(map(_is_finite, action.values() if isinstance(action, dict) else action))
    return bool(np.isfinite(np.asarray(action)).all())


def lost_mask_error(name: str, call: str) -> UnsupportedEnvError:
    """The error for masks in the info of a whole vector env, where env.action_mask=auto cannot use them."""
    return UnsupportedEnvError(
        f'env {name!r}: the info of {call} has {ACTION_MASK!r}, but of envs that step as one batch only an '
        f'entry {ACTION_MASK!r} of the observations is read; give them one, or use env.vectorization=sync if '
        'that env can be made alone, or env.action_mask=off.'
    )
