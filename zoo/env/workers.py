"""Envs that step in parallel, each in a process of its own; if one dies, hangs or raises, the error names it.

The first half runs in the main process. The second half, from `run_worker` on, is the process of one env: it answers the
commands of a `WorkerVectorEnv` until it is told to close, or its parent ends.
"""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import (
    CloudpickleWrapper,
    batch_space,
    clear_mpi_env_vars,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)

from zoo.config.section import own_copy
from zoo.core.action_map import Action, Actions
from zoo.core.errors import pickled_error, show_error, unpickled_error
from zoo.core.processes import die_with_parent, leave_signals_to_parent
from zoo.env.adapter import takes_options
from zoo.env.calls import CONSTRUCTION_CALLS, locate
from zoo.env.closing import close_in_time, close_sentence
from zoo.env.errors import BrokenContractError, EnvError, Place, WorkerTraceback, add_place, made_at, raised_at
from zoo.env.infos import BROKEN, FINAL_INFO, FINAL_OBS, add_requested, last_obs, numbers_of, requested_of
from zoo.env.interface import EnvCommand
from zoo.env.restarts import CONSTRUCTION, RESET, Restarts
from zoo.env.seeded import Seeds, for_start, restart_seed, seeds_of
from zoo.env.settings import apply, outcome, result, sendable
from zoo.env.validation import as_flag, check_n_action, check_spaces, checked_call

GRACE = 2.0  # seconds to wait for a worker to end, after its pipe broke or it was told to close
POLL_S = 0.25  # limit of one poll of a pipe
SUSPENDED_S = 1.0  # a poll that is this late means that we were stopped

logger = logging.getLogger(__name__)


Wanted = tuple[tuple[str, ...], dict[str, Any] | None]
"""(entries of the infos that are sent with every step, options of resets)."""


class WorkerSetup(NamedTuple):
    """The data that a worker needs in addition to its env.

    memory: shared with the parent, has the observations of all envs; env_index: the place of this env in it.
    spaces: (observations, actions) of the first env; the spaces of all envs must be equal to them.
    is_main_thread: whether the thread that starts the worker is the parent's main thread.
    commands: applied to the env before its first reset, for an env that was recreated.
    """

    env_index: int
    memory: Any
    mode: AutoresetMode
    spaces: tuple[gymnasium.Space, gymnasium.Space]
    is_main_thread: bool
    wanted: Wanted = (), None
    commands: tuple[EnvCommand, ...] = ()


StepInfo = tuple[dict[str, Any], dict[str, Any] | None]
"""The part of an env's info that is sent with a step: (requested entries, at the end of an episode the info's numbers)."""
Step = tuple[Any, bool, bool, Any, StepInfo | None]
NO_STEP: Step = 0.0, False, False, None, None


class Raised(NamedTuple):
    """An exception that ends a worker, in a form that can always be sent.

    pickled: the exception, if it is an Exception that can be pickled, else None.
    step: the result of the step, if it ended an episode and the reset after it raised, else None.
    """

    pickled: bytes | None
    message: str  # its type and message
    text: str  # its traceback
    at: str  # file:line of the env's code
    step: Step | None = None


Fault = Raised | Literal['late', 'dead']


class Answers(NamedTuple):
    """The answers of some workers. broken: indices of episodes that broke off, whose result is NO_STEP."""

    results: list[Any]
    broken: list[int]


