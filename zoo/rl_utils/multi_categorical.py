"""Distribution 'multi_categorical': K independent choices; param [..., sum of nvec] are the logits of all, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import MultiDiscrete, Space
from zoo.rl_utils.categorical import Categorical
from zoo.rl_utils.check import check_index_action, looks_at_actions
from zoo.rl_utils.distribution import ActionDist, Logit


@DISTRIBUTION_REGISTRY.register('multi_categorical')
class MultiCategorical(ActionDist):
    """Actions are indices [..., K] int64; entry k is one of nvec[k] choices.

    A logit of -inf is a choice that cannot be taken. With one entry all numbers are bit-equal to those of Categorical.
    Neighbours of the same number of choices are computed together, and so is a sequence of numbers that nvec repeats:
    (6, 4, 4, 7) * 100 takes three operations on 100 rows each.
    """

    name: ClassVar[str] = 'multi_categorical'
    is_index: ClassVar[bool] = True
    is_default: ClassVar[bool] = True
    reads = ()

    def __init__(self, nvec: Sequence[int]) -> None:
        super().__init__(sum(nvec), len(nvec), sum(nvec))
        self.n_mask = self.n_param
        self.nvec = tuple(nvec)
        period = _period(self.nvec)
        self._n_repeat = len(nvec) // len(period)
        self._runs = [(len(list(same)), Categorical(n)) for n, same in groupby(period)]
        self._n_entry = [k for k, _ in self._runs]
        self._n_logit = [k * dist.n_param for k, dist in self._runs]

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> MultiCategorical | None:
        return cls(space.nvec) if isinstance(space, MultiDiscrete) and space.nvec else None

    def make_head(self, n_feature: int, options: Mapping[str, Any]) -> nn.Module:
        return Categorical(self.n_param).make_head(n_feature, options)

    def noise(self, lead: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
        return Categorical(self.n_param).noise(lead, generator, device)

    def sample(self, param: Tensor, noise: Tensor) -> Tensor:
        return self.mode(param + noise)  # the Gumbel-max trick

    def mode(self, param: Tensor) -> Tensor:
        return self._each(Categorical.mode, self._rows(param)).flatten(-2)

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        try:
            return self._each(Categorical.log_prob, self._rows(param), self._indices(action)).sum((-2, -1))
        except ValueError:
            self._check_range(action)  # an index outside; this says in which entry
            raise

    def entropy(self, param: Tensor) -> Tensor:
        return self._each(Categorical.entropy, self._rows(param)).sum((-2, -1))

    def kl(self, param_p: Tensor, param_q: Tensor) -> Tensor:
        return self._each(Categorical.kl, self._rows(param_p), self._rows(param_q)).sum((-2, -1))

    def split(self, param: Tensor) -> Logit:
        """The logits of each entry, under its number."""
        return {str(k): logit for k, logit in enumerate(param.split(self.nvec, -1))}

    def check_action(self, action: Tensor, lead: torch.Size) -> None:
        """The range of the indices as in `Categorical.check_action`."""
        check_index_action(action, (*lead, self.n_action))
        if not action.is_cpu and looks_at_actions():
            self._check_range(action)

    def _check_range(self, action: Tensor) -> None:
        for entry, n in enumerate(self.nvec):
            low, high = action[..., entry].aminmax()
            if low < 0 or high >= n:
                raise ValueError(
                    f'entry {entry} of action holds {low} to {high} but has {n} choices; give indices in 0..{n - 1}'
                )

    def _each(self, function: Callable[..., Tensor], *rows: Sequence[Tensor]) -> Tensor:
        """The function of each run's distribution on its rows, side by side: [..., n_repeat, entries of a period]."""
        found = [function(dist, *each) for (_, dist), *each in zip(self._runs, *rows, strict=True)]
        return found[0] if len(found) == 1 else torch.cat(found, -1)

    def _rows(self, param: Tensor) -> list[Tensor]:
        """[..., P] -> for each run of a period [..., n_repeat, entries, choices]; views."""
        parts = param.view(*param.shape[:-1], self._n_repeat, sum(self._n_logit)).split(self._n_logit, -1)
        return [part.view(*part.shape[:-1], k, dist.n_param) for part, (k, dist) in zip(parts, self._runs, strict=True)]

    def _indices(self, action: Tensor) -> Sequence[Tensor]:
        """[..., K] -> for each run of a period [..., n_repeat, entries]; views."""
        return action.view(*action.shape[:-1], self._n_repeat, sum(self._n_entry)).split(self._n_entry, -1)


def _period(nvec: tuple[int, ...]) -> tuple[int, ...]:
    """The shortest sequence that gives nvec when repeated."""
    lengths = (n for n in range(1, len(nvec) + 1) if len(nvec) % n == 0)
    return next(nvec[:n] for n in lengths if nvec[:n] * (len(nvec) // n) == nvec)
