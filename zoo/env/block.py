"""Storage for what the steps of a rollout return: every step writes its own row, and nothing is copied again."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.env.timestep import Timestep

Field = Literal['is_reset', 'raw_reward', 'raw_end', 'next_obs']
_DTYPES = {'reward': torch.float32, 'terminated': torch.bool, 'truncated': torch.bool, 'is_reset': torch.bool,
           'raw_reward': torch.float32, 'raw_end': torch.bool}


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
      arrays: whether its rows are arrays of numpy, not tensors; pinned: in memory that a GPU reads without waiting.
    Attributes: obs: [T + 1, B, *O]; step t writes row t + 1, row 0 is up to who steps. steps: a Timestep of blocks
      [T, B, ...], its obs those that followed. rows: T Rows, views of these. finals: (t, env indices, their true last
      observations), of the steps that ended episodes whose last observation `obs` does not show.
    """

    def __init__(self, n_step: int, like: Tensor, also: Sequence[Field] = (), arrays: bool = False,
                 pinned: bool = False) -> None:
        def empty(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=like.device, pin_memory=pinned)

        self.obs = empty(n_step + 1, *like.shape, dtype=like.dtype)
        blocks = {name: empty(n_step, len(like), dtype=_DTYPES[name])
                  for name in ('reward', 'terminated', 'truncated', *also) if name in _DTYPES}
        if 'next_obs' in also:
            blocks['next_obs'] = empty(n_step, *like.shape, dtype=like.dtype)
        steps: dict[str, Any] = {'obs': self.obs[1:], **blocks}
        self.steps = Timestep(**steps, final_obs=None, final_index=None, info={})
        columns: list[Any] = [x.numpy() if arrays else x.unbind(0) for x in steps.values()]
        self.rows = [Row(**dict(zip(steps, parts, strict=True))) for parts in zip(*columns, strict=True)]
        self.finals: list[tuple[int, np.ndarray, np.ndarray]] = []

    def final(self) -> tuple[Tensor, Tensor]:
        """`finals` as tensors: observations [K, *O] and [K, 2] int64, (t, b)."""
        if not self.finals:
            return self.obs[-1, :0], torch.empty((0, 2), dtype=torch.int64, device=self.obs.device)
        index = [np.stack((np.full_like(envs, t), envs), 1) for t, envs, _ in self.finals]
        return (torch.from_numpy(np.concatenate([obs for *_, obs in self.finals])),
                torch.from_numpy(np.concatenate(index)))
