"""What a collector hands to a policy: a block of transitions and the observations that follow it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from zoo.core.transfer import send


@dataclass
class Rollout:
    """Transitions of B envs over T steps.

    data: [T, B], the keys that the policy's `_process_transition` gave; row t holds obs_t, action_t and
      what the step returned.
    last_obs: [B, *O], what each env showed after row T - 1.
    final_obs: [K, *O], the true last observations of the K episodes whose end the next row of the block does not show.
    final_index: [K, 2] int64, (t, b) of these ends.
    successor: [T, B, *O], the true successor of every row, where that is known without looking (envs on a device);
      there K is 0.
    """

    data: TensorDict
    last_obs: Tensor
    final_obs: Tensor
    final_index: Tensor
    successor: Tensor | None = None

    def column(self, b: int) -> Rollout:
        """The rollout of env b alone, T x 1."""
        mine = self.final_index[:, 1] == b
        index = self.final_index[mine].clone()
        index[:, 1] = 0
        successor = None if self.successor is None else self.successor[:, b : b + 1]
        return Rollout(self.data[:, b : b + 1], self.last_obs[b : b + 1], self.final_obs[mine], index, successor)

    def to(self, device: torch.device) -> Rollout:
        """The same on a device; memory that is pinned is still read when this returns, see `send`."""
        return Rollout(
            self.data.to(device),
            send(self.last_obs, device),
            send(self.final_obs, device),
            send(self.final_index, device),
            None if self.successor is None else send(self.successor, device),
        )

    def next_obs(self) -> Tensor:
        """[T, B, *O]: the true successor of every row."""
        if self.successor is not None:
            return self.successor
        following = torch.cat((self.data['obs'][1:], self.last_obs.unsqueeze(0)))
        if len(self.final_index):
            following[self.final_index[:, 0], self.final_index[:, 1]] = self.final_obs
        return following
