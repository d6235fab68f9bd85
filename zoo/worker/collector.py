"""Collector: rows of envs and the collect mode of a policy -> rollouts, with the returns of the episodes that ended."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Rollout, leaves, map_tensors
from zoo.env import AnyVectorEnv
from zoo.policy.modes import CollectMode
from zoo.worker.infos import COLUMN, NO_NUMBERS, InfoKeys, InfoTally, warn_of_missing
from zoo.worker.rows import LocalRows, Rows, Steps


class EpisodeTracker:
    """Undiscounted returns and lengths of the last 100 training episodes, updated once per rollout.

    Attributes: infos: the env's own numbers of episodes, which come when an episode ends; n_reset: episodes begun.
    """

    def __init__(self, n_env: int) -> None:
        self._n_env = n_env
        self.returns: deque[float] = deque(maxlen=100)
        self.lengths: deque[int] = deque(maxlen=100)
        self.n_episode = 0
        self.infos = InfoTally()
        self.n_reset = -n_env  # making it is no reset
        self.reset()

    def reset(self) -> None:
        """All envs begin new episodes."""
        self._return, self._length = np.zeros(self._n_env), np.zeros(self._n_env, dtype=np.int64)
        self.n_reset += self._n_env

    def drop(self, envs: slice) -> None:
        """The unfinished episodes of these envs are lost: they begin new ones."""
        self._return[envs], self._length[envs] = 0.0, 0
        self.n_reset += len(self._length[envs])

    def record(self, reward: Tensor, end: Tensor, is_reset: Tensor | None, is_broken: Tensor | None = None) -> int:
        """Takes the steps of a rollout, [T, B] each; returns the number of transitions (rows that are not only a reset).

        is_broken: ends of episodes that broke off as their env failed: these are not counted.
        """
        total = (
            reward.cumsum(0, dtype=torch.float64).numpy(force=True) + self._return
        )  # numpy's takes three times as long
        if is_reset is None:
            length = np.arange(1, len(total) + 1)[:, None] + self._length
        else:
            length = (~is_reset).cumsum(0).numpy(force=True) + self._length
        n_transition = int(length[-1].sum() - self._length.sum())
        t, b = np.divmod(np.flatnonzero(end.numpy(force=True)), end.shape[1])  # in order of time
        before = _end_before(b)
        whole = np.ones(len(t), dtype=bool) if is_broken is None else ~is_broken.numpy(force=True)[t, b]
        for kept, sums in ((self.returns, total[t, b]), (self.lengths, length[t, b])):
            kept.extend((sums - np.where(before < 0, 0, sums[before]))[whole][-100:].tolist())
        self.n_episode += int(np.count_nonzero(whole))
        self.n_reset += len(t)
        self._return, self._length = total[-1] - _last(total, t, b), length[-1] - _last(length, t, b)
        return n_transition


def mark_broken(is_reset: Tensor, end: Tensor, is_broken: Tensor) -> None:
    """Sets is_reset [T, B] in all rows of a rollout whose episode broke off: from the end before, [T, B], to the break."""
    for t, b in is_broken.nonzero().tolist():
        ends = end[:t, b].nonzero()
        is_reset[int(ends[-1]) + 1 if len(ends) else 0 : t, b] = True


def _end_before(b: np.ndarray) -> np.ndarray:
    """For episode ends in order of time, in envs b: the index of the previous end in the same env, -1 if there is none."""
    order, before = b.argsort(kind='stable'), np.full_like(b, -1)
    again = b[order][1:] == b[order][:-1]
    before[order[1:][again]] = order[:-1][again]
    return before


def _last(sums: np.ndarray, t: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Running sums [T, B] at the last episode end in each env, 0 if there is none."""
    last = np.zeros_like(sums[-1])
    last[b] = sums[t, b]  # of several ends the last is kept
    return last


