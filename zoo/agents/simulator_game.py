"""SimulatorGame: one copy of a simulator of several agents as a game."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from zoo.agents.game import AgentGame, End, Turn
from zoo.core.data import Obs, map_tensors
from zoo.env.adapter import gymnasium_space
from zoo.env.tensor.agent_simulator import AgentSimulator, Seen


class SimulatorGame(AgentGame):
    """One copy of a simulator. Masks are entries of observations. Args: simulator: of one env, with its limit of steps."""

    def __init__(self, simulator: AgentSimulator) -> None:
        self.env = simulator.source
        self.agents = simulator.agents
        self.metadata = {}
        self._simulator = simulator
        self._seeds = np.random.default_rng(0)

    def obs_space(self, agent: str) -> gymnasium.Space:
        return gymnasium_space(self._simulator.obs_spaces[self.agents.index(agent)])

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium_space(self._simulator.action_spaces[self.agents.index(agent)])

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        if seed is not None:
            self._seeds = np.random.default_rng(seed)
        self._seen = self._simulator.reset(int(self._seeds.integers(2**63)))
        return Turn(self._acting(self._seen))

    def step(self, actions: Mapping[str, Any]) -> Turn:
        sent = []
        for agent, space in zip(self.agents, self._simulator.action_spaces, strict=True):
            none = np.zeros(space.shape, np.dtype(space.dtype))
            sent.append(torch.from_numpy(np.array(actions.get(agent, none))).unsqueeze(0))
        out = self._simulator.step(sent)
        self._seen = out.reached
        rewards = dict(zip(self.agents, out.reward[0].tolist(), strict=True))
        is_terminal = bool(out.terminated[0])
        if is_terminal or bool(out.truncated[0]):
            return Turn({}, rewards, {agent: End(self.observe(agent), is_terminal) for agent in self.agents})
        return Turn(self._acting(out.reached), rewards)

    def observe(self, agent: str) -> Any:
        return _first(self._seen.obs[self.agents.index(agent)])

    def state(self) -> Any:
        """Raises: NotImplementedError, since simulators have no state of the whole env."""
        raise NotImplementedError(f'{type(self._simulator).__name__} has no state of the whole env')

    def render(self) -> Any:
        return self._simulator.render()

    def close(self) -> None:
        self._simulator.close()

    def _acting(self, seen: Seen) -> dict[str, Any]:
        acts = seen.acts[0].tolist()
        return {agent: self.observe(agent) for agent, does in zip(self.agents, acts, strict=True) if does}


def _first(obs: Obs) -> Any:
    return map_tensors(lambda x: x[0].numpy(), obs)
