"""AgentSimulator: B envs of several agents of another library that step together, with the results of all agents as tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from zoo.core.data import Obs
from zoo.core.spaces import Leaf, Space
from zoo.env.tensor.simulator import BadValues


class Seen(NamedTuple):
    """The observations of all agents in B states. obs: of each agent, [B, *O]; acts: [B, A] bool, who acts on them."""

    obs: Sequence[Obs]
    acts: Tensor


class AgentOutcome(NamedTuple):
    """The results of a step of B envs with A agents. No row depends on another one, and nobody may change the tensors.

    seen: the states from which the next step begins, the first of an episode where one ended; reached: the states that the
    step reached, also at an end; reward: [B, A] f32; terminated, truncated: [B] bool, of all agents together.
    """

    seen: Seen
    reached: Seen
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


class AgentSimulator(ABC):
    """B envs of several agents that step on the CPU, as a program that zoo does not look into.

    Attributes: agents: their names; obs_spaces, action_spaces: of each agent; an entry 'action_mask' of observations is a
      MultiBinary of the choices that are allowed; n_env: B; source: the object that attributes are read from, None if it has none.
    """

    agents: tuple[str, ...]
    obs_spaces: tuple[Space, ...]
    action_spaces: tuple[Leaf, ...]
    n_env: int
    source: object = None

    @abstractmethod
    def reset(self, seed: int) -> Seen:
        """Begins new episodes. seed: 64 bits; the same one gives the same episodes, whatever other envs of the process do."""

    @abstractmethod
    def step(self, actions: Sequence[Tensor]) -> AgentOutcome:
        """Takes a step, and begins new episodes where one ended.

        Args: actions: of each agent, [B] or [B, K] int64, or [B, *A] f32; of one that does not act it is any action.
        """

    @abstractmethod
    def find_bad(self) -> BadValues | None:
        """The first value since the reset that was not finite, None: all were."""

    def render(self) -> object:
        """A picture of the first env, [H, W, 3] of bytes. Raises: NotImplementedError if there is none."""
        raise NotImplementedError(f'{type(self).__name__} has no pictures')

    def close(self) -> None:
        """Releases what the envs hold; by default nothing."""
