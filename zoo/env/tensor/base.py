"""The base class of tensor envs, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.core.data import Obs
from zoo.core.registry import Registry
from zoo.core.spaces import Space

State = Any  # a tensor, or a tuple, NamedTuple or dict of tensors, all of them [N, ...]


class TensorEnv(ABC):
    """Many envs of one kind as three pure functions of tensors.

    Rows are envs. A row must not depend on other rows, and no function may read values from Python (`.item()`,
    `if tensor:`, boolean indexing): use torch.where to choose between values. Then a step never waits for the device,
    and can be compiled. Functions return new tensors on the device of their inputs. Tensors that are made in the
    constructor are on that device too.
    """

    obs_space: Space
    action_space: Space
    max_episode_steps: int | None = None  # if env.max_episode_steps is not set; None: no limit
    n_noise: int = 0  # random numbers that a reset uses
    n_step_noise: int = 0  # random numbers that a step uses

    @abstractmethod
    def reset(self, noise: Tensor) -> State:
        """States of N new episodes; N may differ from the number of envs.

        Args:
          noise: [N, n_noise] f32, uniform in [0, 1); the only source of randomness.
        """

    @abstractmethod
    def step(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Tensor, Tensor]:
        """The next states, the rewards [B] f32, and whether those states are terminal [B] bool.

        The env does not handle time limits and new episodes.

        Args:
          action: of action_space: [B] int64 (Discrete), [B, *A] int64 (MultiDiscrete, MultiBinary) or [B, *A] f32 (Box).
          noise: [B, n_step_noise] f32, uniform in [0, 1).
        """

    def observe(self, state: State) -> Obs:
        """The observations of N states: [N, *O] f32 (Box; uint8 for an image of bytes), int64 (Discrete, MultiDiscrete:
        indices from 0) or bool (MultiBinary); of a Dict a dict of these. An entry 'action_mask' is a MultiBinary."""
        return state


TENSOR_ENV_REGISTRY: Registry[Callable[..., TensorEnv]] = Registry(
    'tensor_env', 'zoo.tensor_envs', ('zoo.env.tensor.classic',)
)


def state_leaves(state: State) -> list[Tensor]:
    """The tensors of a state, in order."""
    if isinstance(state, Tensor):
        return [state]
    return list(state.values() if isinstance(state, dict) else state)


def rebuild(like: State, tensors: Sequence[Tensor]) -> State:
    """A state with the structure of `like`; the inverse of `state_leaves`."""
    if isinstance(like, Tensor):
        return tensors[0]
    if isinstance(like, dict):
        return dict(zip(like, tensors, strict=True))
    return type(like)(*tensors) if hasattr(like, '_fields') else tuple(tensors)


def choose(mask: Tensor, new: State, old: State) -> State:
    """Rows of `new` where mask [B] is true, of `old` elsewhere."""
    if isinstance(old, Tensor):
        return torch.where(mask.view(-1, *[1] * (old.dim() - 1)), new, old)
    return rebuild(old, [choose(mask, *pair) for pair in zip(state_leaves(new), state_leaves(old), strict=True)])
