"""Distributions 'categorical' and 'multi_categorical': one of A choices, or K independent choices.

param [..., A], or [..., sum(nvec)] for all choices side by side, holds unnormalised log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor

from zoo.core.data import wide
from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import Discrete, MultiDiscrete, Space
from zoo.rl_utils.check import checks_action_range
from zoo.rl_utils.distribution import Logit, LogitDist


@DISTRIBUTION_REGISTRY.register('categorical')
class Categorical(LogitDist):
    """Actions are indices [...] int64. A choice with a logit of -inf cannot be taken; everything stays finite."""

    name: ClassVar[str] = 'categorical'

    def __init__(self, n_choice: int) -> None:
        super().__init__(n_choice, 0)

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> Categorical | None:
        return cls(space.n) if isinstance(space, Discrete) else None

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
            _check_range(action, self.n_param)  # most likely an index is outside; this says which
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
        """On a CPU torch itself finds indices outside [0, A). Elsewhere the check waits for the device; it is made only if
        the environment variable ZOO_DEBUG is 1."""
        super().check_action(action, lead)
        if not action.is_cpu and checks_action_range():
            _check_range(action, self.n_param)


def _check_range(action: Tensor, n: int, what: str = 'action', owner: str = 'logit_new ') -> None:
    """Raises ValueError unless each index is in [0, n)."""
    low, high = action.aminmax()
    if low < 0 or high >= n:
        raise ValueError(f'{what} holds {low} to {high} but {owner}has {n} choices; give indices in 0..{n - 1}')


@DISTRIBUTION_REGISTRY.register('multi_categorical')
class MultiCategorical(LogitDist):
    """Actions are indices [..., K] int64; entry k is one of nvec[k] choices.

    A choice with a logit of -inf cannot be taken. With one entry all results are bit-equal to those of Categorical.
    Adjacent entries with equal numbers of choices are computed together, and so are repetitions within nvec:
    (6, 4, 4, 7) * 100 takes three operations on 100 rows each.
    """

    name: ClassVar[str] = 'multi_categorical'

    def __init__(self, nvec: Sequence[int]) -> None:
        super().__init__(sum(nvec), len(nvec))
        self.nvec = tuple(nvec)
        repeats = (n for n in range(len(nvec), 0, -1) if len(nvec) % n == 0)
        self._n_repeat = next(n for n in repeats if self.nvec[: len(nvec) // n] * n == self.nvec)
        period = self.nvec[: len(nvec) // self._n_repeat]  # the shortest sequence that gives nvec when repeated
        self._runs = [(len(list(same)), Categorical(n)) for n, same in groupby(period)]
        self._n_entry = [k for k, _ in self._runs]
        self._n_logit = [k * dist.n_param for k, dist in self._runs]

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> MultiCategorical | None:
        return cls(space.nvec) if isinstance(space, MultiDiscrete) and space.nvec else None

    def mode(self, param: Tensor) -> Tensor:
        return self._each(Categorical.mode, self._rows(param)).flatten(-2)

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        # [..., K] -> for each run of a period [..., n_repeat, entries]; views
        indices = action.view(*action.shape[:-1], self._n_repeat, sum(self._n_entry)).split(self._n_entry, -1)
        try:
            return self._each(Categorical.log_prob, self._rows(param), indices).sum((-2, -1))
        except ValueError:
            self._check_ranges(action)  # an index outside; this says in which entry
            raise

    def entropy(self, param: Tensor) -> Tensor:
        return self._each(Categorical.entropy, self._rows(param)).sum((-2, -1))

    def kl(self, param_p: Tensor, param_q: Tensor) -> Tensor:
        return self._each(Categorical.kl, self._rows(param_p), self._rows(param_q)).sum((-2, -1))

    def split(self, param: Tensor) -> Logit:
        """The logits of each entry, under its number."""
        return {str(k): logit for k, logit in enumerate(param.split(self.nvec, -1))}

    def check_action(self, action: Tensor, lead: torch.Size) -> None:
        """Checks the range of indices under the same conditions as `Categorical.check_action`."""
        super().check_action(action, lead)
        if not action.is_cpu and checks_action_range():
            self._check_ranges(action)

    def _check_ranges(self, action: Tensor) -> None:
        for entry, n in enumerate(self.nvec):
            _check_range(action[..., entry], n, f'entry {entry} of action', '')

    def _each(self, function: Callable[..., Tensor], *rows: Sequence[Tensor]) -> Tensor:
        """A function's results for the distribution and rows of each run, side by side: [..., n_repeat, entries of a period]."""
        found = [function(dist, *each) for (_, dist), *each in zip(self._runs, *rows, strict=True)]
        return found[0] if len(found) == 1 else torch.cat(found, -1)

    def _rows(self, param: Tensor) -> list[Tensor]:
        """[..., P] -> for each run of a period [..., n_repeat, entries, choices]; views."""
        parts = param.view(*param.shape[:-1], self._n_repeat, sum(self._n_logit)).split(self._n_logit, -1)
        return [part.view(*part.shape[:-1], k, dist.n_param) for part, (k, dist) in zip(parts, self._runs, strict=True)]
