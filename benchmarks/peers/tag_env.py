"""Tag in numpy, as a parallel env of PettingZoo: a cheap env of four agents, all of which live as long as the episode."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

N_STEP = 100  # of an episode, which a time limit ends
N_AGENT = 4
PUSHES = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], np.float32) * 0.1


def views() -> np.ndarray:
    """The matrix by which the bodies of all agents, [4 * 4], become their observations, [4, 16]."""
    identity = np.eye(4 * N_AGENT, dtype=np.float32).reshape(N_AGENT, 4, -1)  # the body of each agent
    rows = [[identity[i]] + [identity[j] - identity[i] for j in range(N_AGENT) if j != i] for i in range(N_AGENT)]
    return np.concatenate([np.concatenate(parts) for parts in rows])


class Tag(ParallelEnv):
    """Three agents chase the fourth in a square; each step they pay, and it earns, the distance to the nearest of them.

    An agent observes its place and speed, and the places and speeds of the others relative to its own: 16 numbers. It
    pushes itself in one of four directions, or not at all.
    """

    metadata: ClassVar[dict[str, Any]] = {'name': 'tag', 'render_modes': []}
    render_mode = None
    possible_agents: ClassVar[list[str]] = ['chaser_0', 'chaser_1', 'chaser_2', 'runner']

    def __init__(self) -> None:
        self.agents: list[str] = []
        self._obs_space = Box(-np.inf, np.inf, (4 * N_AGENT,), np.float32)
        self._action_space = Discrete(len(PUSHES))
        self._views = views()
        self._random = np.random.default_rng()

    def observation_space(self, agent: str) -> Box:
        return self._obs_space

    def action_space(self, agent: str) -> Discrete:
        return self._action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._n_step = 0
        self._bodies = np.zeros((N_AGENT, 4), np.float32)  # place and speed of each
        self._bodies[:, :2] = self._random.uniform(-1, 1, (N_AGENT, 2))
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        agents = self.agents
        place = self._bodies[:, :2]
        speed = self._bodies[:, 2:]
        speed *= 0.5
        speed += PUSHES[[actions[agent] for agent in agents]]
        place += speed
        np.minimum(place, 1, out=place)
        np.maximum(place, -1, out=place)
        *chasers, (x, y) = place.tolist()
        distance = min(math.hypot(a - x, b - y) for a, b in chasers)
        self._n_step += 1
        is_over = self._n_step == N_STEP
        rewards = dict.fromkeys(agents, -distance)
        rewards['runner'] = distance
        if is_over:
            self.agents = []
        terminated = dict.fromkeys(agents, False)
        truncated = dict.fromkeys(agents, is_over)
        return self._seen(), rewards, terminated, truncated, {agent: {} for agent in agents}

    def _seen(self) -> dict[str, np.ndarray]:
        obs = (self._views @ self._bodies.ravel()).reshape(N_AGENT, -1)
        return dict(zip(self.possible_agents, obs, strict=True))

    def close(self) -> None:
        pass
