"""gymnasium's vectors of envs, in one process and in one each; if a worker dies or hangs, the error says which.

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
from copy import copy
from functools import partial
from multiprocessing import connection
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import concatenate

from zoo.env.errors import EnvError

FINAL_OBS = 'final_obs'  # what gymnasium calls them
GRACE = 2.0  # seconds in which a worker whose pipe broke is expected to be gone, or one told to close to do so


class WorkerTraceback(Exception):
    """Where in its process the env at `index` raised, as the cause of that exception when it is raised again here."""

    def __init__(self, index: int, text: str) -> None:
        super().__init__(f'in the worker of index {index}\n{text}')
        self.index = index
        self.text = text


class _WithoutInfos(gymnasium.vector.VectorEnv):
    """Both of gymnasium's vectors merge infos with this one method."""

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        if not isinstance(env_info, dict):
            return super()._add_info(vector_infos, env_info, env_num)  # which fails, and is understood by `diagnosis`
        if FINAL_OBS not in env_info:
            return vector_infos
        return super()._add_info(vector_infos, {FINAL_OBS: env_info[FINAL_OBS]}, env_num)


class SerialVectorEnv(_WithoutInfos, SyncVectorEnv):
    """A SyncVectorEnv that copies nothing, with a loop of its own: what gymnasium's adds is half a step of Pendulum."""

    def __init__(self, env_fns: Sequence[Callable[[], gymnasium.Env]], autoreset_mode: AutoresetMode) -> None:
        super().__init__(env_fns, copy=False, autoreset_mode=autoreset_mode)
        self._same_step = autoreset_mode == AutoresetMode.SAME_STEP
        self._next_step = autoreset_mode == AutoresetMode.NEXT_STEP

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        seen, rewards, terminated, truncated = self._env_obs, self._rewards, self._terminations, self._truncations
        infos: dict[str, Any] = {}
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            if self._next_step and self._autoreset_envs[i]:
                seen[i], info = env.reset()
                rewards[i], terminated[i], truncated[i] = 0.0, False, False
            else:
                seen[i], rewards[i], terminated[i], truncated[i], info = env.step(action)
                if self._same_step and (terminated[i] or truncated[i]):
                    infos = self._add_info(infos, {FINAL_OBS: copy(seen[i])}, i)  # the reset may write into it
                    seen[i], info = env.reset()
            if not isinstance(info, dict):
                self._add_info(infos, info, i)  # which says so
        self._observations = concatenate(self.single_observation_space, seen, self._observations)
        self._autoreset_envs = terminated | truncated
        return self._observations, rewards, terminated, truncated, infos


class WorkerVectorEnv(_WithoutInfos, AsyncVectorEnv):
    """An AsyncVectorEnv whose reset and step wait no longer than `timeout` seconds."""

    steps_beside = True

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
            if self._state == AsyncState.WAITING_STEP:  # begun, and nobody came for it
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
        """Ask every worker to close, then end those that are still there."""
        pipes = [pipe for pipe in self.parent_pipes if pipe is not None and not pipe.closed]
        for pipe in pipes if not terminate else ():
            try:
                pipe.send(('close', None))
            except OSError:  # that worker is gone already
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
            index, _, error, text = min(failed, key=lambda entry: entry[0])
            raise error from WorkerTraceback(index, text)

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
        """Index and exit code of the workers that ended, or are about to: a pipe breaks before its process is gone."""
        ready = connection.wait([process.sentinel for process in self.processes], GRACE)
        dead = {i: process for i, process in enumerate(self.processes) if process.sentinel in ready}
        for process in dead.values():
            process.join(GRACE)
        return {i: process.exitcode for i, process in dead.items()}


def _make_in_worker(parent: int, env_fn: Callable[[], gymnasium.Env]) -> gymnasium.Env:
    if os.getpid() != parent:  # the first env is made in the parent, for its spaces
        # Ctrl-C reaches the whole process group, but the run's own handler decides when the workers end;
        # that handler is inherited, and must not keep a worker from being terminated
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return env_fn()


def _join(indices: Any) -> str:
    return ', '.join(map(str, indices)) or 'unknown'


def _cause(exitcode: int | None) -> str:
    if exitcode is None:
        return 'exit code unknown'
    return f'killed by {signal.Signals(-exitcode).name}' if exitcode < 0 else f'exit code {exitcode}'
