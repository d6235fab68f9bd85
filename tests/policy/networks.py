"""Networks of a user, which no config builds."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Line(nn.Module):
    """An unregistered model for `limit_env`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 3)

    def compute_actor(self, obs: Tensor) -> Tensor:
        return self.layer(obs)[..., :2]

    def compute_critic(self, obs: Tensor) -> Tensor:
        return self.layer(obs)[..., 2]

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Tensor]:
        return {'logit': self.compute_actor(obs), 'value': self.compute_critic(obs)}


LAYERS = {'dropout': lambda: nn.Dropout(0.5), 'batch_norm': lambda: nn.BatchNorm1d(16)}


class Shared(nn.Module):
    """A trunk with the given layer, and three heads: policy, value and PPG's auxiliary value."""

    def __init__(self, layer: nn.Module, n_obs: int = 2, n_action: int = 2) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(n_obs, 16), layer, nn.Tanh())
        self.policy_head, self.value_head, self.aux_head = nn.Linear(16, n_action), nn.Linear(16, 1), nn.Linear(16, 1)
        self.joint = True

    def compute_actor(self, obs: Tensor) -> Tensor:
        return self.policy_head(self.trunk(obs))

    def compute_critic(self, obs: Tensor) -> Tensor:
        return self.value_head(self.trunk(obs))[..., 0]

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Tensor]:
        feature = self.trunk(obs)
        return {'logit': self.policy_head(feature), 'value': self.value_head(feature)[..., 0]}

    def compute_aux(self, obs: Tensor) -> dict[str, Tensor]:
        feature = self.trunk(obs)
        output = {name: getattr(self, f'{name}_head')(feature)[..., 0] for name in ('value', 'aux')}
        return {'logit': self.policy_head(feature), 'value': output['value'], 'aux_value': output['aux']}

    def critic_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.named_parameters() if name.startswith('value_head')]


def network(layer: str, **sizes: int) -> Shared:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Shared(LAYERS[layer](), **sizes)


class Coin(nn.Module):
    """Two actions, equally likely at first; counts how often its critic is run."""

    def __init__(self) -> None:
        super().__init__()
        self.logit, self.value = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(()))
        self.n_judged = 0

    def compute_actor(self, obs: Tensor) -> Tensor:
        return self.logit + torch.zeros(*obs.shape[:-1], 2)

    def compute_critic(self, obs: Tensor) -> Tensor:
        self.n_judged += 1
        return self.value + torch.zeros(obs.shape[:-1])

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Tensor]:
        return {'logit': self.compute_actor(obs), 'value': self.compute_critic(obs)}
