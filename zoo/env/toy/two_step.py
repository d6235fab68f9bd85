"""The two-step game of QMIX (Rashid et al., 2018, arXiv:1803.11485, section 5): two agents that are paid together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np

from zoo.core.registry import ENV_REGISTRY

Obs = dict[str, np.ndarray]
CHOICE, SURE, RISKY = range(3)
"""The states: agent_0 chooses between the others; in SURE both earn 7; in RISKY what PAYOFF says."""
SURE_REWARD = 7.0
PAYOFF = ((0.0, 1.0), (1.0, 8.0))
"""What each agent earns in RISKY, by the action of agent_0 and of agent_1."""


@ENV_REGISTRY.register('two_step_game')
class TwoStepGame:
    """A parallel env of two agents. The best return of each is 8; agents that learn alone often end with the sure 7.

    Both observe the state, one-hot. Action 0 of agent_0 in the first step leads to SURE, action 1 to RISKY.
    """

    metadata: ClassVar[dict[str, Any]] = {'name': 'two_step_game', 'render_modes': ['rgb_array'], 'render_fps': 1}
    possible_agents: ClassVar[list[str]] = ['agent_0', 'agent_1']

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.agents: list[str] = []
        self._state = CHOICE
        self._spaces = {
            agent: (gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32), gymnasium.spaces.Discrete(2))
            for agent in self.possible_agents
        }

    def observation_space(self, agent: str) -> gymnasium.Space:
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> gymnasium.Space:
        return self._spaces[agent][1]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, dict[str, Any]]]:
        """Begins an episode; nothing is random."""
        self.agents = list(self.possible_agents)
        self._state = CHOICE
        return self._obs(), {agent: {} for agent in self.agents}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[Obs, dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Takes the actions of both agents."""
        acted = self.agents
        first, second = int(actions['agent_0']), int(actions['agent_1'])
        reward = 0.0
        is_over = self._state != CHOICE
        if self._state == SURE:
            reward = SURE_REWARD
        elif self._state == RISKY:
            reward = PAYOFF[first][second]
        elif first == 0:
            self._state = SURE
        else:
            self._state = RISKY
        if is_over:
            self.agents = []
        return (
            self._obs(),
            dict.fromkeys(acted, reward),
            dict.fromkeys(acted, is_over),
            dict.fromkeys(acted, False),
            {agent: {} for agent in acted},
        )

    def state(self) -> np.ndarray:
        """The state, one-hot."""
        return np.eye(3, dtype=np.float32)[self._state]

    def render(self) -> np.ndarray:
        """A picture [60, 180, 3] with a square for each state; the present one is dark."""
        picture = np.full((60, 180, 3), 255, np.uint8)
        for state in range(3):
            colour = 200
            if state == self._state:
                colour = 60
            picture[8:52, 60 * state + 8 : 60 * state + 52, :2] = colour
        return picture

    def close(self) -> None:
        """Nothing is open."""

    def _obs(self) -> Obs:
        return {agent: self.state() for agent in self.possible_agents}
