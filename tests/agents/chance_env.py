"""An env of several agents with noise, whose rewards depend on actions, and whose agents end by chance."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np


class Chance:
    """A parallel env: each agent sees noise, and earns 1 for the action that says whether its first number is positive.

    In each step an agent ends with probability `end`; an episode ends with its last agent, or after 12 steps.
    """

    metadata: ClassVar[dict[str, Any]] = {'name': 'chance'}
    render_mode = None
    possible_agents: ClassVar[list[str]] = ['a', 'b', 'c']

    def __init__(self, end: float = 0.1) -> None:
        self._end = end
        self.agents: list[str] = []
        self._rng = np.random.default_rng()

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._t = 0
        self.agents = list(self.possible_agents)
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def _observe(self, agents: list[str]) -> dict[str, np.ndarray]:
        self._obs = {agent: self._rng.normal(size=3).astype(np.float32) for agent in agents}
        return self._obs

    def step(self, actions: dict[str, Any]) -> Any:
        acted = list(self.agents)
        rewards = {agent: float(actions[agent] == (self._obs[agent][0] > 0)) for agent in acted}
        self._t += 1
        cut = dict.fromkeys(acted, self._t == 12)
        ends = {agent: bool(self._rng.random() < self._end) for agent in acted}
        obs = self._observe(acted)
        self.agents = [agent for agent in acted if not ends[agent] and not cut[agent]]
        return obs, rewards, ends, cut, {agent: {} for agent in acted}

    def close(self) -> None:
        pass


class Everlasting(Chance):
    """Chance whose agents all live until the episode ends, so that every row acts in every step."""

    def __init__(self) -> None:
        super().__init__(end=0.0)
