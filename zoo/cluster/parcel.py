"""What goes to a runner and what comes back: plain values and arrays of numpy, no tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.core.data import leaves
from zoo.env.attributes import EnvCommand


class Order(NamedTuple):
    """One rollout that a runner is asked for; its parcel is accepted once, by (run_id, group, collect_iter, attempt)."""

    run_id: str
    group: int  # of the runner
    collect_iter: int  # rollouts before this one
    version: int | None  # of the weights to act with; None: the newest when the runner begins
    env_step: int  # of the run when it was asked
    reset_seed: tuple[int, ...] | None = None  # entropy of the seed that its envs are reset with before; None: go on
    attempt: int = 0  # how often the runner's orders were lost before
    commands: tuple[EnvCommand, ...] = ()  # for the envs, before the reset: what was set in those of a lost runner
    reset_options: Mapping[str, Any] | None = None  # of the resets from this one on; None: as they are


class Parcel(NamedTuple):
    """One rollout of a runner's b envs.

    blocks: by dotted name: 'obs' or 'obs.<leaf>' [T + 1, b, ...]; 'steps.reward' and the other fields of `StepBlock`
      [T, b, ...]; 'output.action' and what else acting gave [T, b, ...]; 'state' or 'state.<leaf>', the recurrent state
      before row 0, [b, ...]; 'info.<entry>' [T, b, ...] of env.info_columns.
    """

    run_id: str
    group: int
    collect_iter: int
    version: int  # of the weights that acted
    blocks: dict[str, np.ndarray]
    finals: list[tuple[int, np.ndarray, Any]]  # (t, which of the b envs, their true last observations), see `StepBlock`
    episodes: list[tuple[int, dict[str, float]]]  # (t, the env's own numbers), in the order in which they came
    time: dict[str, float]  # seconds: load, env, act
    host: str
    pid: int
    attempt: int = 0  # of the order
    n_restart: int = 0  # envs that this runner made anew so far (env.on_error)

    @property
    def n_byte(self) -> int:
        """Size of the blocks."""
        return sum(block.nbytes for block in self.blocks.values())


class Lost(NamedTuple):
    """A runner that ended, or was ended; the engine makes another, and its outstanding orders are forgotten."""

    group: int
    cause: str  # a clause: 'its process was ended by signal 9 (SIGKILL)'


def flat(tree: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a tree of tensors, each with its dotted path after the name; of tensors on the CPU they are views."""
    for path, x in leaves(tree):
        yield f'{name}.{path}' if path else name, x.detach().numpy(force=True)


def tree_of(blocks: Mapping[str, Any], name: str) -> Any:
    """The (nested) dict of what stands under a dotted name, the inverse of `flat`; None if there is nothing."""
    if name in blocks:
        return blocks[name]
    found: dict[str, Any] = {}
    for path, x in blocks.items():
        if path.startswith(f'{name}.'):
            *folders, leaf = path[len(name) + 1 :].split('.')
            place = found
            for folder in folders:
                place = place.setdefault(folder, {})
            place[leaf] = x
    return found or None


def tensor_like(block: np.ndarray, n_env: int, dim: int) -> Tensor:
    """Memory for a block of all n_env envs; dim: which of its dimensions counts envs."""
    shape = *block.shape[:dim], n_env, *block.shape[dim + 1 :]
    return torch.empty(shape, dtype=torch.from_numpy(block[:0].copy()).dtype)
