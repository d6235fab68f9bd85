"""Env x collect mode -> rollouts: the loop of acting and stepping, for one group of envs or several in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Rollout, Transition, first_leaf, leaves, map_tensors
from zoo.core.transfer import Fetch
from zoo.env import AnyVectorEnv, StepBlock, TensorVectorEnv
from zoo.policy.base import CollectMode
from zoo.worker.episode_infos import NO_NUMBERS, EpisodeNumbers, InfoKeys, InfoReader
from zoo.worker.episodes import EpisodeTracker, mark_broken
from zoo.worker.info_columns import COLUMN, InfoBlock, joined_infos, warn_of_missing


class Collector:
    """Steps B envs with a policy's collect mode, into blocks [T, B] that are allocated once and reused.

    The policy's outputs and what the steps returned are written where they stay. What of it is remembered is up to the
    policy's `process_transition`: the collector knows no algorithm. A rollout is valid until the next call of
    `collect` or `reset`.

    Args: envs: of one kind; several groups take turns (double-buffered sampling), so that the policy acts for one (on a
      GPU, or while envs step asynchronously) as another steps. B is the sum.
      infos: which of the envs' own numbers are kept of each episode, in `episodes.infos`.
    """

    def __init__(self, envs: Sequence[AnyVectorEnv], mode: CollectMode, infos: InfoKeys = NO_NUMBERS) -> None:
        self._mode, self._n_step, self._n_env = mode, mode.n_step, sum(env.n_env for env in envs)
        for env in envs if infos.step else ():
            env.watch(infos.step)
        self._block = envs[0].block(self._n_step, self._n_env)
        stops = np.cumsum([env.n_env for env in envs]).tolist()
        self._groups = [
            EnvGroup(env, self._block.part(stop - env.n_env, stop), mode) for env, stop in zip(envs, stops, strict=True)
        ]
        self.env_step = 0
        self.collect_iter = 0
        self.time = {'env': 0.0, 'act': 0.0}
        self.episodes = EpisodeTracker(self._n_env)
        for group in self._groups if infos.wanted else ():
            if isinstance(group.env, TensorVectorEnv):  # which has no infos
                continue
            group.numbers = EpisodeNumbers(InfoReader(infos, group.env.n_env, group.env.autoreset), self.episodes.infos)

    def reset(self, seed: np.random.SeedSequence) -> None:
        """Starts new episodes in all envs."""
        for group in self._groups:
            group.reset(seed)
        self._mode.reset()
        self.episodes.reset()

    @torch.no_grad()
    def collect(self) -> Rollout:
        """Takes n_step steps in every env."""
        groups, last = self._groups, self._n_step - 1
        start, before = perf_counter(), sum(group.env_time for group in groups)
        self._block.restart()
        for group in groups:
            group.begin()
        state = joined([group.acting.state for group in groups], 0)
        for group in groups:
            group.act(0)
        for t in range(self._n_step):
            for group in groups:
                group.step(t)
                if t < last:
                    group.act(t + 1)
        for group in groups:
            group.env.check()
        rollout = self._rollout(state)
        env_time = sum(group.env_time for group in groups) - before
        self.time['env'] += env_time
        self.time['act'] += perf_counter() - start - env_time
        return rollout

    def reward_metrics(self) -> dict[str, Tensor | float]:
        """Mean, deviation, least and greatest reward of an env step in the last rollout, before any scaling."""
        steps = self._block.steps
        reward = steps.reward if steps.raw_reward is None else steps.raw_reward
        if reward.device.type != 'cpu':  # where a shape may not depend on the data
            (least, greatest), wide = reward.aminmax(), reward.double()
            return {
                'reward_mean': wide.mean(),
                'reward_std': wide.std(correction=0),
                'reward_min': least,
                'reward_max': greatest,
            }
        x = reward.numpy().ravel() if steps.is_reset is None else reward.numpy()[~steps.is_reset.numpy()]
        if not x.size:
            return {}
        mean = float(x.sum(dtype=np.float64)) / x.size
        off = x.astype(np.float64) - mean
        return {
            'reward_mean': mean,
            'reward_std': math.sqrt(float(off @ off) / x.size),
            'reward_min': float(x.min()),
            'reward_max': float(x.max()),
        }

    def _rollout(self, state: Any) -> Rollout:
        obs, steps = self._block.obs, self._block.steps
        end = steps.terminated | steps.truncated
        is_reset = steps.is_reset
        is_broken = None if steps.begins is None or is_reset is None else is_reset & steps.truncated
        n_step = self.episodes.record(
            steps.reward if steps.raw_reward is None else steps.raw_reward,
            end if steps.raw_end is None else steps.raw_end,
            is_reset,
            is_broken,
        )
        if is_reset is not None and is_broken is not None:
            mark_broken(is_reset, end, is_broken)
        output = joined([group.acting.output for group in self._groups], 1)
        infos = self._infos()
        steps = steps._replace(info=infos) if infos else steps
        transition = self._mode.process_transition(map_tensors(lambda x: x[:-1], obs), output, steps)
        data = self._checked(self._with_infos(transition, infos))
        self.env_step += n_step  # only now: if the policy's code fails above, what is saved is without this rollout
        self.collect_iter += 1
        last_obs, next_obs = map_tensors(lambda x: x[-1], obs), steps.next_obs
        if next_obs is not None and end.device.type == 'cpu':  # elsewhere a shape may not depend on the data
            index = end.nonzero()
            final_obs = map_tensors(lambda x: x[index[:, 0], index[:, 1]], next_obs)
            return Rollout(data, last_obs, final_obs, index, state=state)
        return Rollout(data, last_obs, *self._block.final(), next_obs, state)

    def _infos(self) -> dict[str, Tensor]:
        """{entry: [T, B, ...] f32} of what is kept of the infos."""
        blocks = [group.infos for group in self._groups if group.infos is not None]
        infos = joined_infos(blocks, self._groups[0].env.info_columns, self._n_step) if blocks else {}
        if infos and self.collect_iter == 0:
            warn_of_missing(infos)
        return infos

    def _with_infos(self, transition: Transition, infos: dict[str, Tensor]) -> Transition:
        """The transition with the columns of env.info_columns."""
        joined: Any = {**transition, **{COLUMN.format(key): x for key, x in infos.items()}} if infos else transition
        return joined

    def _checked(self, transition: Transition) -> Transition:
        lead = (self._n_step, self._n_env)
        for path, x in leaves(transition):
            if x.shape[:2] != lead:
                raise ValueError(
                    f'_process_transition gave {path!r} of shape {tuple(x.shape)} but it must begin with {lead}, the '
                    'steps and envs of the rollout'
                )
        return transition


class EnvGroup:
    """Envs that step together; takes each step in two halves, between which another group has its turn.

    Attributes: env_time: seconds in the env so far; of asynchronous envs, the time spent waiting for them. infos: what is
      kept of the infos of every step; None: nothing.
    """

    def __init__(self, env: AnyVectorEnv, block: StepBlock, mode: CollectMode) -> None:
        self.env, self.block, self._mode = env, block, mode
        self.infos = InfoBlock(env.info_columns, mode.n_step, env.n_env, env.name) if env.info_columns else None
        self.numbers: EpisodeNumbers | None = None
        self.acting = mode.start(block.obs)
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
            self.numbers.reader.restart()

    def begin(self) -> None:
        """Called before each rollout."""
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
        if self._action.device.type == 'cuda' and not self._on_device:
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
        if self.numbers is not None and (info or self.numbers.reader.reads_all):
            self.numbers.write(info or {}, self.block.rows[t])

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
