"""Envs of gymnasium that have several agents: Tuples of spaces, a tuple of observations, and a list of rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from zoo.agents.game import AgentGame, End, Turn, number
from zoo.env.errors import BrokenContractError


class TupleGame(AgentGame):
    """An env of gymnasium whose agents act at the same time until the episode ends for all. Agents are agent_0, agent_1, ..."""

    def __init__(self, env: gymnasium.Env) -> None:
        self.env = env
        assert isinstance(env.action_space, gymnasium.spaces.Tuple), 'it was told by that'
        self.agents = tuple(f'agent_{i}' for i in range(len(env.action_space.spaces)))
        self.metadata = dict(env.metadata or {})
        self.render_mode = env.render_mode

    def obs_space(self, agent: str) -> gymnasium.Space:
        return self.env.observation_space.spaces[self.agents.index(agent)]

    def action_space(self, agent: str) -> gymnasium.Space:
        return self.env.action_space.spaces[self.agents.index(agent)]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        obs, _ = self.env.reset(seed=seed, options=options)
        return Turn(self._of_agents('reset', 'observations', obs))

    def step(self, actions: Mapping[str, Any]) -> Turn:
        obs, rewards, terminated, truncated, info = self.env.step(tuple(actions[agent] for agent in self.agents))
        observed = self._of_agents('step', 'observations', obs)
        earned = {
            agent: number(x, agent, self.reward_weights)
            for agent, x in self._of_agents('step', 'rewards', rewards).items()
        }
        infos = dict.fromkeys(self.agents, info)  # there is one for all
        if not np.all(np.logical_or(terminated, truncated)):
            return Turn(observed, earned, infos=infos)
        is_terminal = bool(np.all(terminated))
        return Turn({}, earned, {agent: End(x, is_terminal) for agent, x in observed.items()}, infos=infos)

    def _of_agents(self, call: str, what: str, values: Any) -> dict[str, Any]:
        if not hasattr(values, '__len__') or len(values) != len(self.agents):
            raise BrokenContractError(
                f'{call} returned {what} {values!r:.60}', f'{len(self.agents)}, one for each agent', 'return as many'
            )
        return dict(zip(self.agents, values, strict=True))
