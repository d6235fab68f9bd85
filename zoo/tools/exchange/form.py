"""A model of another library in the names of zoo: what a reader gives, and what the builder makes a policy of."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.core.errors import UserError
from zoo.core.spaces import Space


class ModelFileError(UserError):
    """A file of a model cannot be imported; holds its path and the reason."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f'model {os.fspath(path)} {reason}')
        self.path = Path(path)
        self.reason = reason


class NewPlace(NamedTuple):
    """The parameter of zoo's model that a tensor of another library becomes.

    change: makes its form of it, such as another order of columns; None: as it is. It also holds for the tensor's moments.
    """

    name: str
    change: Callable[[Tensor], Tensor] | None = None

    def changed(self, tensor: Tensor) -> Tensor:
        """The tensor in the form that it has here."""
        if self.change is None:
            return tensor
        return self.change(tensor)


class Moments(NamedTuple):
    """The state of an optimiser: by the name of a moment, such as 'exp_avg', the tensor of each parameter; steps taken."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    step_count: float


class SavedStatistics(NamedTuple):
    """Running statistics: mean, variance and number of the values so far."""

    mean: np.ndarray
    var: np.ndarray
    n: float


class ForeignModel(NamedTuple):
    """A model of another library.

    path: its file. source: its library, with the version where the file says it, and its class: 'stable-baselines3 2.9.2 PPO'.
    config: the sections of zoo's config that it decides: its policy with the network, and what it says of envs and the run.
    obs_space, action_space: None: the file does not say it, so an env must.
    weights: by the name of the parameter here. moments: None: the file has none.
    obs_statistics: by the name of the entry of a Dict, '' for other spaces. reward_statistics: of discounted sums of rewards.
    env_step, train_iter: counts of its training so far. became, left_out: as of a `Conversion`.
    takes_mask: whether its actions are chosen by a mask that its env gives. places: of its parameters, by their names there.
    """

    path: Path
    source: str
    config: dict[str, Any]
    obs_space: Space | None
    action_space: Space | None
    weights: Mapping[str, Tensor]
    moments: Moments | None
    became: list[tuple[str, str]]
    left_out: list[tuple[str, str]]
    obs_statistics: Mapping[str, SavedStatistics] = {}
    reward_statistics: SavedStatistics | None = None
    env_step: int = 0
    train_iter: int = 0
    takes_mask: bool = False
    places: Mapping[str, NewPlace] = {}

    def text(self) -> str:
        """Returns a line with the source, then a line for each entry that was kept or left out."""
        lines = [f'read as {self.source}']
        lines += [f'{old}  ->  {new}' for old, new in self.became]
        lines += [f'{old}  left out: {why}' for old, why in self.left_out]
        return '\n'.join(lines)


def placed(tensors: Mapping[str, Tensor], places: Mapping[str, NewPlace], path: Path) -> dict[str, Tensor]:
    """The tensors by the names that they have here. Raises: ModelFileError if one has no place, or a place no tensor."""
    for name in tensors:
        if name not in places:
            raise ModelFileError(
                path, f'has the entry {name!r}, which has no place in a policy of zoo; import a model without it'
            )
    for name in places:
        if name not in tensors:
            raise ModelFileError(path, f'lacks the entry {name!r}, which its other entries need; save the model again')
    return {place.name: place.changed(tensors[name].detach().to(torch.float32)) for name, place in places.items()}


def channels_last(n_channel: int) -> Callable[[Tensor], Tensor]:
    """Changes the columns of a layer on flattened maps from the order C, H, W to H, W, C, for square or other maps.

    Args: n_channel: of the maps. The columns of one channel lie side by side before, H * W of them.
    """

    def change(weight: Tensor) -> Tensor:
        n_out = len(weight)
        return weight.reshape(n_out, n_channel, -1).transpose(1, 2).reshape(n_out, -1).contiguous()

    return change
