"""Env x collect mode -> rollouts."""
from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from zoo.env import Timestep, VectorEnv
from zoo.policy.base import CollectMode
from zoo.rollout import Rollout


class Collector:
    """Steps B envs with a policy's collect mode into one block [T, B] that is allocated once and reused.

    Which tensors the block has is known from the first transition; the collector knows no algorithm.
    A rollout is valid until the next call of `collect`.
    """

    def __init__(self, env: VectorEnv, mode: CollectMode) -> None:
        self._env, self._mode, self._n_step = env, mode, mode.n_step
        self._data: TensorDict | None = None
        self._leaves: list[tuple[tuple[str, ...], tuple[Tensor, ...]]] = []
        self.env_step = 0
        self.collect_iter = 0
        self.time = {'env': 0.0, 'act': 0.0}
        self.episodes = EpisodeTracker(env.n_env)

    def reset(self, seed: np.random.SeedSequence) -> None:
        """Starts new episodes in all envs."""
        self._obs = self._env.reset(seed).clone()
        self._mode.reset()
        self.episodes.reset()

    @torch.no_grad()
    def collect(self) -> Rollout:
        """Takes n_step steps in every env."""
        env, mode, obs = self._env, self._mode, self._obs
        final_obs, final_index = [], []
        env_time, start = 0.0, perf_counter()
        for t in range(self._n_step):
            output = mode.forward(obs, None)
            before = perf_counter()
            timestep = env.step(output['action'])
            env_time += perf_counter() - before
            transition = mode.process_transition(obs, output, timestep)
            if self._data is None:
                self._allocate(transition)
            for path, rows in self._leaves:
                value = transition[path[0]]
                rows[t].copy_(value if len(path) == 1 else value[path[1]])
            self.episodes.record(*_raw(timestep), timestep.is_reset)
            if timestep.final_obs is not None and timestep.final_index is not None:
                final_obs.append(timestep.final_obs.clone())
                final_index.append(torch.stack((torch.full_like(timestep.final_index, t), timestep.final_index), 1))
            obs.copy_(timestep.obs)
        assert self._data is not None
        self.env_step += self.episodes.close_rollout()
        self.collect_iter += 1
        self.time['env'] += env_time
        self.time['act'] += perf_counter() - start - env_time
        return Rollout(self._data, obs.clone(), torch.cat(final_obs) if final_obs else obs[:0].clone(),
                       torch.cat(final_index) if final_index else torch.empty((0, 2), dtype=torch.int64))

    def _allocate(self, transition: dict[str, Any]) -> None:
        """Storage for n_step transitions like this one, and its rows, so that the loop indexes nothing but lists."""
        def block(like: Tensor) -> Tensor:
            return torch.empty((self._n_step, *like.shape), dtype=like.dtype, device=like.device)

        nested = {key: {k: block(v) for k, v in value.items()} if isinstance(value, dict) else block(value)
                  for key, value in transition.items()}
        self._data = TensorDict(nested, batch_size=[self._n_step, self._env.n_env])
        for key, value in nested.items():
            for path, leaf in ([((key, k), v) for k, v in value.items()]
                               if isinstance(value, dict) else [((key,), value)]):
                self._leaves.append((path, leaf.unbind(0)))


def _raw(timestep: Timestep) -> tuple[Tensor, Tensor]:
    """Rewards and ends of the game itself, which those of training may differ from."""
    reward = timestep.reward if timestep.raw_reward is None else timestep.raw_reward
    return reward, timestep.terminated | timestep.truncated if timestep.raw_end is None else timestep.raw_end


class EpisodeTracker:
    """Returns (undiscounted, raw rewards) and lengths of the last 100 training episodes, found once per rollout."""

    def __init__(self, n_env: int) -> None:
        self._rows: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._n_env = n_env
        self.returns: deque[float] = deque(maxlen=100)
        self.lengths: deque[int] = deque(maxlen=100)
        self.n_episode = 0
        self.reset()

    def reset(self) -> None:
        """All envs begin new episodes."""
        self._return, self._length = np.zeros(self._n_env), np.zeros(self._n_env, dtype=np.int64)

    def record(self, reward: Tensor, end: Tensor, is_reset: Tensor | None) -> None:
        """One step of [B] rewards and ends."""
        self._rows.append((reward.clone(), end, None if is_reset is None else is_reset.clone()))

    def close_rollout(self) -> int:
        """Adds the recorded steps to the statistics; returns how many of them were transitions (not mere resets)."""
        reward = torch.stack([row[0] for row in self._rows]).cpu().numpy().astype(np.float64)
        end = torch.stack([row[1] for row in self._rows]).cpu().numpy()
        counts = np.ones(reward.shape, dtype=np.int64)
        if self._rows[0][2] is not None:
            counts -= torch.stack([row[2] for row in self._rows if row[2] is not None]).cpu().numpy()
        self._rows.clear()
        total, length = reward.cumsum(0) + self._return, counts.cumsum(0) + self._length
        base_return, base_length = np.zeros(self._n_env), np.zeros(self._n_env, dtype=np.int64)
        for t, b in zip(*end.nonzero(), strict=True):  # in order of time
            self.returns.append(float(total[t, b] - base_return[b]))
            self.lengths.append(int(length[t, b] - base_length[b]))
            base_return[b], base_length[b] = total[t, b], length[t, b]
            self.n_episode += 1
        self._return, self._length = total[-1] - base_return, length[-1] - base_length
        return int(counts.sum())
