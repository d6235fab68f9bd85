"""AgentTensorEnv: many envs of several agents as pure functions of tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from zoo.core.data import Obs, first_leaf
from zoo.core.spaces import Box, Dict, Discrete
from zoo.env.tensor.program import State


class AgentTensorEnv(ABC):
    """Many envs of several agents, as a `TensorEnv` is many envs of one: the rules for its functions are the same.

    All agents have the same spaces, and an episode ends for all of them together. An agent that does not act in a state waits.
    Attributes: agents: their names; obs_space, action_space: of one agent; an entry 'action_mask' of observations is a
      MultiBinary of the choices that are allowed; spiel_game: the game of OpenSpiel whose information states the observations
      are, in which exploitability is computed, if any.
    """

    agents: tuple[str, ...]
    obs_space: Box | Dict
    action_space: Discrete | Box
    max_episode_steps: int | None = None  # if env.max_episode_steps is not set; None: no limit
    n_noise: int = 0  # random numbers that a reset uses
    n_step_noise: int = 0  # random numbers that a step uses
    spiel_game: str | None = None

    @abstractmethod
    def reset(self, noise: Tensor) -> State:
        """States of N new episodes. Args: noise: [N, n_noise] f32, uniform in [0, 1); the only source of randomness."""

    @abstractmethod
    def step(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Tensor, Tensor]:
        """The next states, the rewards of all agents [B, A] f32, and whether those states are terminal [B] bool.

        Args:
          action: [B, A] int64 (Discrete) or [B, A, *D] f32 (Box); of an agent that does not act it is any action.
          noise: [B, n_step_noise] f32, uniform in [0, 1).
        """

    @abstractmethod
    def observe(self, state: State) -> Obs:
        """The observations of all agents in N states, [N, A, *O]; of a Dict a dict of these."""

    def acts(self, state: State) -> Tensor:
        """Which agents act in N states, [N, A] bool: here all do."""
        return torch.ones(first_leaf(self.observe(state)).shape[:2], dtype=torch.bool)

    def world(self, state: State) -> Tensor:
        """The states of the whole env, [N, S] f32, for a central critic. Raises: NotImplementedError if there are none."""
        raise NotImplementedError(f'{type(self).__name__} has no state of the whole env')
