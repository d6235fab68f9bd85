"""Env x collect mode -> rollouts."""
from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from zoo.env import AnyVectorEnv, Timestep
from zoo.episodes import EpisodeTracker
from zoo.policy.base import CollectMode
from zoo.rollout import Rollout

Rows = tuple[Tensor, ...]
ROW_FIELDS = ('reward', 'terminated', 'truncated', 'is_reset', 'raw_reward', 'raw_end', 'next_obs')  # of a Timestep


class Collector:
    """Steps B envs with a policy's collect mode, into blocks [T, B] that are allocated once and reused.

    Kept are the observations, what the policy's `forward` returned and what the steps did; the first step shows which
    tensors these are. What of it is remembered is up to the policy's `process_transition`: the collector knows no
    algorithm. A rollout is valid until the next call of `collect`.
    """

    def __init__(self, env: AnyVectorEnv, mode: CollectMode) -> None:
        self._env, self._mode, self._n_step = env, mode, mode.n_step
        self._output: dict[str, Any] = {}
        self._timestep: Timestep | None = None
        self._output_rows: list[tuple[str, str | None, Rows]] = []
        self._timestep_rows: list[tuple[int, Rows]] = []
        self.env_step = 0
        self.collect_iter = 0
        self.time = {'env': 0.0, 'act': 0.0}
        self.episodes = EpisodeTracker(env.n_env)

    def reset(self, seed: np.random.SeedSequence) -> None:
        """Starts new episodes in all envs."""
        first = self._env.reset(seed)
        self._obs = self._block(first, self._n_step + 1)
        self._obs_rows = self._obs.unbind(0)
        self._obs_rows[-1].copy_(first)
        self._mode.reset()
        self.episodes.reset()

    @torch.no_grad()
    def collect(self) -> Rollout:
        """Takes n_step steps in every env."""
        env, forward, obs_rows = self._env, self._mode.forward, self._obs_rows
        final_obs, final_index = [], []
        env_time, start = 0.0, perf_counter()
        obs_rows[0].copy_(obs_rows[-1])
        for t in range(self._n_step):
            output = forward(obs_rows[t], None)
            before = perf_counter()
            timestep = env.step(output['action'])
            env_time += perf_counter() - before
            if self._timestep is None:
                self._allocate(output, timestep)
            for key, part, rows in self._output_rows:
                rows[t].copy_(output[key] if part is None else output[key][part])
            values: Any = timestep
            for field, rows in self._timestep_rows:
                rows[t].copy_(values[field])
            obs_rows[t + 1].copy_(timestep.obs)
            if timestep.final_obs is not None and timestep.final_index is not None:
                final_obs.append(timestep.final_obs.clone())
                final_index.append(torch.stack((torch.full_like(timestep.final_index, t), timestep.final_index), 1))
        env.check()
        rollout = self._rollout(final_obs, final_index)
        self.time['env'] += env_time
        self.time['act'] += perf_counter() - start - env_time
        return rollout

    def _rollout(self, final_obs: list[Tensor], final_index: list[Tensor]) -> Rollout:
        step = self._timestep
        assert step is not None
        end = step.terminated | step.truncated
        self.env_step += self.episodes.record(step.reward if step.raw_reward is None else step.raw_reward,
                                              end if step.raw_end is None else step.raw_end, step.is_reset)
        self.collect_iter += 1
        step = step._replace(obs=self._obs[1:])
        transition = self._mode.process_transition(self._obs[:-1], self._output, step)
        data = TensorDict(transition, batch_size=[self._n_step, self._env.n_env])
        last_obs, next_obs = self._obs[-1], step.next_obs
        if next_obs is not None and next_obs.device.type == 'cpu':  # elsewhere a shape may not depend on the data
            index = end.nonzero()
            return Rollout(data, last_obs, next_obs[index[:, 0], index[:, 1]], index)
        return Rollout(data, last_obs, torch.cat(final_obs) if final_obs else last_obs[:0],
                       torch.cat(final_index) if final_index else torch.empty((0, 2), dtype=torch.int64), next_obs)

    def _allocate(self, output: dict[str, Any], timestep: Timestep) -> None:
        """Storage for n_step outputs and steps like these, and its rows, so that the loop indexes nothing but lists."""
        self._output = {key: {part: self._block(x, self._n_step) for part, x in value.items()}
                        if isinstance(value, dict) else self._block(value, self._n_step)
                        for key, value in output.items()}
        self._output_rows = [(key, part, block.unbind(0)) for key, value in self._output.items()
                             for part, block in (value.items() if isinstance(value, dict) else [(None, value)])]
        blocks = {field: self._block(getattr(timestep, field), self._n_step) for field in ROW_FIELDS
                  if getattr(timestep, field) is not None}
        self._timestep_rows = [(Timestep._fields.index(field), block.unbind(0)) for field, block in blocks.items()]
        self._timestep = timestep._replace(final_obs=None, final_index=None, info={}, **blocks)

    @staticmethod
    def _block(like: Tensor, n_step: int) -> Tensor:
        return torch.empty((n_step, *like.shape), dtype=like.dtype, device=like.device)
