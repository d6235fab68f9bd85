"""simple_spread of the multi-agent particle envs as a tensor env: agents cover landmarks together, and do not collide.

Spaces, physics and rewards are those of mpe2's simple_spread_v3 with discrete actions. Source: Lowe et al. 2017, arXiv:1706.02275.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.core.spaces import Box, Discrete
from zoo.env.tensor.agents import AgentTensorEnv
from zoo.env.tensor.program import TENSOR_ENV_REGISTRY

DT = 0.1
DAMPING = 0.25  # of the speed, per step
PUSH = 5.0  # acceleration by an action
RADIUS = 0.15  # of an agent
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 1e-3  # softness of a contact


class Particles(NamedTuple):
    """place [N, A, 2] and speed [N, A, 2] of the agents, landmark [N, A, 2]; f64: contacts are a thousand times stiffer than pushes."""

    place: Tensor
    speed: Tensor
    landmark: Tensor


@TENSOR_ENV_REGISTRY.register('simple_spread')
class SimpleSpread(AgentTensorEnv):
    """As many agents as landmarks. Each agent earns (1 - local_ratio) times the negative sum of the distances from each landmark
    to its nearest agent, and local_ratio times -1 for each other agent that it touches.

    Observations: own speed, own place, landmarks and other agents relative to it, and zeros where others would signal.
    """

    action_space = Discrete(5)
    max_episode_steps = 25

    def __init__(self, n_agent: int = 3, local_ratio: float = 0.5) -> None:
        """n_agent: agents, and landmarks; local_ratio: share of the reward that is the agent's own."""
        self.agents = tuple(f'agent_{i}' for i in range(n_agent))
        self._n = n_agent
        self._local_ratio = local_ratio
        self.n_noise = 4 * n_agent
        n_obs = 4 + 2 * n_agent + 4 * (n_agent - 1)
        bound = np.full(n_obs, np.inf, np.float32)
        self.obs_space = Box(-bound, bound)
        self._push = torch.tensor(
            [[0.0, 0.0], [-PUSH, 0.0], [PUSH, 0.0], [0.0, -PUSH], [0.0, PUSH]], dtype=torch.float64
        )
        others = [[j for j in range(n_agent) if j != i] for i in range(n_agent)]
        self._others = torch.tensor(others, dtype=torch.int64).reshape(n_agent, n_agent - 1)
        self._is_self = torch.eye(n_agent, dtype=torch.bool)

    def reset(self, noise: Tensor) -> Particles:
        places = (2 * noise.double() - 1).view(len(noise), 2, self._n, 2)
        return Particles(places[:, 0], torch.zeros_like(places[:, 0]), places[:, 1])

    def step(self, state: Particles, action: Tensor, noise: Tensor) -> tuple[Particles, Tensor, Tensor]:
        force = self._push[action] + self._contact_force(state.place)
        place = state.place + state.speed * DT
        speed = state.speed * (1 - DAMPING) + force * DT
        state = Particles(place, speed, state.landmark)
        return state, self._reward(state), torch.zeros(len(place), dtype=torch.bool, device=place.device)

    def observe(self, state: Particles) -> Tensor:
        place = state.place
        to_landmarks = state.landmark.unsqueeze(1) - place.unsqueeze(2)
        to_agents = place.unsqueeze(1) - place.unsqueeze(2)  # [N, from, to, 2]
        index = self._others.view(1, self._n, self._n - 1, 1).expand(len(place), -1, -1, 2)
        to_others = to_agents.gather(2, index).flatten(2)
        parts = (state.speed, place, to_landmarks.flatten(2), to_others, torch.zeros_like(to_others))
        return torch.cat(parts, 2).float()

    def world(self, state: Particles) -> Tensor:
        """The observations of all agents."""
        return self.observe(state).flatten(1)

    def _contact_force(self, place: Tensor) -> Tensor:
        """[N, A, 2]: F d / |d| * k log(1 + exp((2 r - |d|) / k)), the sum over the other agents, of the distances d to them."""
        apart = place.unsqueeze(2) - place.unsqueeze(1)  # [N, A, A, 2], from the second to the first
        distance = apart.square().sum(3).sqrt()
        depth = torch.nn.functional.softplus((2 * RADIUS - distance) / CONTACT_MARGIN) * CONTACT_MARGIN
        strength = CONTACT_FORCE * depth / distance.masked_fill(self._is_self, 1.0)
        return (strength.masked_fill(self._is_self, 0.0).unsqueeze(3) * apart).sum(2)

    def _reward(self, state: Particles) -> Tensor:
        to_landmarks = (state.landmark.unsqueeze(1) - state.place.unsqueeze(2)).square().sum(3).sqrt()
        shared = -to_landmarks.amin(1).sum(1, keepdim=True)
        apart = (state.place.unsqueeze(2) - state.place.unsqueeze(1)).square().sum(3).sqrt()
        touches = ((apart < 2 * RADIUS) & ~self._is_self).sum(2).float()
        return ((1 - self._local_ratio) * shared - self._local_ratio * touches).float()
