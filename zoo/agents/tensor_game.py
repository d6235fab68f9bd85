"""TensorGame: one copy of a tensor env of several agents as a game."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from zoo.agents.game import AgentGame, End, Turn
from zoo.agents.layout import OBS
from zoo.core.data import map_tensors
from zoo.core.spaces import ACTION_MASK, Dict, Space
from zoo.env.adapter import gymnasium_space
from zoo.env.tensor.agents import AgentTensorEnv


class TensorGame(AgentGame):
    """One copy of a tensor env of several agents. Args: limit: steps of an episode; None: as the env says.

    Masks next to observations that are no Dict are parts of turns, as those of OpenSpiel's games.
    """

    def __init__(self, env: AgentTensorEnv, limit: int | None = None) -> None:
        self.env = env
        self.agents = tuple(env.agents)
        self.metadata = {}
        self._limit = env.max_episode_steps
        if limit is not None:
            self._limit = limit
        self._obs_space: Space = env.obs_space
        self._has_masks = isinstance(env.obs_space, Dict) and set(env.obs_space.spaces) == {OBS, ACTION_MASK}
        if isinstance(env.obs_space, Dict) and self._has_masks:
            self._obs_space = env.obs_space.spaces[OBS]
        self._random = torch.Generator().manual_seed(0)
        self._n_step = 0

    def obs_space(self, agent: str) -> gymnasium.Space:
        return gymnasium_space(self._obs_space)

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium_space(self.env.action_space)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        if seed is not None:
            self._random.manual_seed(seed)
        self._n_step = 0
        self._state = self.env.reset(self._noise(self.env.n_noise))
        return self._turn({})

    def step(self, actions: Mapping[str, Any]) -> Turn:
        none = gymnasium_space(self.env.action_space).sample() * 0
        given = np.stack([np.asarray(actions.get(agent, none)) for agent in self.agents])
        self._state, reward, terminated = self.env.step(
            self._state, torch.from_numpy(given).unsqueeze(0), self._noise(self.env.n_step_noise)
        )
        self._n_step += 1
        rewards = dict(zip(self.agents, reward[0].tolist(), strict=True))
        is_terminal = bool(terminated[0])
        is_late = self._limit is not None and self._n_step >= self._limit
        if is_terminal or is_late:
            return Turn({}, rewards, {agent: End(self.observe(agent), is_terminal) for agent in self.agents})
        return self._turn(rewards)

    def observe(self, agent: str) -> Any:
        obs = self._seen_by(agent)
        if self._has_masks:
            return obs[OBS]
        return obs

    def state(self) -> np.ndarray:
        return self.env.world(self._state)[0].numpy()

    def render(self) -> str:
        return str(self._state)

    def close(self) -> None:
        """Nothing is open."""

    def _turn(self, rewards: Mapping[str, float]) -> Turn:
        acts = self.env.acts(self._state)[0].tolist()
        acting = [agent for agent, does in zip(self.agents, acts, strict=True) if does]
        masks = {}
        if self._has_masks:
            masks = {agent: self._seen_by(agent)[ACTION_MASK] for agent in acting}
        return Turn({agent: self.observe(agent) for agent in acting}, rewards, masks=masks)

    def _seen_by(self, agent: str) -> Any:
        i = self.agents.index(agent)
        return map_tensors(lambda x: x[0, i].numpy(), self.env.observe(self._state))

    def _noise(self, n: int) -> Tensor:
        return torch.rand(1, n, generator=self._random)
