"""AgentGame: one env of several agents, in one form for every library. `Turn` is what its reset and steps give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from zoo.env.errors import BrokenContractError

NUMBERS = frozenset((float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_))


class End(NamedTuple):
    """The end of an agent: its last observation, and whether the state that it reached is terminal (else it is cut off)."""

    obs: Any
    terminated: bool


class Turn(NamedTuple):
    """The result of a reset or a step of a game.

    acts: the agents that act next, with their observations, as the env gives them (without a mask of `masks`); empty when
      the episode is over.
    rewards: by agent, earned in this step; also of agents that did not act in it. Others have earned 0.
    ended: the agents that ended in this step, which never act again in this episode.
    masks: by agent that acts, which of its choices are allowed, if that is not an entry of its observation.
    infos: by agent, the entries of its info.
    """

    acts: Mapping[str, Any]
    rewards: Mapping[str, float] = {}
    ended: Mapping[str, End] = {}
    masks: Mapping[str, np.ndarray] = {}
    infos: Mapping[str, Mapping[str, Any]] = {}


class AgentGame(ABC):
    """One env of several agents.

    Attributes: env: that of the library; agents: the names of all agents that there may be, in their order; metadata and
      render_mode: as of gymnasium; reward_weights: of the numbers of vector rewards.
    """

    env: Any
    agents: tuple[str, ...]
    metadata: dict[str, Any]
    render_mode: str | None = None
    reward_weights: Sequence[float] | None = None

    @abstractmethod
    def obs_space(self, agent: str) -> gymnasium.Space:
        """The space of the observations of an agent."""

    @abstractmethod
    def action_space(self, agent: str) -> gymnasium.Space:
        """The space of the actions of an agent."""

    @abstractmethod
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        """Begins an episode. Args: options: None if there are none."""

    @abstractmethod
    def step(self, actions: Mapping[str, Any]) -> Turn:
        """Takes a step. Args: actions: of every agent in `acts` of the turn before."""

    def observe(self, agent: str) -> Any:
        """The observation of an agent that lives but does not act now. Raises: whatever the env raises if it has none."""
        return self.env.observe(agent)

    def state(self) -> Any:
        """The state of the whole env, for a central critic. Raises: whatever the env raises if it has none."""
        return self.env.state()

    def render(self) -> Any:
        """A picture, as of gymnasium."""
        return self.env.render()

    def close(self) -> None:
        """Closes the env, if it can be closed."""
        close = getattr(self.env, 'close', None)
        if callable(close):
            close()


def number(reward: Any, agent: str, weights: Sequence[float] | None = None) -> float:
    """A reward as a number, of any type. Args: weights: of the numbers of a vector reward. Raises: BrokenContractError."""
    if type(reward) in NUMBERS and (weights is None or reward == 0):  # before the first step envs often give 0
        return float(reward)
    values = np.asarray(reward)
    if values.dtype.kind not in 'fiub':
        raise BrokenContractError(f'the reward of agent {agent!r} is {reward!r:.60}', 'a number', 'correct the env')
    if weights is None and values.size == 1:
        return float(values.reshape(-1)[0])
    if weights is None or values.shape != (len(weights),):
        have = len(weights or ())
        raise BrokenContractError(
            f'the reward of agent {agent!r} has {values.size} numbers, env.reward_weights {have}',
            'as many weights as numbers',
            f'set env.reward_weights=[{", ".join(["1.0"] * values.size)}] (with your own weights)',
        )
    return float(np.dot(values, weights))


def numbers(rewards: Mapping[str, Any], weights: Sequence[float] | None = None) -> dict[str, float]:
    """The rewards of agents as numbers, see `number`."""
    if NUMBERS.issuperset(map(type, rewards.values())):
        return dict(zip(rewards, map(float, rewards.values()), strict=True))
    return {agent: number(x, agent, weights) for agent, x in rewards.items()}