class WorkerVectorEnv(gymnasium.vector.VectorEnv):
    """Envs in processes, whose reset and step wait no longer than `timeout` seconds.

    Observations come through shared memory: each step overwrites the observations of the step before.

    Args: restarts: counts envs that fail and are recreated, with their process; None: a failure is raised.
    Attributes: failed_index: the env whose reset or step raised, or returned an invalid result. processes: of the envs.
      commands: those that a recreated env gets again, by the attributes that they set.
    """

    steps_async = True
    has_deadlines = True  # of its own, so that the watch on calls is not needed
    failed_index: int | None = None

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        autoreset_mode: AutoresetMode,
        timeout: float,
        name: str,
        restarts: Restarts | None = None,
    ) -> None:
        super().__init__()
        self.num_envs = len(env_fns)
        self._env_fns = env_fns
        self._n_start = [0] * len(env_fns)  # processes started for each env
        self._timeout = timeout
        self._name = name
        self._restarts = restarts
        self._mode = autoreset_mode
        with locate(made_at(name, 0)):
            first = env_fns[0]()  # for its spaces
            self.single_observation_space = first.observation_space
            self.single_action_space = first.action_space
            self.metadata = {**first.metadata, 'autoreset_mode': autoreset_mode}
            self.render_mode = first.render_mode
            self.takes_options = takes_options(first)
        close_in_time({f'env {name!r}, index 0': first.close}, timeout)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._context = multiprocessing.get_context()
        context: Any = self._context  # gymnasium's annotation names the module
        self._memory = create_shared_memory(self.single_observation_space, self.num_envs, ctx=context)
        self._observations = read_from_shared_memory(self.single_observation_space, self._memory, self.num_envs)
        self._seeds: list[int | None] = [None] * self.num_envs
        self._step_count = 0
        self._is_stepping = False
        self._lost: list[int] = []  # envs recreated since the last step; the next step reports them as broken
        self._wanted: Wanted = (), None
        self.commands: dict[str, EnvCommand] = {}
        self.processes: list[Any] = [None] * self.num_envs
        self._pipes: list[Connection] = [None] * self.num_envs  # type: ignore[list-item]
        self._start_all()

    def _start_all(self) -> None:
        """Starts the workers, which make their envs; if one fails, all are ended."""
        try:
            for i in range(self.num_envs):
                self._start(i)
            self._answers(range(self.num_envs), CONSTRUCTION)
        except BaseException as error:
            self.close(terminate=True)
            if isinstance(error, BrokenContractError):
                raise Place(self._name).error(self.failed_index, *error.args) from error
            add_place(error, made_at(self._name, self.failed_index))
            raise

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """options: {'reset_mask': [B] bool}, the envs to reset; None: all."""
        seeds = seeds_of(seed, self.num_envs)
        if seed is not None:
            self._seeds = seeds
        indices = list(range(self.num_envs))
        if options:
            indices = np.flatnonzero(options['reset_mask']).tolist()
        self._ask({i: ('reset', seeds[i]) for i in indices}, f'the reset after step {self._step_count}')
        self._lost = [i for i in self._lost if i not in indices]
        if not options:
            self._step_count = 0
        return self._observations, {}

    def step(self, actions: Actions) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Actions) -> None:
        check_n_action(actions, self.num_envs)
        self._step_count += 1
        for i, action in enumerate(iterate(self.action_space, actions)):
            if i not in self._lost:  # else the action is for an episode that broke off
                self._send(i, ('step', action), f'step {self._step_count}')
        self._is_stepping = True

    def step_wait(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        lost = self._lost
        self._is_stepping = False
        self._lost = []
        asked = [i for i in range(self.num_envs) if i not in lost]
        results, broken = self._answers(asked, f'step {self._step_count}')
        for i in lost:
            results.insert(i, NO_STEP)
        broken += lost
        return self._observations, *step_arrays(self, results, broken)

    def request(self, requested: tuple[str, ...], options: dict[str, Any] | None, what: str) -> None:
        """Sets the entries of infos that every step gives, and the options of all resets. what: names the new setting."""
        sendable(EnvCommand('set', what, (options,)))
        self._wanted = requested, options
        self._ask_all(('request', self._wanted), f'the choice of {what}')

    def command(self, command: EnvCommand) -> list[Any]:
        outcomes = self._ask_all(('apply', sendable(command)), f'{command.kind} of {command.name!r}')
        return [result(of_env) for of_env in outcomes]

    def close_extras(self, timeout: float = GRACE, terminate: bool = False) -> None:
        """Asks every worker to close its env, then kills those that still run; terminate: kills all immediately."""
        if terminate:
            for i, process in enumerate(self.processes):
                if process is not None:  # else it was never made
                    self._end(i, 0.0)
            return
        deadline = time.monotonic() + timeout
        for pipe in self._pipes:
            with suppress(OSError):  # that worker has ended
                pipe.send(('close', None))
        hung = []
        raised: dict[str, list[int]] = {}  # the envs, by what their close raised
        for i in range(self.num_envs):
            fault = self._last_answer(i, AnswerTime(deadline - time.monotonic()))
            if isinstance(fault, Raised):
                raised.setdefault(f'close raised {fault.message} ({fault.at})', []).append(i)
            limit = deadline
            if fault != 'late':
                limit += GRACE
            if not self._end(i, limit - time.monotonic()):
                hung.append(i)
        for failure, indices in raised.items():
            logger.warning('%s', close_sentence(f'env {self._name!r}, index {indices[0]}', failure, len(indices)))
        if len(hung) == 1:
            sentence = 'env %r, index %s: it had not closed after %g s, and was killed'
            logger.warning(sentence, self._name, hung[0], timeout)
        elif hung:
            sentence = 'env %r, index %s: they had not closed after %g s, and were killed'
            logger.warning(sentence, self._name, _join(hung), timeout)

    def _last_answer(self, i: int, patience: AnswerTime) -> object:
        """The answer of a worker to 'close', or its fault."""
        if self._is_stepping:
            _receive(self._pipes[i], patience)  # the result of an unfinished step is dropped
        return _receive(self._pipes[i], patience)[1]

    def _end(self, i: int, seconds: float) -> bool:
        """Waits for the process of a worker to end, or kills it. Returns: whether it ended in time."""
        process = self.processes[i]
        process.join(max(seconds, 0.0))
        has_ended = not process.is_alive()
        if not has_ended:
            process.kill()
            process.join()
        self._pipes[i].close()
        return has_ended

    def __del__(self) -> None:
        if not self.closed and hasattr(self, 'processes'):
            self.close(terminate=True)

    def _ask(self, commands: Mapping[int, tuple[str, Any]], when: str) -> Answers:
        """Sends each worker its command, which is no step. Returns: the answers; `broken` are the recreated envs."""
        if self._is_stepping:  # a step was begun and not ended
            self.step_wait()
        for i, command in commands.items():
            self._send(i, command, when)
        return self._answers(commands, when)

    def _ask_all(self, command: tuple[str, Any], when: str) -> list[Any]:
        result_of: dict[int, Any] = {}
        asked = [*range(self.num_envs)]
        while asked:  # recreated envs are asked again
            results, broken = self._ask(dict.fromkeys(asked, command), when)
            result_of.update(zip(asked, results, strict=True))
            self._lost = sorted({*self._lost, *broken})
            asked = broken
        return [result_of[i] for i in range(self.num_envs)]

    def _start(self, i: int) -> None:
        self._pipes[i], pipe = self._context.Pipe()
        place = WorkerSetup(
            env_index=i,
            memory=self._memory,
            mode=self._mode,
            spaces=(self.single_observation_space, self.single_action_space),
            is_main_thread=threading.current_thread() is threading.main_thread(),
            wanted=self._wanted,
            commands=tuple(self.commands.values()),
        )
        env_fn = for_start(self._env_fns[i], self._n_start[i])
        self._n_start[i] += 1
        arguments = place, CloudpickleWrapper(env_fn), pipe, self._pipes[i]
        process = self._context.Process(target=run_worker, args=arguments, name=f'env {self._name} {i}', daemon=True)
        with clear_mpi_env_vars():
            process.start()
        self.processes[i] = process
        pipe.close()

    def _send(self, i: int, command: tuple[str, Any], when: str) -> None:
        try:
            self._pipes[i].send(command)
        except OSError as error:
            if self._restarts is None:
                raise self._error({i: 'dead'}, when) from error
            # else `_answers` handles it, since the answer is missing too

    def _answers(self, indices: Iterable[int], when: str) -> Answers:
        """Receives results; recreates failed envs."""
        patience = AnswerTime(self._limit(when))
        results: list[Any] = []
        faults: dict[int, Fault] = {}
        for i in indices:
            is_good, answer = _receive(self._pipes[i], patience)
            if is_good:
                results.append(answer)
            else:
                faults[i] = answer
                results.append(complete_step(answer) or NO_STEP)
        if faults and self._restarts is None:
            raise self._error(faults, when)
        broken = []
        for i, fault in faults.items():
            if complete_step(fault):
                self._restart(i, fault, f'the reset after {when}')
            else:
                self._restart(i, fault, when)
                broken.append(i)
        return Answers(results, broken)

    def _restart(self, i: int, fault: Fault, when: str) -> None:
        """Recreates env i and its process, again and again if that fails; its observation begins a new episode."""
        assert self._restarts is not None
        while True:
            cause = self._error({i: fault}, when)
            self._restarts.note(f'env {self._name!r}, index {i}, {when}', cause)
            self.processes[i].kill()
            self.processes[i].join()
            self._pipes[i].close()
            self._start(i)
            when = CONSTRUCTION
            is_good, fault = _receive(self._pipes[i], AnswerTime(self._limit(when)))
            if is_good:
                when = RESET
                self._send(i, ('reset', restart_seed(self._seeds[i], self._restarts.count)), when)
                is_good, fault = _receive(self._pipes[i], AnswerTime(self._limit(when)))
            if is_good:
                self.failed_index = None
                return

    def _limit(self, when: str) -> float:
        """Seconds to wait for an answer."""
        if when == CONSTRUCTION:
            return self._timeout * CONSTRUCTION_CALLS
        return self._timeout

    def _error(self, faults: dict[int, Fault], when: str) -> BaseException:
        """The exception for the faults of some envs; if it is an EnvError and envs are not recreated, all envs are ended."""
        raised = {i: fault for i, fault in faults.items() if isinstance(fault, Raised)}
        late = [i for i, fault in faults.items() if fault == 'late']
        if raised:
            self.failed_index = min(raised)
            error = self._raised(self.failed_index, raised[self.failed_index], when)
        elif late:
            error = EnvError(
                f'env {self._name!r}, index {_join(late)}: no answer to {when} within {self._limit(when):g} s; '
                'find out where it hangs (env.vectorization=sync), or raise env.step_timeout.'
            )
        else:
            for i in faults:
                self.processes[i].join(GRACE)  # a pipe breaks shortly before its process ends
            causes = ', '.join(_cause(self.processes[i].exitcode) for i in faults)
            error = EnvError(
                f'env {self._name!r}, index {_join(faults)}: its worker process died during {when} ({causes}); '
                'find out where (env.vectorization=sync), or run fewer envs if memory ran out.'
            )
        if isinstance(error, EnvError) and self._restarts is None:
            self.close(terminate=True)
        return error

    def _raised(self, i: int, fault: Raised, when: str) -> BaseException:
        """The exception of a worker; its cause has the traceback in the worker."""
        error = unpickled_error(fault.pickled)
        if error is None:
            error = EnvError(
                f'env {self._name!r}, index {i}: its code raised {fault.message} at {when} ({fault.at}), which cannot be '
                'raised again in the main process; look at it with env.vectorization=sync.'
            )
        error.__cause__ = WorkerTraceback(i, fault.text, fault.at)
        return error


def step_arrays(
    env: gymnasium.vector.VectorEnv, results: Sequence[Step], broken: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
    """The results of the steps of all envs of a vector, as rewards, terminated, truncated and infos.

    Args: env: its attribute `failed_index` is set to the env whose infos are read; broken: indices of broken-off episodes.
    """
    n_env = env.num_envs
    rewards, terminated, truncated, finals, step_infos = zip(*results, strict=True)
    infos: dict[str, Any] = {}
    if broken:
        infos[BROKEN] = np.isin(np.arange(n_env), broken)
    if any(final is not None for final in finals):
        infos[FINAL_OBS] = np.fromiter(finals, dtype=object, count=n_env)
    for i, info in enumerate(step_infos):
        if info is not None:
            env.failed_index = i  # type: ignore[attr-defined]
            requested, last = info
            add_requested(infos, requested, i, n_env)
            if last is not None:
                infos.setdefault(FINAL_INFO, np.full(n_env, None, dtype=object))[i] = last
            env.failed_index = None  # type: ignore[attr-defined]
    flags = np.array(terminated, dtype=bool), np.array(truncated, dtype=bool)
    return np.array(rewards, dtype=np.float64), *flags, infos


class AnswerTime:
    """Time limit for answers; time in which this process and its workers were stopped, as by Ctrl-Z, does not count."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def has_answer(self, pipe: Connection) -> bool:
        """Waits for an answer; returns whether it came in time."""
        while True:
            start = time.monotonic()
            seconds = max(min(self._left, POLL_S), 0.0)
            has_come = pipe.poll(seconds)
            waited = time.monotonic() - start
            if waited < seconds + SUSPENDED_S:
                self._left -= waited
                if has_come or self._left <= 0:
                    return has_come


def _receive(pipe: Connection, patience: AnswerTime) -> tuple[bool, Any]:
    """(True, the result of a worker), or (False, its fault)."""
    try:
        if patience.has_answer(pipe):
            return pipe.recv()
        return False, 'late'
    except (EOFError, OSError):
        return False, 'dead'


def complete_step(fault: Fault) -> Any:
    """The result of a step that ended an episode, if only the reset after it failed, else None."""
    if isinstance(fault, Raised):
        return fault.step
    return None


def _join(indices: Iterable[int]) -> str:
    return ', '.join(map(str, indices)) or 'unknown'


def _cause(exitcode: int | None) -> str:
    if exitcode is None:
        return 'exit code unknown'
    if exitcode < 0:
        return f'killed by {signal.Signals(-exitcode).name}'
    return f'exit code {exitcode}'


def run_worker(place: WorkerSetup, make: Callable[[], gymnasium.Env], pipe: Connection, other_end: Connection) -> None:
    """Makes the env, then answers each command with (True, result), or with (False, Raised), after which it ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:  # else this is the main process
        sentinel = parent.sentinel
        die_with_parent(parent.pid or 0, place.is_main_thread, lambda seconds: bool(wait([sentinel], seconds)))
    leave_signals_to_parent(ends_at_sigterm=True)
    other_end.close()  # else the pipe would not break when the parent ends
    env = worker = None
    try:
        env = make()
        check_spaces(env, place.spaces)
        for command in place.commands:
            apply(env, command)
        worker = _Worker(env, place)
        _answer(worker, pipe)
    except BaseException as error:  # also SystemExit: the parent reports the failure
        pickled = None
        if isinstance(error, Exception):
            pickled = pickled_error(error)
        fault = Raised(pickled, message=show_error(error), text=traceback.format_exc(), at=raised_at(error))
        if worker is not None:
            fault = fault._replace(step=worker.complete)
        with suppress(OSError):
            pipe.send((False, fault))
        with suppress(BaseException):
            if env is not None:
                env.close()


def _answer(worker: _Worker, pipe: Connection) -> None:
    answers: dict[str, Callable[[Any], object]] = {
        'step': worker.step,
        'reset': lambda seed: worker.reset(seed=seed),
        'request': worker.request,
        'apply': partial(outcome, worker.env),
    }
    result: object = None  # the first answer: the env was made
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
        result = answers[command](data)


class _Worker:
    """One env in its worker process: checks the env's results, and sends only the wanted entries of its infos.

    Attributes: requested_infos: entries of the infos that every step sends. options: of resets. complete: the result of a step that
      ended an episode, while the reset after it runs; else None.
    """

    complete: Step | None = None

    def __init__(self, env: gymnasium.Env, place: WorkerSetup) -> None:
        self.env = env
        self._place = place
        self._ended = False
        self.request(place.wanted)

    def request(self, wanted: Wanted) -> None:
        self.requested_infos, self.options = wanted

    def reset(self, **kwargs: Any) -> None:
        if self.options is not None:
            kwargs['options'] = own_copy(self.options)
        obs, _ = checked_call('reset', self._place.spaces[0], self.env.reset, **kwargs)
        self._write(obs)
        self._ended = False

    def step(self, action: Action) -> Step:
        """Returns: reward, terminated, truncated, in mode same_step an episode's last observation (else None), wanted infos."""
        mode = self._place.mode
        if self._ended and mode == AutoresetMode.NEXT_STEP:
            self.reset()
            return NO_STEP
        result = checked_call('step', self._place.spaces[0], self.env.step, action)
        obs, reward, terminated, truncated, info = result
        terminated = as_flag('terminated', terminated)
        truncated = as_flag('truncated', truncated)
        is_over = terminated or truncated
        if is_over:
            obs = last_obs(obs, info)
        sent = None
        if info and (is_over or self.requested_infos):
            sent = self._wanted(info, is_over)
        if is_over and mode == AutoresetMode.SAME_STEP:
            complete = reward, terminated, truncated, deepcopy(obs), sent  # the reset may write into it
            self.complete = complete
            self.reset()
            self.complete = None
            return complete
        self._ended = is_over
        self._write(obs)
        return reward, terminated, truncated, None, sent

    def _wanted(self, info: Mapping[str, Any], is_over: bool) -> StepInfo | None:
        requested = requested_of(self.requested_infos, info)
        last = None
        if is_over:
            last = numbers_of(info)
        if requested or last:
            return requested, last
        return None

    def _write(self, obs: Any) -> None:
        write_to_shared_memory(self._place.spaces[0], self._place.env_index, obs, self._place.memory)
