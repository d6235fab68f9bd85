"""What one step of a vector of envs returns."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Timestep(NamedTuple):
    """One step of B envs, in one form for every autoreset mode; tensors that the next step may overwrite.

    They are on the CPU, or where the envs are tensor programs, on their device.

    Where an episode ended, the true final observation is in `final_obs` if `obs` is already the first of the next
    episode (same_step, disabled), and is `obs` itself if the reset comes with the next step (next_step).
    """

    obs: Tensor  # [B, *O] f32 (Box; uint8 for an image of bytes) or [B] int64 index (Discrete)
    reward: Tensor  # [B] f32
    terminated: Tensor  # [B] bool, the reached state is terminal
    truncated: Tensor  # [B] bool, cut off from outside, such as by a time limit
    final_obs: Tensor | None  # [K, *O], of the K envs whose episode ended; None if none did or `obs` is it
    final_index: Tensor | None  # [K] int64, which envs those are
    info: dict[str, Any]  # of the vector env; single envs' own are not gathered
    is_reset: Tensor | None = None  # [B] bool, the row is only a reset, no sample; None where no such rows exist
    raw_reward: Tensor | None = None  # [B] f32, of the game, where `reward` is changed for training; None: `reward` is
    raw_end: Tensor | None = None  # [B] bool, the game is over, where a lost life ends an episode; None: as an episode
    next_obs: Tensor | None = None  # [B, *O], the true successor of every row; then final_obs and final_index are None
