"""Env x collect mode -> rollouts."""
from __future__ import annotations

from time import perf_counter

import numpy as np
import torch
from tensordict import TensorDict

from zoo.env import AnyVectorEnv
from zoo.episodes import EpisodeTracker
from zoo.policy.base import CollectMode
from zoo.rollout import Rollout


class Collector:
    """Steps B envs with a policy's collect mode, into blocks [T, B] that are allocated once and reused.

    What the policy gave and what the steps returned are written where they stay. What of it is remembered is up to the
    policy's `process_transition`: the collector knows no algorithm. A rollout is valid until the next call of
    `collect` or `reset`.
    """

    def __init__(self, env: AnyVectorEnv, mode: CollectMode) -> None:
        self._env, self._mode, self._n_step = env, mode, mode.n_step
        self._block = env.block(self._n_step)
        self._acting = mode.start(self._block.obs)
        self.env_step = 0
        self.collect_iter = 0
        self.time = {'env': 0.0, 'act': 0.0}
        self.episodes = EpisodeTracker(env.n_env)

    def reset(self, seed: np.random.SeedSequence) -> None:
        """Starts new episodes in all envs."""
        self._block.obs[-1].copy_(self._env.reset(seed))
        self._mode.reset()
        self.episodes.reset()

    @torch.no_grad()
    def collect(self) -> Rollout:
        """Takes n_step steps in every env."""
        block, act, step_into = self._block, self._acting.step, self._env.step_into
        env_time, start = 0.0, perf_counter()
        block.finals.clear()
        block.obs[0].copy_(block.obs[-1])
        self._acting.begin()
        for t in range(self._n_step):
            action = act(t)
            before = perf_counter()
            step_into(block, t, action)
            env_time += perf_counter() - before
        self._env.check()
        rollout = self._rollout()
        self.time['env'] += env_time
        self.time['act'] += perf_counter() - start - env_time
        return rollout

    def _rollout(self) -> Rollout:
        obs, steps = self._block.obs, self._block.steps
        end = steps.terminated | steps.truncated
        self.env_step += self.episodes.record(steps.reward if steps.raw_reward is None else steps.raw_reward,
                                              end if steps.raw_end is None else steps.raw_end, steps.is_reset)
        self.collect_iter += 1
        transition = self._mode.process_transition(obs[:-1], self._acting.output, steps)
        data = TensorDict(transition, batch_size=[self._n_step, self._env.n_env])
        next_obs = steps.next_obs
        if next_obs is not None and next_obs.device.type == 'cpu':  # elsewhere a shape may not depend on the data
            index = end.nonzero()
            return Rollout(data, obs[-1], next_obs[index[:, 0], index[:, 1]], index)
        return Rollout(data, obs[-1], *self._block.final(), next_obs)
