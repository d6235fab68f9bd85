"""Distribution 'bernoulli': K independent bits; param [..., K] are the log-odds of a 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from zoo.core.action_map import action_width
from zoo.core.data import wide
from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import MultiBinary, Space
from zoo.rl_utils.distribution import Logit, LogitDist, drawn

_RESOLUTION = 2.0**-24
"""Spacing of float32 below 1. Uniform numbers keep this distance from 0 and 1, so that their logits are finite, up to +-16.6."""


@DISTRIBUTION_REGISTRY.register('bernoulli')
class Bernoulli(LogitDist):
    """Actions are bits [..., K] int64. A mask says which bits may be 1; log-odds of -inf: the bit is always 0."""

    name: ClassVar[str] = 'bernoulli'

    def __init__(self, n_bit: int) -> None:
        super().__init__(n_bit, n_bit)

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> Bernoulli | None:
        return cls(action_width(space)) if isinstance(space, MultiBinary) and action_width(space) else None

    def noise(self, lead: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
        """Noise of the distribution Logistic(0, 1)."""
        return drawn(Tensor.uniform_, (*lead, self.n_noise), generator, device).logit_(eps=_RESOLUTION)

    def mode(self, param: Tensor) -> Tensor:
        return (param > 0).long()

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        param = wide(param)
        return logsigmoid(torch.where(action.bool(), param, -param)).sum(-1)

    def entropy(self, param: Tensor) -> Tensor:
        """Per bit, with l its log-odds: softplus(-l) + l * sigmoid(-l), which is even in l, so |l| is used."""
        size = wide(param).abs().clamp(max=1e4)  # the entropy is 0 there, and NaN at inf
        return (softplus(-size) + size * (-size).sigmoid()).sum(-1)

    def kl(self, param_p: Tensor, param_q: Tensor) -> Tensor:
        """Per bit: p * log(p / q) + (1 - p) * log((1 - p) / (1 - q)), and log(p / (1 - p)) is the parameter itself."""
        param_p, param_q = wide(param_p), wide(param_q)
        change = torch.where(param_p == -torch.inf, 0.0, param_p - param_q)  # 0 * log 0 is 0
        return (param_p.sigmoid() * change + logsigmoid(-param_p) - logsigmoid(-param_q)).sum(-1)

    def split(self, param: Tensor) -> Logit:
        return {'log_odds': param}

    def check_range(self, action: Tensor) -> None:
        low, high = action.aminmax()
        if low < 0 or high > 1:
            raise ValueError(f'action holds {low} to {high} but must hold bits; give zeros and ones')
