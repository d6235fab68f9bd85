"""Distribution 'categorical': one of A choices; param [..., A] are unnormalised log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import Discrete, Space
from zoo.rl_utils.check import check_index_action, looks_at_actions, wide
from zoo.rl_utils.distribution import ActionDist, Logit, draw_device
from zoo.rl_utils.init import POLICY_GAIN, orthogonal


@DISTRIBUTION_REGISTRY.register('categorical')
class Categorical(ActionDist):
    """Actions are indices [...] int64. A logit of -inf is a choice that cannot be taken: everything stays finite."""

    name: ClassVar[str] = 'categorical'
    is_index: ClassVar[bool] = True
    is_default: ClassVar[bool] = True
    reads = ()

    def __init__(self, n_choice: int) -> None:
        super().__init__(n_choice, 0)
        self.n_mask = n_choice

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> Categorical | None:
        return cls(space.n) if isinstance(space, Discrete) else None

    @classmethod
    def of_parts(cls, logit: Logit) -> tuple[Categorical, Tensor] | None:
        if not isinstance(logit, Tensor):
            return None
        return cls(logit.shape[-1] if logit.dim() else 0), logit

    def make_head(self, n_feature: int, options: Mapping[str, Any]) -> nn.Module:
        return orthogonal(nn.Linear(n_feature, self.n_param), POLICY_GAIN)

    def noise(self, lead: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
        where = draw_device(generator, device)
        exponential = torch.empty((*lead, self.n_param), device=where).exponential_(generator=generator)
        return exponential.log_().neg_().to(device)  # Gumbel(0, 1)

    def sample(self, param: Tensor, noise: Tensor) -> Tensor:
        return (param + noise).argmax(-1)  # the Gumbel-max trick: exact, no normalisation needed

    def mode(self, param: Tensor) -> Tensor:
        return param.argmax(-1)

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        logp = wide(param).log_softmax(-1)
        try:
            return logp.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)
        except RuntimeError:
            check_range(action, self.n_param)  # most likely torch met an index outside; this says which
            raise

    def entropy(self, param: Tensor) -> Tensor:
        logp = wide(param).log_softmax(-1)
        return -(logp.exp() * logp.clamp(min=-1e4)).sum(-1)  # at -inf, 0 * logp and its gradient stay finite

    def kl(self, param_p: Tensor, param_q: Tensor) -> Tensor:
        """sum_a p(a) * (log p(a) - log q(a))."""
        logp, logq = wide(param_p).log_softmax(-1), wide(param_q).log_softmax(-1)
        never = logp == -torch.inf  # 0 * log 0 is 0
        return (logp.exp() * (logp.masked_fill(never, 0.0) - logq.masked_fill(never, 0.0))).sum(-1)

    def split(self, param: Tensor) -> Logit:
        return param

    def check_action(self, action: Tensor, lead: torch.Size) -> None:
        """On a CPU torch itself finds indices outside [0, A); elsewhere that is looked at, and so waited for, only if
        the environment variable ZOO_DEBUG is 1."""
        check_index_action(action, lead)
        if not action.is_cpu and looks_at_actions():
            check_range(action, self.n_param)


def check_range(action: Tensor, n_choice: int) -> None:
    """Each index is one of n_choice. Raises: ValueError."""
    low, high = action.aminmax()
    if low < 0 or high >= n_choice:
        raise ValueError(
            f'action holds {low} to {high} but logit_new has {n_choice} choices; give indices in 0..{n_choice - 1}'
        )
