"""Storage for what the steps of a rollout return: every step writes its own row, and nothing is copied again."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.env.timestep import Timestep

Field = Literal['is_reset', 'raw_reward', 'raw_end', 'next_obs']
_DTYPES = {
    'reward': torch.float32,
    'terminated': torch.bool,
    'truncated': torch.bool,
    'is_reset': torch.bool,
    'raw_reward': torch.float32,
    'raw_end': torch.bool,
}


class Row(NamedTuple):
    """The places that one step writes to."""

    obs: Any  # [B, *O], what follows the step
    reward: Any
    terminated: Any
    truncated: Any
    is_reset: Any = None
    raw_reward: Any = None
    raw_end: Any = None
    next_obs: Any = None


class StepBlock:
    """What T steps of B envs return.

    Args: like: an observation of all envs, [B, *O]; also: the optional fields of Timestep that these envs give;
      arrays: whether its rows are arrays of numpy, not tensors; reader: a GPU that reads it, so that it lies in pinned
      memory, which is read without waiting.
    Attributes: obs: [T + 1, B, *O]; step t writes row t + 1, row 0 is up to who steps. steps: a Timestep of blocks
      [T, B, ...], its obs those that followed. rows: T Rows, views of these. finals: (t, env indices, their true last
      observations), of the steps that ended episodes whose last observation `obs` does not show.
    """

    def __init__(
        self,
        n_step: int,
        like: Tensor,
        also: Sequence[Field] = (),
        arrays: bool = False,
        reader: torch.device | None = None,
    ) -> None:
        self._arrays, self._reader = arrays, reader
        self._parts: list[tuple[int, StepBlock]] = []

        def empty(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=like.device, pin_memory=reader is not None)

        self.obs = empty(n_step + 1, *like.shape, dtype=like.dtype)
        blocks = {
            name: empty(n_step, len(like), dtype=_DTYPES[name])
            for name in ('reward', 'terminated', 'truncated', *also)
            if name in _DTYPES
        }
        if 'next_obs' in also:
            blocks['next_obs'] = empty(n_step, *like.shape, dtype=like.dtype)
        self._place({'obs': self.obs[1:], **blocks})

    def _place(self, steps: dict[str, Any]) -> None:
        self.steps = Timestep(**steps, final_obs=None, final_index=None, info={})
        columns: list[Any] = [x.numpy() if self._arrays else x.unbind(0) for x in steps.values()]
        self.rows = [Row(**dict(zip(steps, parts, strict=True))) for parts in zip(*columns, strict=True)]
        self.finals: list[tuple[int, np.ndarray, np.ndarray]] = []

    def part(self, start: int, stop: int) -> StepBlock:
        """The block of the envs from start to stop, in the same memory; its finals are among those of the whole."""
        part = copy(self)
        part._parts, part.obs = [], self.obs[:, start:stop]
        part._place({name: x[:, start:stop] for name, x in self.steps._asdict().items() if isinstance(x, Tensor)})
        self._parts.append((start, part))
        return part

    def restart(self) -> None:
        """The last observations become the first of the next rollout."""
        if self._reader is not None:
            torch.cuda.synchronize(self._reader)  # it may still read the rollout before
        self.obs[0].copy_(self.obs[-1])
        for _, block in [(0, self), *self._parts]:
            block.finals.clear()

    def final(self) -> tuple[Tensor, Tensor]:
        """`finals` as tensors: observations [K, *O] and [K, 2] int64, (t, b)."""
        finals = [(t, first + envs, obs) for first, block in [(0, self), *self._parts] for t, envs, obs in block.finals]
        if not finals:
            return self.obs[-1, :0], torch.empty((0, 2), dtype=torch.int64, device=self.obs.device)
        index = [np.stack((np.full_like(envs, t), envs), 1) for t, envs, _ in finals]
        return torch.from_numpy(np.concatenate([obs for *_, obs in finals])), torch.from_numpy(np.concatenate(index))
