"""Collector: a policy acts in envs for n_step steps -> rollouts, with the returns of the episodes that ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from zoo.backend.executor import Acting
from zoo.core.data import Finals, Rollout, State, Timestep, final_rows, first_leaf, leaf_items, map_tensors, path_names
from zoo.core.ranks import ALONE, Ranks
from zoo.env import AnyVectorEnv
from zoo.env.interface import RowObserver, StepBlock
from zoo.policy.modes import CollectMode
from zoo.policy.sequences import EpisodicActing
from zoo.worker.infos import NO_NUMBERS, EpisodeTracker, InfoKeys, row_observers

R = TypeVar('R')


class RolloutExtras(NamedTuple):
    """The results of n_step steps of all envs that are not in the block.

    output: of acting, [T, B, ...] each; state: the recurrent state before row 0, [B, ...], or None.
    finals: the true last observations of episodes, with the env indices of all envs.
    infos: {entry: [T, B, ...] f32} of env.info_columns.   episodes: (t, the env's own numbers), in order of time.
    fresh: envs that begin new episodes with row 0, since their episodes before were lost.
    """

    output: dict[str, Any]
    state: State
    finals: Finals
    infos: dict[str, Tensor]
    episodes: Sequence[tuple[int, dict[str, float]]]
    fresh: Sequence[slice] = ()


class Collector:
    """Makes rollouts of n_step steps of B envs, in blocks [T, B] that are allocated once and reused.

    Outputs of the policy and results of steps are written into these blocks directly. The policy's `process_transition`
    decides which of them become data: the collector knows no algorithm. A rollout is valid until the next call of
    `collect` or `reset`.

    Args: envs: of one kind; several groups take turns (double-buffered sampling): the policy acts for one (on a GPU, or
        while envs step asynchronously) while another steps.
      infos: which of the envs' own numbers are kept of each episode, in `episodes.infos`.
      first: index of the first env over all envs of the run.
    Attributes: block: the last rollout's rows; take_steps: takes the steps of a rollout, as `in_turns` does; watchers: called
      with the columns of each rollout (`rollout_columns`) before it is recorded;
      step_per_row: the most env steps that a row of the block counts; agent_step: actions of agents so far, None where
      an env has one agent.
    """

    step_per_row = 1
    agent_step: int | None = None

    def __init__(
        self, envs: Sequence[AnyVectorEnv], mode: CollectMode, infos: InfoKeys = NO_NUMBERS, first: int = 0
    ) -> None:
        self.mode = mode
        self._n_step = mode.n_step
        self.n_env = sum(env.n_env for env in envs)
        self.env_step = 0
        self.collect_iter = 0
        self.reset_iter: int | None = None  # `collect_iter` at the last reset of all envs
        self.time = {'env': 0.0, 'act': 0.0}
        self.episodes = EpisodeTracker(self.n_env)
        self.groups = self._make_groups(envs, infos, first)
        self.take_steps: Callable[[], None] = self.in_turns
        self.watchers: list[Callable[[dict[str, Any]], None]] = []

    def reset(self, seed: np.random.SeedSequence) -> None:
        """Starts new episodes in all envs."""
        for group in self.groups:
            group.reset(seed)
        self.mode.reset()
        self.episodes.drop(slice(None))
        self.reset_iter = self.collect_iter

    def collect_by_name(self) -> dict[str, Rollout]:
        """Takes n_step steps in every env; returns the rollout of each learner by its name, here of the only one."""
        return {'': self.collect()}

    @torch.no_grad()
    def collect(self) -> Rollout:
        """Takes n_step steps in every env."""
        return self.timed(lambda: self._rollout(self.fill_block()))

    def timed(self, collect: Callable[[], R]) -> R:
        """Calls a function that collects, and adds the seconds that it took to `time`."""
        start = perf_counter()
        before = self.env_time
        rollout = collect()
        env_time = self.env_time - before
        self.time['env'] += env_time
        self.time['act'] += perf_counter() - start - env_time
        return rollout

    @torch.no_grad()
    def fill_block(self) -> RolloutExtras:
        """Fills the block with n_step steps of every env."""
        self.block.restart()
        self._numbers.clear()
        self.mode.begin(self.collect_iter, self.env_step)
        for group in self.groups:
            group.begin()
        state = joined([group.acting.state for group in self.groups], 0)
        self.take_steps()
        for group in self.groups:
            group.env.check(group.block)
        output = joined([group.acting.output for group in self.groups], 1)
        finals = [(t, group.start + envs, obs) for group in self.groups for t, envs, obs in group.block.finals]
        return RolloutExtras(output, state, finals, self._info_columns(), self._numbers)

    @property
    def env_time(self) -> float:
        """Seconds in the envs so far; of asynchronous envs, the time spent waiting for them."""
        return sum(group.env_time for group in self.groups)

    def metrics(self, ranks: Ranks = ALONE) -> dict[str, float]:
        """Its own metrics for the log, by full name, of the rollouts since the last call; this class has none.

        Args: ranks: those that collect together, which all make this call.
        """
        return {}

    def in_turns(self) -> None:
        """Takes all steps of a rollout; the groups take turns."""
        for group in self.groups:
            group.act(0)
        for t in range(self._n_step):
            for group in self.groups:
                group.step(t)
                if t < self._n_step - 1:
                    group.act(t + 1)

    def _make_groups(self, envs: Sequence[AnyVectorEnv], infos: InfoKeys, first: int) -> list[EnvGroup]:
        """One EnvGroup for each vector env, with its part of the block."""
        self.block = envs[0].block(self._n_step, self.n_env)
        self._numbers: list[tuple[int, dict[str, float]]] = []  # of the episodes that end in a rollout
        each, self._info_columns = row_observers(envs, infos, self._n_step, self._numbers)
        starts = np.cumsum([0, *(env.n_env for env in envs)]).tolist()
        return [
            EnvGroup(env, self.block, start, self.mode, first, observers)
            for env, start, observers in zip(envs, starts, each, strict=False)
        ]

    def n_transition(self) -> int:
        """The env steps in the block: its rows but those that only reset an env."""
        is_reset = self.block.steps.is_reset
        n_row = self.block.steps.reward.numel()
        if is_reset is None:
            return n_row
        return n_row - int(is_reset.sum())

    def record(self, extras: RolloutExtras) -> Timestep:
        """Adds the episodes of a rollout to the statistics; returns its steps, with the rows of broken episodes marked."""
        for watch in self.watchers:
            watch(rollout_columns(self.block, extras))
        for envs in extras.fresh:
            self.episodes.drop(envs)
            self.mode.forget(envs)
        steps = self.block.steps._replace(info=extras.infos)
        end = steps.terminated | steps.truncated
        is_reset = steps.is_reset
        if steps.raw_reward is None:
            reward = steps.reward
        else:
            reward = steps.raw_reward
        self.episodes.record(reward, end if steps.raw_end is None else steps.raw_end, is_reset, steps.is_broken)
        if extras.episodes:
            self.episodes.infos.add(numbers for _, numbers in extras.episodes)
        if is_reset is not None and steps.is_broken is not None:
            from zoo.env.rules import mark_broken

            mark_broken(is_reset, end, steps.is_broken)
        return steps

    def _rollout(self, extras: RolloutExtras) -> Rollout:
        n_transition = self.n_transition()
        steps = self.record(extras)
        obs = self.block.obs
        infos = extras.infos
        end = steps.terminated | steps.truncated
        data: Any = self.mode.process_transition(map_tensors(lambda x: x[:-1], obs), extras.output, steps)
        if infos:
            from zoo.worker.info_columns import add_infos

            data = add_infos(data, infos, self.collect_iter == 0)
        lead = (self._n_step, self.n_env)
        for path, x in leaf_items(data):
            shape = tuple(getattr(x, 'shape', ()))
            if shape[:2] != lead:
                name = path_names([path for path, _ in leaf_items(data)])[path]
                raise ValueError(
                    f'_process_transition gave {name!r} of shape {shape} but it must begin with {lead}, the steps and '
                    'envs of the rollout'
                )
        # only now: if the policy's code fails above, what is saved is without this rollout
        self.env_step += n_transition
        self.collect_iter += 1
        last_obs = map_tensors(lambda x: x[-1], obs)
        next_obs = steps.next_obs
        if next_obs is not None and end.device.type == 'cpu':  # elsewhere a shape may not depend on the data
            index = end.nonzero()
            final_obs = map_tensors(lambda x: x[index[:, 0], index[:, 1]], next_obs)
            return Rollout(data, last_obs, final_obs, index, state=extras.state, recorder=self.mode.recorder)
        return Rollout(data, last_obs, *final_rows(extras.finals, obs), next_obs, extras.state, self.mode.recorder)


def rollout_columns(block: StepBlock, extras: RolloutExtras) -> dict[str, Any]:
    """The columns [T, B, ...] of a rollout before a policy makes data of it: obs, outputs of acting, results of steps, infos."""
    steps = {name: tree for name, tree in block.columns().items() if name != 'obs'}
    infos = {f'info/{name}': column for name, column in extras.infos.items()}
    return {'obs': map_tensors(lambda x: x[:-1], block.obs), **extras.output, **steps, **infos}


class EnvGroup:
    """Envs that step together; takes each step in two halves, `act` and `step`, between which another group has its turn.

    Args: block: of all groups; start: index of its first env in the block; first: index of the block's first env in the run;
      observers: of the infos of its steps.
    Attributes: block: its part of that block; env_time: seconds in the env so far; of asynchronous envs, seconds of waiting.
    """

    def __init__(
        self,
        env: AnyVectorEnv,
        block: StepBlock,
        start: int,
        mode: CollectMode,
        first: int,
        observers: Sequence[RowObserver],
    ) -> None:
        self.env = env
        self.start = start
        self._env_action = mode.env_action
        self.block = block = block.part(start, start + env.n_env)
        self.acting: Acting | EpisodicActing = mode.start(block.obs, first + start)
        self._observers = observers
        self._every = [each for each in observers if each.reads_all]
        self._restarts = [each.restart for each in observers]
        if self.acting.state is not None and not hasattr(self.acting, 'restart_all'):
            self.acting = EpisodicActing(self.acting, block.steps)
        if hasattr(self.acting, 'restart_all'):
            self._restarts.append(self.acting.restart_all)
        self._on_device = first_leaf(block.obs).device.type == 'cuda'
        self.env_time = 0.0
        self._fetch: Any = None
        self._action: Any = None

    def reset(self, seed: np.random.SeedSequence) -> None:
        """Starts new episodes, and resets a recurrent state."""
        map_tensors(lambda block, x: block[-1].copy_(x), self.block.obs, self.env.reset(seed))
        for restart in self._restarts:
            restart()

    def begin(self) -> None:
        """Called before each rollout."""
        self.acting.begin()
        self.block.finals.clear()
        for observer in self._observers:
            observer.begin()

    def act(self, t: int) -> None:
        """Begins step t: acts, and sends the actions to envs that step asynchronously."""
        self._action = self.acting.step(t)
        if self._env_action is not None:
            self._action = self._env_action(self._action)
        if not self._on_device and self._action.is_cuda:
            from zoo.worker.gpu import Fetch

            self._fetch = self._fetch or Fetch()
            self._action = self._fetch.start(self._action)
        if self.env.steps_async:
            self._send()

    def step(self, t: int) -> None:
        """Ends step t: sends the actions to other envs, and receives the results."""
        if not self.env.steps_async:
            self._send()
        start = perf_counter()
        info = self.env.receive(self.block, t)
        self.env_time += perf_counter() - start
        for observer in self._observers if info else self._every:
            observer.see(t, info or {}, self.block.rows[t])

    def _send(self) -> None:
        if isinstance(self._action, Tensor):
            action = self._action
        else:
            action = self._action()
        start = perf_counter()
        self.env.send(action)
        self.env_time += perf_counter() - start


def joined(trees: Sequence[Any], dim: int) -> Any:
    """Concatenates the outputs or states of the groups along the dimension of the envs; a single one is not copied."""
    if len(trees) == 1 or trees[0] is None:
        return trees[0]
    return map_tensors(lambda *parts: torch.cat(parts, dim), *trees)
