"""The process of one env: it answers the commands of a `WorkerVectorEnv` until it is told to close, or its parent ends."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import gymnasium
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import write_to_shared_memory

from zoo.core.action_map import Action
from zoo.core.errors import show_error
from zoo.core.processes import die_with_parent, leave_signals_to_parent
from zoo.env.attributes import EnvCommand, apply, outcome
from zoo.env.errors import BrokenContractError, as_flag, checked_call, raised_at
from zoo.env.infos import numbers_of, watched_of


class WorkerPlace(NamedTuple):
    """What a worker needs besides its env.

    memory: where the observations of all envs are, shared with the parent; env_index: the place of this env in it.
    spaces: of the first env, (observations, actions), which those of all must equal.
    is_main_thread: whether the thread that starts the worker is the parent's main thread.
    watched: entries of the infos that are sent with every step. options: of resets.
    commands: what an env that is made anew does first.
    """

    env_index: int
    memory: Any
    mode: AutoresetMode
    spaces: tuple[gymnasium.Space, gymnasium.Space]
    is_main_thread: bool
    watched: tuple[str, ...] = ()
    options: dict[str, Any] | None = None
    commands: tuple[EnvCommand, ...] = ()


class StepInfo(NamedTuple):
    """What of an env's info is sent with a step: the entries that are watched, and at an episode's end its numbers."""

    watched: dict[str, Any]
    last: dict[str, Any] | None


Step = tuple[Any, bool, bool, Any, StepInfo | None]


class Raised(NamedTuple):
    """An exception that ends a worker, in a form that can always be sent.

    pickled: the exception, if it is an Exception that can be pickled, else None.
    step: what the step returned, if it ended an episode and the reset after it raised, else None.
    """

    pickled: bytes | None
    words: str  # its type and message
    text: str  # its traceback
    at: str  # file:line of the env's code
    step: Step | None = None


def run_worker(place: WorkerPlace, make: Callable[[], gymnasium.Env], pipe: Connection, other_end: Connection) -> None:
    """Makes the env, then answers (True, result) or (False, Raised) to each command; after the latter it ends."""
    _die_with_parent(place.is_main_thread)
    leave_signals_to_parent(ends_at_sigterm=True)
    other_end.close()  # else the pipe would not break when the parent ends
    env = worker = None
    try:
        env = make()
        _check_spaces(env, place.spaces)
        for command in place.commands:
            apply(env, command)
        worker = _Worker(env, place)
        _answer(worker, pipe)
    except BaseException as error:  # even SystemExit: the parent says what became of the env
        _send_error(error, pipe, worker.complete if worker else None)
        with suppress(BaseException):
            if env is not None:
                env.close()


def _answer(worker: _Worker, pipe: Connection) -> None:
    result: object = None  # first: that the env was made
    while True:
        message = pickle.dumps((True, result), pickle.HIGHEST_PROTOCOL)
        try:
            pipe.send_bytes(message)
            command, data = pipe.recv()
        except (EOFError, OSError):  # the parent has ended
            command = 'close'
        if command == 'close':
            worker.env.close()
            return
        if command == 'step':
            result = worker.step(data)
        elif command == 'watch':
            result, worker.watched = None, data
        elif command == 'options':
            result, worker.options = None, data
        elif command == 'apply':
            result = outcome(worker.env, data)
        else:
            worker.reset(**data)
            result = None


def _send_error(error: BaseException, pipe: Connection, step: Step | None) -> None:
    pickled = None
    if isinstance(error, Exception):
        with suppress(Exception):  # it may refuse to be pickled
            pickled = pickle.dumps(error)
    with suppress(OSError):
        pipe.send((False, Raised(pickled, show_error(error), traceback.format_exc(), raised_at(error), step)))


class _Worker:
    """An env whose results are looked at here; of its infos only what is wanted is sent.

    Attributes: watched: entries of the infos that every step sends. options: of resets. complete: what a step that ended an
      episode returned, while the reset after it runs; else None.
    """

    complete: Step | None = None

    def __init__(self, env: gymnasium.Env, place: WorkerPlace) -> None:
        self.env, self._place, self.watched, self.options = env, place, place.watched, place.options
        self._ended = False

    def reset(self, **kwargs: Any) -> None:
        if self.options is not None:
            kwargs['options'] = self.options
        obs, _ = checked_call('reset', self._place.spaces[0], self.env.reset, **kwargs)
        self._write(obs)
        self._ended = False

    def step(self, action: Action) -> Step:
        """reward, terminated, truncated, in mode same_step the last observation of an episode, else None; wanted infos."""
        mode = self._place.mode
        if self._ended and mode == AutoresetMode.NEXT_STEP:
            self.reset()
            return 0.0, False, False, None, None
        result = checked_call('step', self._place.spaces[0], self.env.step, action)
        obs, reward, terminated, truncated, info = result
        terminated, truncated = as_flag('terminated', terminated), as_flag('truncated', truncated)
        is_over = terminated or truncated
        sent = self._wanted(info, is_over) if info and (is_over or self.watched) else None
        if is_over and mode == AutoresetMode.SAME_STEP:
            complete = reward, terminated, truncated, deepcopy(obs), sent  # the reset may write into it
            self.complete = complete
            self.reset()
            self.complete = None
            return complete
        self._ended = is_over
        self._write(obs)
        return reward, terminated, truncated, None, sent

    def _wanted(self, info: object, is_over: bool) -> StepInfo | None:
        watched, last = watched_of(self.watched, info), numbers_of(info) if is_over else None
        return StepInfo(watched, last) if watched or last else None

    def _write(self, obs: Any) -> None:
        write_to_shared_memory(self._place.spaces[0], self._place.env_index, obs, self._place.memory)


def _check_spaces(env: gymnasium.Env, spaces: tuple[gymnasium.Space, gymnasium.Space]) -> None:
    for what, wanted in zip(('observation_space', 'action_space'), spaces, strict=True):
        space = getattr(env, what)
        if space != wanted:
            raise BrokenContractError(
                f'its {what} is {space}', f'that of the first env, {wanted}', 'make all envs alike'
            )


def _die_with_parent(is_main_thread: bool) -> None:
    """Ends this process when its parent ends."""
    parent = multiprocessing.parent_process()
    if parent is None:  # called in the main process
        return

    def has_ended(seconds: float) -> bool:
        parent.join(seconds)
        return not parent.is_alive()

    die_with_parent(parent.pid or 0, is_main_thread, has_ended)
