"""Acting of models with a recurrent state, which is reset where an episode begins."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.backend.executor import Acting
from zoo.core.data import State, Timestep, map_tensors, send


class EpisodicActing:
    """Acting that finds the beginnings of episodes in the rows of its envs, and resets the state of these envs.

    Args: acting: of a model with a state; its `state` must be that of new episodes. steps: the rows [T, B] that envs write.
    """

    def __init__(self, acting: Acting, steps: Timestep) -> None:
        self._acting, self._steps, self._initial = acting, steps, acting.state
        self._is_new = True  # all envs begin episodes with the next row

    @property
    def output(self) -> dict[str, Any]:
        return self._acting.output

    @property
    def state(self) -> State:
        return self._acting.state

    def begin(self) -> None:
        """Called before each rollout; row 0 follows the last row of the rollout before."""
        self._acting.begin()
        if not self._is_new:
            self._restart(begins_of(self._steps, -1))
        self._is_new = False

    def step(self, t: int) -> Tensor:
        if t:
            self._restart(begins_of(self._steps, t - 1))
        return self._acting.step(t)

    def restart_all(self) -> None:
        """Resets the state of all envs; called after a reset of all envs."""
        self._restart(torch.ones(self._steps.reward.shape[1], dtype=torch.bool))
        self._is_new = True

    def _restart(self, begins: Tensor) -> None:
        """Resets the state of the envs whose episode begins with the next row, [B] bool."""
        self._acting.state = replace_rows(begins, self._initial, self._acting.state)


def begins_of(steps: Timestep, t: Any = ...) -> Tensor:
    """Whether an episode begins with the obs that the step returned, [B] or [T, B] bool. Args: t: one of the T steps."""
    if steps.begins is not None:
        return steps.begins[t]
    return steps.terminated[t] | steps.truncated[t] if steps.is_reset is None else steps.is_reset[t]


def replace_rows(rows: Tensor, new: State, old: State) -> State:
    """The state [B, ...] that is `new` in the rows where `rows` [B] bool is true, and `old` elsewhere."""

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(send(rows, b.device).view(-1, *[1] * (b.dim() - 1)), a, b)

    return map_tensors(choose, new, old)
