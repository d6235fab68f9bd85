"""Envs that step asynchronously: the policy acts for those that have answered, while the others still step (env.ready_num)."""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv as GymVectorEnv
from gymnasium.vector.utils import batch_space, iterate
from torch import Tensor

from zoo.core.action_map import Actions
from zoo.core.data import Obs
from zoo.env.config import EnvConfig
from zoo.env.errors import Place
from zoo.env.interface import AnyVectorEnv, EnvCommand, StepBlock
from zoo.env.serial import SingleEnvs
from zoo.env.validation import check_n_action, n_action, raise_if_contract
from zoo.env.workers import (
    GRACE,
    NO_STEP,
    POLL_S,
    SUSPENDED_S,
    Answers,
    AnswerTime,
    Fault,
    Step,
    WorkerVectorEnv,
    complete_step,
    step_arrays,
)


class ReadyStep(NamedTuple):
    """The answer of an env to its step. is_broken: its episode broke off, and `step` is NO_STEP."""

    env: int
    step: Step
    is_broken: bool = False


class ReadyWorkers(WorkerVectorEnv):
    """Envs in processes, each of which gets its actions alone; their answers are taken in the order in which they come."""

    def _start_all(self) -> None:
        self._selector = selectors.DefaultSelector()  # of the envs that are stepping
        self._sent_at: dict[int, float] = {}  # the times at which they began
        self._answers_in_order: deque[ReadyStep] = deque()
        self._n_step = [0] * self.num_envs  # steps of each env
        self._late_check = 0.0  # time of the next one
        super()._start_all()

    def begin_step(self, i: int, action: Any) -> None:
        """Sends an action to env i, which must have been taken."""
        if i in self._lost:  # the action is for an episode that broke off
            self._lost.remove(i)
            self._answers_in_order.append(ReadyStep(i, NO_STEP, True))
            return
        self._n_step[i] += 1
        self._send(i, ('step', action), self._when(i))
        self._sent_at[i] = time.monotonic()
        self._selector.register(self._pipes[i], selectors.EVENT_READ, i)

    def take(self, n: int) -> list[ReadyStep]:
        """Waits until n envs have answered; returns the answers, the oldest first."""
        while len(self._answers_in_order) < n:
            self._poll()
        taken = []
        for _ in range(n):
            taken.append(self._answers_in_order.popleft())
        return taken

    @property
    def observations(self) -> Any:
        """The observations of all envs, in the memory that they write to; that of an env which steps may change."""
        return self._observations

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Resets all envs; the answers to unfinished steps are dropped."""
        self._wait_for_all()
        self._answers_in_order.clear()
        return super().reset(**kwargs)

    def _poll(self) -> None:
        """Waits for some answers, a short time."""
        start = time.monotonic()
        events = self._selector.select(POLL_S)
        now = time.monotonic()
        if now - start > POLL_S + SUSPENDED_S:  # this process and its workers were stopped, as by Ctrl-Z
            self._sent_at = {i: sent + now - start for i, sent in self._sent_at.items()}
        for key, _ in events:
            i = key.data
            self._end_step(i)
            try:
                is_good, answer = self._pipes[i].recv()
            except (EOFError, OSError):
                is_good = False
                answer = 'dead'
            if is_good:
                self._answers_in_order.append(ReadyStep(i, answer))
            else:
                self._fail(i, answer)
        if now > self._late_check:
            self._late_check = now + POLL_S
            for i in [i for i, sent in self._sent_at.items() if now - sent > self._timeout]:
                self._end_step(i)
                self._fail(i, 'late')

    def _end_step(self, i: int) -> None:
        self._selector.unregister(self._pipes[i])
        del self._sent_at[i]

    def _fail(self, i: int, fault: Fault) -> None:
        """Recreates env i after a fault in its step, or raises it."""
        when = self._when(i)
        if self._restarts is None:
            raise self._error({i: fault}, when)
        complete = complete_step(fault)
        if complete:
            self._restart(i, fault, f'the reset after {when}')
            self._answers_in_order.append(ReadyStep(i, complete))
        else:
            self._restart(i, fault, when)
            self._answers_in_order.append(ReadyStep(i, NO_STEP, True))

    def _when(self, i: int) -> str:
        return f'step {self._n_step[i]}'

    def _wait_for_all(self) -> None:
        while self._sent_at:
            self._poll()

    def _ask(self, commands: Mapping[int, tuple[str, Any]], when: str) -> Answers:
        """As of the base, after the steps that have begun; answers of envs that are recreated here are no steps any more."""
        self._wait_for_all()
        answers = super()._ask(commands, when)
        for place, each in enumerate(self._answers_in_order):
            if each.env in answers.broken:
                self._answers_in_order[place] = ReadyStep(each.env, NO_STEP, True)
        return answers

    def _ask_all(self, command: tuple[str, Any], when: str) -> list[Any]:
        results = super()._ask_all(command, when)
        told = {each.env for each in self._answers_in_order if each.is_broken}
        self._lost = [i for i in self._lost if i not in told]
        return results

    def close_extras(self, timeout: float = GRACE, terminate: bool = False) -> None:
        super().close_extras(timeout, terminate)
        self._selector.close()

    def _last_answer(self, i: int, patience: AnswerTime) -> object:
        self._is_stepping = i in self._sent_at
        return super()._last_answer(i, patience)


class ReadyView(GymVectorEnv):
    """The next n envs that have answered, as a vector env.

    Attributes: indices: [n], the envs that answered last, for which the next actions are.
    """

    steps_async = True
    has_deadlines = True

    def __init__(self, workers: ReadyWorkers, n: int) -> None:
        super().__init__()
        self.workers = workers
        self.num_envs = n
        self.metadata = workers.metadata
        self.render_mode = workers.render_mode
        self.single_observation_space = workers.single_observation_space
        self.single_action_space = workers.single_action_space
        self.observation_space = batch_space(self.single_observation_space, n)
        self.action_space = batch_space(self.single_action_space, n)
        self.restart()

    @property
    def failed_index(self) -> int | None:
        """The env whose step raised, or returned an invalid result."""
        return self.workers.failed_index

    @failed_index.setter
    def failed_index(self, index: int | None) -> None:
        if index is not None:
            index = int(self.indices[index])
        self.workers.failed_index = index

    def restart(self) -> None:
        """Called after a reset of all envs: the first n ones are ready."""
        self.indices = np.arange(self.num_envs)

    def step_async(self, actions: Actions) -> None:
        check_n_action(actions, self.num_envs)
        for i, action in zip(self.indices.tolist(), iterate(self.action_space, actions), strict=True):
            self.workers.begin_step(i, action)

    def step_wait(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        answers = self.workers.take(self.num_envs)
        self.indices = np.array([each.env for each in answers])
        broken = [row for row, each in enumerate(answers) if each.is_broken]
        arrays = step_arrays(self, [each.step for each in answers], broken)
        return _rows_of(self.workers.observations, self.indices), *arrays

    def request(self, requested: tuple[str, ...], options: dict[str, Any] | None, what: str) -> None:
        """Asks for nothing: `ReadyEnvs` asks all envs."""


def _rows_of(batch: Any, indices: np.ndarray) -> Any:
    """The observations of some envs, copied."""
    if isinstance(batch, Mapping):
        return {name: _rows_of(part, indices) for name, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_rows_of(part, indices) for part in batch)
    return batch[indices]


class ReadyRows(SingleEnvs):
    """The envs that answered last, as a vector env of zoo; in its messages each has its index among all envs."""

    env: ReadyView

    def __init__(self, env: ReadyView, cfg: EnvConfig, name: str, reader: torch.device | None, first: int) -> None:
        super().__init__(env, cfg, name, False, reader, first)
        self._place.indices = env.indices

    def _call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        returned = super()._call(method, *args, **kwargs)
        self._place.indices = self.env.indices
        return returned

    def _explain(self, error: BaseException) -> None:
        if n_action(self.sent) == self.n_env:  # else the caller is to blame
            raise_if_contract(error, self.env, Place(self.name, self._place.step, self._place.restarts))


class ReadyEnvs(AnyVectorEnv):
    """B envs in processes that step asynchronously: `rows` are those that answered last, for which the policy acts.

    Attributes: all: the B envs, for resets and commands; rows: the n_ready ones; view: tells which envs `rows` are.
    """

    steps_async = True

    def __init__(
        self, workers: ReadyWorkers, n_ready: int, cfg: EnvConfig, name: str, reader: torch.device | None, first: int
    ) -> None:
        self.all = SingleEnvs(workers, cfg, name, False, reader, first)
        self.view = ReadyView(workers, n_ready)
        self.rows = ReadyRows(self.view, cfg, name, reader, first)
        self.name = name
        self.n_env = self.all.n_env
        self.n_ready = n_ready
        self.obs_space = self.all.obs_space
        self.action_space = self.all.action_space
        self.autoreset = self.all.autoreset
        self.info_columns = self.all.info_columns
        self.requested_infos = self.all.requested_infos
        self._workers = workers

    def reset(self, seed: np.random.SeedSequence | int) -> Obs:
        obs = self.all.reset(seed)
        self.view.restart()
        return obs

    def open(self, indices: Sequence[int], action: Tensor) -> None:
        """Sends the first actions of episodes to envs that are not among `rows`."""
        sent = self.rows.to_env(action)
        actions = iterate(batch_space(self.view.single_action_space, len(indices)), sent)
        for i, each in zip(indices, actions, strict=True):
            self._workers.begin_step(i, each)

    def block(self, n_step: int, n_env: int | None = None) -> StepBlock:
        return self.rows.block(n_step, n_env)

    def send(self, action: Tensor) -> None:
        self.rows.send(action)

    def receive(self, block: StepBlock, t: int) -> dict[str, Any] | None:
        return self.rows.receive(block, t)

    def request_infos(self, keys: Sequence[str]) -> None:
        self.all.request_infos(keys)
        self.requested_infos = self.all.requested_infos

    def command(self, command: EnvCommand) -> list[Any]:
        return self.all.command(command)

    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        self.all.set_reset_options(options)

    def check(self, block: StepBlock | None = None) -> None:
        self.rows.check(block)

    def close(self) -> None:
        self.all.close()
