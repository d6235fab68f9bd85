"""Env x collect mode -> rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np
import torch
from tensordict import TensorDict

from zoo.core.data import Rollout
from zoo.env import AnyVectorEnv
from zoo.policy.base import CollectMode
from zoo.worker.env_group import EnvGroup, side_by_side
from zoo.worker.episodes import EpisodeTracker


class Collector:
    """Steps B envs with a policy's collect mode, into blocks [T, B] that are allocated once and reused.

    What the policy gave and what the steps returned are written where they stay. What of it is remembered is up to the
    policy's `process_transition`: the collector knows no algorithm. A rollout is valid until the next call of
    `collect` or `reset`.

    Args: envs: of one kind; several groups take turns, so that the policy acts for one (on a GPU, or while envs step
      in processes or threads of their own) as another steps. B is the sum.
    """

    def __init__(self, envs: Sequence[AnyVectorEnv], mode: CollectMode) -> None:
        self._mode, self._n_step, self._n_env = mode, mode.n_step, sum(env.n_env for env in envs)
        self._block = envs[0].block(self._n_step, self._n_env)
        stops = np.cumsum([env.n_env for env in envs]).tolist()
        self._groups = [
            EnvGroup(env, self._block.part(stop - env.n_env, stop), mode) for env, stop in zip(envs, stops, strict=True)
        ]
        self.env_step = 0
        self.collect_iter = 0
        self.time = {'env': 0.0, 'act': 0.0}
        self.episodes = EpisodeTracker(self._n_env)

    def reset(self, seed: np.random.SeedSequence) -> None:
        """Starts new episodes in all envs."""
        for group in self._groups:
            group.block.obs[-1].copy_(group.env.reset(seed))
        self._mode.reset()
        self.episodes.reset()

    @torch.no_grad()
    def collect(self) -> Rollout:
        """Takes n_step steps in every env."""
        groups, last = self._groups, self._n_step - 1
        start, before = perf_counter(), sum(group.env_time for group in groups)
        self._block.restart()
        for group in groups:
            group.acting.begin()
        for group in groups:
            group.act(0)
        for t in range(self._n_step):
            for group in groups:
                group.step(t)
                if t < last:
                    group.act(t + 1)
        for group in groups:
            group.env.check()
        rollout = self._rollout()
        env_time = sum(group.env_time for group in groups) - before
        self.time['env'] += env_time
        self.time['act'] += perf_counter() - start - env_time
        return rollout

    def _rollout(self) -> Rollout:
        obs, steps = self._block.obs, self._block.steps
        end = steps.terminated | steps.truncated
        self.env_step += self.episodes.record(
            steps.reward if steps.raw_reward is None else steps.raw_reward,
            end if steps.raw_end is None else steps.raw_end,
            steps.is_reset,
        )
        self.collect_iter += 1
        output = side_by_side([group.acting.output for group in self._groups])
        transition = self._mode.process_transition(obs[:-1], output, steps)
        data = TensorDict(transition, batch_size=[self._n_step, self._n_env])
        next_obs = steps.next_obs
        if next_obs is not None and next_obs.device.type == 'cpu':  # elsewhere a shape may not depend on the data
            index = end.nonzero()
            return Rollout(data, obs[-1], next_obs[index[:, 0], index[:, 1]], index)
        return Rollout(data, obs[-1], *self._block.final(), next_obs)