class Collector:
    """Makes rollouts of n_step steps of B envs, in blocks [T, B] that are allocated once and reused.

    The policy's outputs and what the steps returned are written where they stay. What of it is remembered is up to the
    policy's `process_transition`: the collector knows no algorithm. A rollout is valid until the next call of
    `collect` or `reset`.

    Args: source: where the rows come from; or the envs, in groups, see `LocalRows`.
      infos: which of the envs' own numbers are kept of each episode, in `episodes.infos`; for a list of envs.
    """

    def __init__(self, source: Rows | Sequence[AnyVectorEnv], mode: CollectMode, infos: InfoKeys = NO_NUMBERS) -> None:
        is_list = isinstance(source, Sequence)
        self.source: Rows = LocalRows(source, mode, infos) if is_list else cast('Rows', source)  # type: ignore[arg-type]
        self._mode, self._n_step, self._n_env = mode, mode.n_step, self.source.n_env
        self.env_step = 0
        self.collect_iter = 0
        self.time = {'env': 0.0, 'act': 0.0}
        self.episodes = EpisodeTracker(self._n_env)

    def reset(self, seed: np.random.SeedSequence) -> None:
        """Starts new episodes in all envs."""
        self.source.reset(seed)
        self._mode.reset()
        self.episodes.reset()

    @torch.no_grad()
    def collect(self) -> Rollout:
        """Takes n_step steps in every env."""
        start, before = perf_counter(), self.source.env_time
        rollout = self._rollout(self.source.collect(self.collect_iter, self.env_step))
        env_time = self.source.env_time - before
        self.time['env'] += env_time
        self.time['act'] += perf_counter() - start - env_time
        return rollout

    def reward_metrics(self) -> dict[str, Tensor | float]:
        """Mean, deviation, least and greatest reward of an env step in the last rollout, before any scaling."""
        steps = self.source.block.steps
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
            'reward_std': math.sqrt(
                float(np.square(off, out=off).sum()) / x.size
            ),  # a dot product would wake BLAS's threads
            'reward_min': float(x.min()),
            'reward_max': float(x.max()),
        }

    def _rollout(self, found: Steps) -> Rollout:
        for envs in found.fresh:
            self.episodes.drop(envs)
            self._mode.forget(envs)
        block, infos = self.source.block, found.infos
        obs, steps = block.obs, block.steps
        end = steps.terminated | steps.truncated
        is_reset = steps.is_reset
        is_broken = None if steps.begins is None or is_reset is None else is_reset & steps.truncated
        n_step = self.episodes.record(
            steps.reward if steps.raw_reward is None else steps.raw_reward,
            end if steps.raw_end is None else steps.raw_end,
            is_reset,
            is_broken,
        )
        if found.episodes:
            self.episodes.infos.add(numbers for _, numbers in found.episodes)
        if is_reset is not None and is_broken is not None:
            mark_broken(is_reset, end, is_broken)
        if infos and self.collect_iter == 0:
            warn_of_missing(infos)
        steps = steps._replace(info=infos) if infos else steps
        transition = self._mode.process_transition(map_tensors(lambda x: x[:-1], obs), found.output, steps)
        data: Any = {**transition, **{COLUMN.format(key): x for key, x in infos.items()}} if infos else transition
        lead = (self._n_step, self._n_env)
        for path, x in leaves(data):
            if x.shape[:2] != lead:
                raise ValueError(
                    f'_process_transition gave {path!r} of shape {tuple(x.shape)} but it must begin with {lead}, the '
                    'steps and envs of the rollout'
                )
        self.env_step += n_step  # only now: if the policy's code fails above, what is saved is without this rollout
        self.collect_iter += 1
        last_obs, next_obs = map_tensors(lambda x: x[-1], obs), steps.next_obs
        if next_obs is not None and end.device.type == 'cpu':  # elsewhere a shape may not depend on the data
            index = end.nonzero()
            final_obs = map_tensors(lambda x: x[index[:, 0], index[:, 1]], next_obs)
            return Rollout(data, last_obs, final_obs, index, state=found.state)
        return Rollout(data, last_obs, *block.final(), next_obs, found.state)
