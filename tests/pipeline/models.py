"""A network of the user's own, for runs that are given a model."""

from __future__ import annotations

import torch


class OneLayer(torch.nn.Module):
    """A model that is registered nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)

    def compute_actor(self, obs: torch.Tensor) -> torch.Tensor:
        return self.actor(obs)

    def compute_critic(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs).squeeze(-1)

    def compute_actor_critic(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {'logit': self.compute_actor(obs), 'value': self.compute_critic(obs)}
