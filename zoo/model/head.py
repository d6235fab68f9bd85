"""Heads: features -> logit of an action distribution, or value.

The policy head's small gain makes the first policy near uniform.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.core.spaces import Box, Space
from zoo.model.init import orthogonal

_POLICY_GAIN = 0.01
LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0


class GaussianHead(nn.Module):
    """Features [..., F] -> {'mu', 'sigma'} of [..., D].

    sigma is a free parameter per dimension or a function of the features.
    """

    def __init__(self, n_in: int, n_out: int, state_dependent_std: bool, log_std_init: float) -> None:
        super().__init__()
        self.mu = orthogonal(nn.Linear(n_in, n_out), _POLICY_GAIN)
        if state_dependent_std:
            self.log_std_layer: nn.Linear | None = orthogonal(nn.Linear(n_in, n_out), _POLICY_GAIN)
            nn.init.constant_(self.log_std_layer.bias, log_std_init)
        else:
            self.log_std_layer = None
            self.log_std = nn.Parameter(torch.full((n_out,), log_std_init))

    def forward(self, feature: Tensor) -> dict[str, Tensor]:
        mu = self.mu(feature)
        log_std = self.log_std if self.log_std_layer is None else self.log_std_layer(feature)
        return {'mu': mu, 'sigma': log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp().expand_as(mu)}


class ValueHead(nn.Module):
    """Features [..., F] -> value [...]; its weights start with norm `gain`."""

    def __init__(self, n_in: int, gain: float = 1.0) -> None:
        super().__init__()
        self.layer = orthogonal(nn.Linear(n_in, 1), gain)

    def forward(self, feature: Tensor) -> Tensor:
        return self.layer(feature).squeeze(-1)


def make_policy_head(n_in: int, action_space: Space, state_dependent_std: bool, log_std_init: float) -> nn.Module:
    """The head that fits the action space: [..., n] logits (Discrete) or a GaussianHead (Box of one dimension)."""
    if isinstance(action_space, Box):
        if len(action_space.shape) != 1:
            raise ValueError(
                'a Gaussian head takes actions of shape [D] but the space has '
                f'shape {action_space.shape}; flatten them in the env'
            )
        return GaussianHead(n_in, action_space.shape[0], state_dependent_std, log_std_init)
    return orthogonal(nn.Linear(n_in, action_space.n), _POLICY_GAIN)
