"""Distribution 'categorical': one of A choices; param [..., A] holds unnormalised log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from zoo.core.data import wide
from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import Discrete, Space
from zoo.rl_utils.distribution import Logit, LogitDist


@DISTRIBUTION_REGISTRY.register('categorical')
class Categorical(LogitDist):
    """Actions are indices [...] int64. A choice with a logit of -inf cannot be taken; everything stays finite."""

    name: ClassVar[str] = 'categorical'

    def __init__(self, n_choice: int) -> None:
        super().__init__(n_choice, 0)

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> Categorical | None:
        if isinstance(space, Discrete):
            return cls(space.n)
        return None

    @classmethod
    def from_user_logit(cls, logit: Logit) -> tuple[Categorical, Tensor] | None:
        if not isinstance(logit, Tensor):
            return None
        return cls(logit.shape[-1] if logit.dim() else 0), logit

    def mode(self, param: Tensor) -> Tensor:
        return param.argmax(-1)

    def sample(self, param: Tensor, noise: Tensor) -> Tensor:
        return (param + noise).argmax(-1)  # the Gumbel-max trick, see LogitDist

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        logp = wide(param).log_softmax(-1)
        try:
            return logp.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)
        except RuntimeError:
            self.check_range(action)  # most likely an index is outside; this says which
            raise

    def entropy(self, param: Tensor) -> Tensor:
        logp = wide(param).log_softmax(-1)
        return -(logp.exp() * logp.clamp(min=-1e4)).sum(-1)  # at -inf, 0 * logp and its gradient stay finite

    def kl(self, param_p: Tensor, param_q: Tensor) -> Tensor:
        """sum_a p(a) * (log p(a) - log q(a))."""
        logp = wide(param_p).log_softmax(-1)
        logq = wide(param_q).log_softmax(-1)
        never = logp == -torch.inf  # 0 * log 0 is 0
        return (logp.exp() * (logp.masked_fill(never, 0.0) - logq.masked_fill(never, 0.0))).sum(-1)

    def split(self, param: Tensor) -> Logit:
        return param

    def check_range(self, action: Tensor, what: str = 'action', owner: str = 'logit_new ') -> None:
        n = self.n_param
        low, high = action.aminmax()
        if low < 0 or high >= n:
            raise ValueError(f'{what} holds {low} to {high} but {owner}has {n} choices; give indices in 0..{n - 1}')
