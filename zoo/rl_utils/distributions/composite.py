"""Distributions of independent parts: 'composite', of any kinds, 'multi_categorical', of choices, 'bernoulli', of bits.

A composite has a part for each leaf of a Dict or Tuple of spaces (hybrid actions)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby
from operator import add
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from zoo.core.action_map import action_width
from zoo.core.data import wide
from zoo.core.errors import UserError
from zoo.core.registry import DISTRIBUTION_REGISTRY
from zoo.core.spaces import Dict, Discrete, MultiBinary, MultiDiscrete, Space, leaf_spaces
from zoo.rl_utils.distribution import ActionDist, Logit, LogitDist, drawn, fitting, make_dist
from zoo.rl_utils.distributions.categorical import Categorical

_MAX_CHOICE = 2**24  # actions are stored as float32, which does not have every integer from here on
_RESOLUTION = 2.0**-24
"""Spacing of float32 below 1. Uniform numbers keep this distance from 0 and 1, so that their logits are finite, up to +-16.6."""


class CompositeHead(nn.Module):
    """Features -> the parameters of all parts, side by side; each part has its own head."""

    def __init__(self, heads: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(heads)

    def forward(self, feature: Tensor) -> Tensor:
        return torch.cat([head(feature) for head in self.parts], -1)


@DISTRIBUTION_REGISTRY.register('composite')
class Composite(ActionDist):
    """Actions are [..., D] f32: those of the parts side by side in the order of the leaves, indices as floats.

    Parameters, noise and masks are side by side in the same order; parts that take no mask have no columns in it.
    """

    name: ClassVar[str] = 'composite'
    is_default: ClassVar[bool] = True

    def __init__(self, parts: Sequence[tuple[str, ActionDist]]) -> None:
        """parts: (name, distribution) of each leaf."""
        self.names = [name for name, _ in parts]
        self.parts = [dist for _, dist in parts]
        self._n_param = [part.n_param for part in self.parts]
        self._n_action = [part.n_action or 1 for part in self.parts]
        self._n_noise = [part.n_noise for part in self.parts]
        super().__init__(sum(self._n_param), sum(self._n_action), sum(self._n_noise))
        self.is_bounded = any(part.is_bounded for part in self.parts)
        self.n_mask = sum(part.n_mask for part in self.parts)
        read = [part.reads for part in self.parts]
        if None in read:
            self.reads = None
        else:
            self.reads = tuple(name for each in read for name in each or ())

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> Composite | None:
        """The distribution named in options is used for the leaves that it fits, the default ones for the others."""
        if not isinstance(space, Dict):
            return None
        leaves = list(leaf_spaces(space))
        name = options.get('distribution', 'auto')
        if not leaves:
            raise UserError('the actions are an empty Dict or Tuple; a policy needs something to choose')
        for path, leaf in leaves:
            n_choice = _largest_choice(leaf)
            if n_choice >= _MAX_CHOICE:
                raise UserError(
                    f'the part {path!r} of the actions has {n_choice} choices, but in a Dict or Tuple fewer than '
                    f'{_MAX_CHOICE} are supported; split them into several entries'
                )
        named = None
        if name not in ('auto', cls.name):
            named = DISTRIBUTION_REGISTRY.get(name)
        fits = [named is not None and named.of_space(leaf, options) is not None for _, leaf in leaves]
        if named is not None and not any(fits):
            known = ', '.join(f'{path}: {" or ".join(fitting(leaf, options))}' for path, leaf in leaves)
            raise UserError(
                f"policy.model.distribution is {name!r}, which can draw no part of the actions; use 'auto', or what "
                f'fits a part ({known})'
            )
        return cls(
            [
                (path, make_dist(leaf, name if fit else 'auto', options))
                for (path, leaf), fit in zip(leaves, fits, strict=True)
            ]
        )

    def make_head(self, n_feature: int, options: Mapping[str, Any]) -> nn.Module:
        return CompositeHead([part.make_head(n_feature, options) for part in self.parts])

    def noise(self, lead: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
        return torch.cat([part.noise(lead, generator, device) for part in self.parts], -1)

    def sample(self, param: Tensor, noise: Tensor) -> Tensor:
        noises = noise.split(self._n_noise, -1)
        return self._joined([part.sample(p, each) for (part, p), each in zip(self._params(param), noises, strict=True)])

    def mode(self, param: Tensor) -> Tensor:
        return self._joined([part.mode(p) for part, p in self._params(param)])

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        actions = self._actions(action)
        return reduce(add, [part.log_prob(p, next(actions)) for part, p in self._params(param)])

    def entropy(self, param: Tensor) -> Tensor:
        return reduce(add, [part.entropy(p) for part, p in self._params(param)])

    def kl(self, param_p: Tensor, param_q: Tensor) -> Tensor:
        others = param_q.split(self._n_param, -1)
        return reduce(add, [part.kl(p, q) for (part, p), q in zip(self._params(param_p), others, strict=True)])

    def masked(self, param: Tensor, mask: Tensor) -> Tensor:
        if not self.n_mask:
            return super().masked(param, mask)
        masks = iter(mask.split([part.n_mask for part in self.parts if part.n_mask], -1))
        return torch.cat([part.masked(p, next(masks)) if part.n_mask else p for part, p in self._params(param)], -1)

    def env_action(self, action: Tensor) -> Tensor:
        actions = zip(self.parts, action.split(self._n_action, -1), strict=True)
        return torch.cat([part.env_action(each) for part, each in actions], -1)

    def from_env_action(self, action: Tensor) -> Tensor:
        actions = zip(self.parts, action.split(self._n_action, -1), strict=True)
        return torch.cat([part.from_env_action(each) for part, each in actions], -1)

    def split(self, param: Tensor) -> Logit:
        """The parameters of each part, under the dotted path of its leaf."""
        return dict(zip(self.names, param.split(self._n_param, -1), strict=True))

    def problem_of(self, param: Tensor) -> str:
        for name, (part, p) in zip(self.names, self._params(param), strict=True):
            problem = part.problem_of(p)
            if problem:
                return f'in the part {name!r} {problem}'
        return ''

    def check_action(self, action: Tensor, lead: torch.Size) -> None:
        super().check_action(action, lead)
        for part, each in zip(self.parts, self._actions(action), strict=True):
            part.check_action(each, lead)

    def _params(self, param: Tensor) -> Iterator[tuple[ActionDist, Tensor]]:
        return zip(self.parts, param.split(self._n_param, -1), strict=True)

    def _actions(self, action: Tensor) -> Iterator[Tensor]:
        """The actions of each part, in the shape and dtype of that part."""
        for part, each in zip(self.parts, action.split(self._n_action, -1), strict=True):
            part_action = each
            if not part.n_action:
                part_action = each.squeeze(-1)
            if part.is_index:
                part_action = part_action.long()
            yield part_action

    def _joined(self, actions: Sequence[Tensor]) -> Tensor:
        rows = zip(self.parts, actions, strict=True)
        numbers = [(x.float() if part.is_index else x, part.n_action) for part, x in rows]
        return torch.cat([x if n_action else x.unsqueeze(-1) for x, n_action in numbers], -1)


def _largest_choice(leaf: Space) -> int:
    """Largest number of choices of an entry of a leaf; 0 if the leaf is not discrete."""
    if isinstance(leaf, Discrete):
        return leaf.n
    return max(getattr(leaf, 'nvec', ()), default=0)


@DISTRIBUTION_REGISTRY.register('multi_categorical')
class MultiCategorical(LogitDist):
    """Actions are indices [..., K] int64; entry k is one of nvec[k] choices.

    param [..., sum(nvec)] holds unnormalised log-probabilities, those of all choices side by side. A choice with a logit of -inf
    cannot be taken. With one entry all results are bit-equal to those of Categorical.
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
        if isinstance(space, MultiDiscrete) and space.nvec:
            return cls(space.nvec)
        return None

    def mode(self, param: Tensor) -> Tensor:
        return self._each(Categorical.mode, self._rows(param)).flatten(-2)

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        # [..., K] -> for each run of a period [..., n_repeat, entries]; views
        indices = action.view(*action.shape[:-1], self._n_repeat, sum(self._n_entry)).split(self._n_entry, -1)
        try:
            return self._each(Categorical.log_prob, self._rows(param), indices).sum((-2, -1))
        except ValueError:
            self.check_range(action)  # an index outside; this says in which entry
            raise

    def entropy(self, param: Tensor) -> Tensor:
        return self._each(Categorical.entropy, self._rows(param)).sum((-2, -1))

    def kl(self, param_p: Tensor, param_q: Tensor) -> Tensor:
        return self._each(Categorical.kl, self._rows(param_p), self._rows(param_q)).sum((-2, -1))

    def split(self, param: Tensor) -> Logit:
        """The logits of each entry, under its number."""
        return {str(k): logit for k, logit in enumerate(param.split(self.nvec, -1))}

    def check_range(self, action: Tensor) -> None:
        for entry, n in enumerate(self.nvec):
            Categorical(n).check_range(action[..., entry], f'entry {entry} of action', '')

    def _each(self, function: Callable[..., Tensor], *rows: Sequence[Tensor]) -> Tensor:
        """A function's results for the distribution and rows of each run, side by side: [..., n_repeat, entries of a period]."""
        results = [function(dist, *each) for (_, dist), *each in zip(self._runs, *rows, strict=True)]
        if len(results) == 1:
            return results[0]
        return torch.cat(results, -1)

    def _rows(self, param: Tensor) -> list[Tensor]:
        """[..., P] -> for each run of a period [..., n_repeat, entries, choices]; views."""
        parts = param.view(*param.shape[:-1], self._n_repeat, sum(self._n_logit)).split(self._n_logit, -1)
        return [part.view(*part.shape[:-1], k, dist.n_param) for part, (k, dist) in zip(parts, self._runs, strict=True)]


@DISTRIBUTION_REGISTRY.register('bernoulli')
class Bernoulli(LogitDist):
    """Actions are bits [..., K] int64. A mask says which bits may be 1; log-odds of -inf: the bit is always 0."""

    name: ClassVar[str] = 'bernoulli'

    def __init__(self, n_bit: int) -> None:
        super().__init__(n_bit, n_bit)

    @classmethod
    def of_space(cls, space: Space, options: Mapping[str, Any]) -> Bernoulli | None:
        if isinstance(space, MultiBinary) and action_width(space):
            return cls(action_width(space))
        return None

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
        param_p = wide(param_p)
        param_q = wide(param_q)
        change = torch.where(param_p == -torch.inf, 0.0, param_p - param_q)  # 0 * log 0 is 0
        return (param_p.sigmoid() * change + logsigmoid(-param_p) - logsigmoid(-param_q)).sum(-1)

    def split(self, param: Tensor) -> Logit:
        return {'log_odds': param}

    def check_range(self, action: Tensor) -> None:
        low, high = action.aminmax()
        if low < 0 or high > 1:
            raise ValueError(f'action holds {low} to {high} but must hold bits; give zeros and ones')
