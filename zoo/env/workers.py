"""gymnasium's vector envs, in one process or in one for each env; if a worker dies or hangs, the error says which.

Of the infos that envs return only the last observations of ended episodes are kept: to merge all of them takes longer
than a step of a small env.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import partial
from multiprocessing import connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import concatenate, iterate

from zoo.env.diagnosis import RAW_ERRORS, check_obs, check_result, checked_call, n_action, raise_if_broken
from zoo.env.errors import EnvError

FINAL_OBS = 'final_obs'  # key of gymnasium's infos
GRACE = 2.0  # seconds to wait for a worker to end, after its pipe broke or it was told to close


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker, as its cause when it is raised again in the main process."""

    def __init__(self, index: int | None, text: str) -> None:
        super().__init__(f'in the worker of index {index}\n{text}')


class SerialVectorEnv(SyncVectorEnv):
    """A SyncVectorEnv with a shorter loop, without copies: the overhead of gymnasium's is half a step of Pendulum.

    Attributes: failed_index: the env whose reset or step raised, or returned what no env may.
    """

    failed_index: int | None = None

    def __init__(self, env_fns: Sequence[Callable[[], gymnasium.Env]], autoreset_mode: AutoresetMode) -> None:
        super().__init__(env_fns, copy=False, autoreset_mode=autoreset_mode)
        self._same_step = autoreset_mode == AutoresetMode.SAME_STEP
        self._next_step = autoreset_mode == AutoresetMode.NEXT_STEP
        self._has_nested_actions = _is_nested(self.single_action_space)
        self._copy = deepcopy if _is_nested(self.single_observation_space) else copy
        self._seen: list[Any] = [None] * self.num_envs  # the observations
        self._ended = np.zeros(self.num_envs, dtype=bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """options: {'reset_mask': [B] bool}, the envs to reset; None: all."""
        self.failed_index = None
        mask = (options or {}).get('reset_mask', np.ones(self.num_envs, dtype=bool))
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed or [None] * self.num_envs
        for i in np.flatnonzero(mask).tolist():
            self._reset_env(i, seed=seeds[i])
        self._ended = self._ended & ~mask
        return self._gathered(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if n_action(actions) != self.num_envs:
            raise ValueError(f'step got {n_action(actions)} actions for {self.num_envs} envs')
        if self._has_nested_actions:
            actions = list(iterate(self.action_space, actions))
        seen, rewards, terminated, truncated = self._seen, self._rewards, self._terminations, self._truncations
        infos: dict[str, Any] = {}
        result: Any = None
        try:
            for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
                if self._next_step and self._ended[i]:
                    self._reset_env(i)
                    rewards[i], terminated[i], truncated[i] = 0.0, False, False
                    continue
                result = seen[i], rewards[i], terminated[i], truncated[i], info = env.step(action)
                if not isinstance(info, dict):
                    check_result(result, self.single_observation_space)
                if self._same_step and (terminated[i] or truncated[i]):
                    finals = infos.setdefault(FINAL_OBS, np.full(self.num_envs, None, dtype=object))
                    finals[i] = self._copy(seen[i])  # the reset may write into it
                    self._reset_env(i)
        except RAW_ERRORS as error:
            self.failed_index = i
            raise_if_broken(error, 'step', result, self.single_observation_space)
            raise
        self._ended = terminated | truncated
        return self._gathered(), rewards, terminated, truncated, infos

    def _reset_env(self, i: int, **kwargs: Any) -> None:
        self.failed_index = i
        self._seen[i], _ = checked_call('reset', self.single_observation_space, self.envs[i].reset, **kwargs)
        self.failed_index = None

    def _gathered(self) -> Any:
        try:
            self._observations = concatenate(self.single_observation_space, self._seen, self._observations)
        except RAW_ERRORS:
            for i, obs in enumerate(self._seen):
                self.failed_index = i
                check_obs(obs, self.single_observation_space)
            self.failed_index = None
            raise
        return self._observations


class _CheckedEnv(gymnasium.Wrapper):
    """An env in a worker, where what it returns is looked at; its infos, which nothing reads, are not sent.

    The last observation of an episode is a copy: gymnasium's worker resets the env before it sends it.
    """

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, _ = checked_call('reset', self.observation_space, self.env.reset, **kwargs)
        return obs, {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result = checked_call('step', self.observation_space, self.env.step, action)
        obs, reward, terminated, truncated, _ = result
        return deepcopy(obs) if terminated or truncated else obs, reward, terminated, truncated, {}


class WorkerVectorEnv(AsyncVectorEnv):
    """An AsyncVectorEnv whose reset and step wait no longer than `timeout` seconds; failed_index: as above."""

    steps_async = True
    failed_index: int | None = None

    def __init__(
        self, env_fns: Sequence[Callable[[], gymnasium.Env]], autoreset_mode: AutoresetMode, timeout: float, name: str
    ) -> None:
        self._timeout = timeout
        self._name = name
        self._step_count = 0
        parent = os.getpid()
        with self._blame('its construction'):
            super().__init__(
                [partial(_make_in_worker, parent, env_fn) for env_fn in env_fns],
                copy=False,
                autoreset_mode=autoreset_mode,
            )

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        is_partial = bool(options)  # gymnasium takes things out of them
        with self._blame(f'the reset after step {self._step_count}'):
            if self._state == AsyncState.WAITING_STEP:  # a step was begun and not ended
                self.step_wait()
            self.reset_async(seed=seed, options=options)
            result = self.reset_wait(self._timeout)
        self._step_count = self._step_count if is_partial else 0
        return result

    def step_async(self, actions: Any) -> None:
        self._step_count += 1
        with self._blame(f'step {self._step_count}'):
            super().step_async(actions)

    def step_wait(self, timeout: float | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        with self._blame(f'step {self._step_count}'):
            return super().step_wait(self._timeout)

    def close_extras(self, timeout: float | None = GRACE, terminate: bool = False) -> None:
        """Ask every worker to close, then kill those that are still running."""
        pipes = [pipe for pipe in self.parent_pipes if pipe is not None and not pipe.closed]
        for pipe in pipes if not terminate else ():
            try:
                pipe.send(('close', None))
            except OSError:  # that worker has ended
                pass
        deadline = time.monotonic() + (0 if terminate else GRACE if timeout is None else timeout)
        for process in self.processes:
            process.join(max(deadline - time.monotonic(), 0))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in pipes:
            pipe.close()

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        try:
            failed = [self.error_queue.get(timeout=GRACE) for success in successes if not success]
        except queue.Empty as empty:
            index = _join(i for i, success in enumerate(successes) if not success)
            self._state = AsyncState.DEFAULT
            self.close(terminate=True)
            raise EnvError(
                f'env {self._name!r}, index {index}: it raised an exception at step {self._step_count} that '
                'no process can send to another (its process shows it); look at it with '
                'env.vectorization=sync.'
            ) from empty
        if failed:
            for index, *_ in failed:
                self.parent_pipes[index].close()
                self.parent_pipes[index] = None  # type: ignore[call-overload]
            self._state = AsyncState.DEFAULT
            self.failed_index, _, error, text = min(failed, key=lambda entry: entry[0])
            raise error from WorkerTraceback(self.failed_index, text)

    @contextmanager
    def _blame(self, when: str) -> Iterator[None]:
        try:
            yield
        except multiprocessing.TimeoutError as error:
            late = [i for i, pipe in enumerate(self.parent_pipes) if pipe is not None and not pipe.poll(0)]
            self.close(terminate=True)
            raise EnvError(
                f'env {self._name!r}, index {_join(late)}: no answer to {when} within {self._timeout:g} s; '
                'find out where it hangs (env.vectorization=sync), or raise env.step_timeout.'
            ) from error
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            dead = self._dead()
            self.close(terminate=True)
            raise EnvError(
                f'env {self._name!r}, index {_join(dead)}: its worker process died during {when} '
                f'({", ".join(map(_cause, dead.values())) or "cause unknown"}); '
                'find out where (env.vectorization=sync), or run fewer envs if memory ran out.'
            ) from error

    def _dead(self) -> dict[int, int | None]:
        """Index and exit code of the workers that have ended; a pipe breaks shortly before its process ends."""
        ready = connection.wait([process.sentinel for process in self.processes], GRACE)
        dead = {i: process for i, process in enumerate(self.processes) if process.sentinel in ready}
        for process in dead.values():
            process.join(GRACE)
        return {i: process.exitcode for i, process in dead.items()}


def _make_in_worker(parent: int, env_fn: Callable[[], gymnasium.Env]) -> gymnasium.Env:
    if os.getpid() != parent:  # the first env is also made in the parent, for its spaces
        # Ctrl-C reaches the whole process group, but the run's own handler decides when the workers end;
        # that handler is inherited, and must not keep a worker from being terminated
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return _CheckedEnv(env_fn())


def _is_nested(space: gymnasium.Space) -> bool:
    return isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple)


def _join(indices: Any) -> str:
    return ', '.join(map(str, indices)) or 'unknown'


def _cause(exitcode: int | None) -> str:
    if exitcode is None:
        return 'exit code unknown'
    return f'killed by {signal.Signals(-exitcode).name}' if exitcode < 0 else f'exit code {exitcode}'
