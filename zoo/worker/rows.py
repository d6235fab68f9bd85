"""Sources of the rows of a rollout: envs of this process, in one group or several that take turns."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Fetch, StepBlock, first_leaf, map_tensors
from zoo.env import AnyVectorEnv
from zoo.policy.modes import CollectMode
from zoo.worker.infos import NO_NUMBERS, InfoBlock, InfoKeys, InfoReader, joined_infos


class Steps(NamedTuple):
    """What n_step steps of all envs gave, besides what is in the block.

    output: of acting, [T, B, ...] each; state: the recurrent state before row 0, [B, ...], or None.
    infos: {entry: [T, B, ...] f32} of env.info_columns.   episodes: (t, the env's own numbers), in order of time.
    fresh: envs that begin new episodes with row 0, since those before were lost.
    """

    output: dict[str, Any]
    state: Any
    infos: dict[str, Tensor]
    episodes: Sequence[tuple[int, dict[str, float]]]
    fresh: Sequence[slice] = ()


class Rows(Protocol):
    """Gives the rows of one rollout after the other."""

    n_env: int
    env_time: float
    """Seconds in the envs so far, or of waiting for them."""

    @property
    def block(self) -> StepBlock:
        """The last rollout's rows; there once there is one, and reused."""

    def reset(self, seed: np.random.SeedSequence) -> None:
        """Starts new episodes in all envs."""

    def collect(self, collect_iter: int, env_step: int) -> Steps:
        """Fills the block. Args: collect_iter, env_step: rollouts and env steps of the run so far."""

    def metrics(self) -> dict[str, float]:
        """What is known of the source, by whole names of the log; of the rollouts since the last call."""


class LocalRows:
    """Steps envs of this process with a policy's collect mode.

    Args: envs: of one kind; several groups take turns (double-buffered sampling), so that the policy acts for one (on a
      GPU, or while envs step asynchronously) as another steps. first: index of the first env over all envs of the run.
    """

    def __init__(
        self, envs: Sequence[AnyVectorEnv], mode: CollectMode, infos: InfoKeys = NO_NUMBERS, first: int = 0
    ) -> None:
        self.n_env, self._mode = sum(env.n_env for env in envs), mode
        for env in envs if infos.step else ():
            env.watch(infos.step)
        self.block = envs[0].block(mode.n_step, self.n_env)
        stops = np.cumsum([env.n_env for env in envs]).tolist()
        self.groups = [
            EnvGroup(env, self.block.part(stop - env.n_env, stop), mode, first + stop - env.n_env)
            for env, stop in zip(envs, stops, strict=True)
        ]
        self.env_time = 0.0
        for group in self.groups if infos.wanted else ():
            if not group.env.is_tensor_program:  # which has no infos
                group.numbers = InfoReader(infos, group.env.n_env, group.env.autoreset)

    def reset(self, seed: np.random.SeedSequence) -> None:
        """Starts new episodes in all envs."""
        for group in self.groups:
            group.reset(seed)

    @torch.no_grad()
    def collect(self, collect_iter: int, env_step: int) -> Steps:
        """Takes n_step steps in every env."""
        groups, n_step = self.groups, self._mode.n_step
        last, before = n_step - 1, sum(group.env_time for group in groups)
        self.block.restart()
        episodes: list[tuple[int, dict[str, float]]] = []
        self._mode.begin(collect_iter, env_step)
        for group in groups:
            group.begin(episodes)
        state = joined([group.acting.state for group in groups], 0)
        for group in groups:
            group.act(0)
        for t in range(n_step):
            for group in groups:
                group.step(t)
                if t < last:
                    group.act(t + 1)
        for group in groups:
            group.env.check()
        self.env_time += sum(group.env_time for group in groups) - before
        output = joined([group.acting.output for group in groups], 1)
        blocks = [group.infos for group in groups if group.infos is not None]
        infos = joined_infos(blocks, groups[0].env.info_columns, n_step) if blocks else {}
        return Steps(output, state, infos, episodes)

    def finals(self) -> list[tuple[int, np.ndarray, Any]]:
        """`StepBlock.finals` of all groups, with the indices of the envs among all of them."""
        starts = np.cumsum([0, *(group.env.n_env for group in self.groups)]).tolist()
        pairs = zip(starts, self.groups, strict=False)
        return [(t, envs + start, obs) for start, group in pairs for t, envs, obs in group.block.finals]

    def metrics(self) -> dict[str, float]:
        """Nothing: these envs are timed as a part of the run."""
        return {}


class EnvGroup:
    """Envs that step together; takes each step in two halves, between which another group has its turn.

    Attributes: env_time: seconds in the env so far; of asynchronous envs, the time spent waiting for them. infos: what is
      kept of the infos of every step; None: nothing.
    Args: first: index of its first env over all envs of the run.
    """

    def __init__(self, env: AnyVectorEnv, block: StepBlock, mode: CollectMode, first: int = 0) -> None:
        self.env, self.block, self._mode = env, block, mode
        self.infos = InfoBlock(env.info_columns, mode.n_step, env.n_env, env.name) if env.info_columns else None
        self.numbers: InfoReader | None = None
        self._episodes: list[tuple[int, dict[str, float]]] = []
        self.acting = mode.start(block.obs, first)
        self._on_device = first_leaf(block.obs).device.type == 'cuda'
        self.env_time = 0.0
        self._fetch = Fetch()
        self._action: Any = None
        self._has_begun = False

    def reset(self, seed: np.random.SeedSequence) -> None:
        """Starts new episodes; a recurrent state is that of new episodes too."""
        map_tensors(lambda block, x: block[-1].copy_(x), self.block.obs, self.env.reset(seed))
        if self.acting.state is not None:
            self.acting.restart(torch.ones(self.env.n_env, dtype=torch.bool))
        self._has_begun = False
        if self.numbers is not None:
            self.numbers.restart()

    def begin(self, episodes: list[tuple[int, dict[str, float]]]) -> None:
        """Called before each rollout. Args: episodes: gets (t, the env's own numbers) of those that end in it."""
        self._episodes = episodes
        self.acting.begin()
        if self.infos is not None:
            self.infos.begin()
        if self._has_begun and self.acting.state is not None:
            self.acting.restart(self._begins(-1))
        self._has_begun = True

    def act(self, t: int) -> None:
        """Begins step t: acts, and where envs step asynchronously sends them the actions."""
        if t and self.acting.state is not None:
            self.acting.restart(self._begins(t - 1))
        self._action = self.acting.step(t)
        if self._mode.env_action is not None:
            self._action = self._mode.env_action(self._action)
        if not self._on_device and self._action.is_cuda:
            self._action = self._fetch.start(self._action)
        if self.env.steps_async:
            self._send()

    def step(self, t: int) -> None:
        """Ends step t: the envs have taken it."""
        if not self.env.steps_async:
            self._send()
        start = perf_counter()
        info = self.env.receive(self.block, t)
        self.env_time += perf_counter() - start
        if info and self.infos is not None:
            self.infos.write(t, info, self.block.rows[t].is_reset)
        if self.numbers is not None and (info or self.numbers.reads_all):
            self._episodes += [(t, found) for found in self.numbers.read_row(info or {}, self.block.rows[t])]

    def _send(self) -> None:
        action = self._action if isinstance(self._action, Tensor) else self._action()
        start = perf_counter()
        self.env.send(action)
        self.env_time += perf_counter() - start

    def _begins(self, t: int) -> Tensor:
        """[B] bool: an episode begins with the row after t."""
        steps = self.block.steps
        if steps.begins is not None:
            return steps.begins[t]
        return steps.terminated[t] | steps.truncated[t] if steps.is_reset is None else steps.is_reset[t]


def joined(trees: Sequence[Any], dim: int) -> Any:
    """The outputs or states of the groups as those of all envs: one, or concatenated along the dimension of the envs."""
    if len(trees) == 1 or trees[0] is None:
        return trees[0]
    return map_tensors(lambda *parts: torch.cat(parts, dim), *trees)
