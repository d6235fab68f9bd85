"""Value losses: the error of each prediction of the critic, elementwise; a gradient step minimises their weighted mean.

A function takes (value, return_, value_old, clip_ratio), the first three [...] of one shape and unit, and returns the
error [...], with a gradient in `value` alone; clip_ratio > 0 is a number or a 0-dim tensor. A class is for a critic that
predicts a distribution of returns: its objects take logits [..., n_output] in place of values, and decode them; its head is a
`WideValueHead`.
Below V is the value, R the return.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeGuard

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.core.data import wide
from zoo.core.errors import UserError
from zoo.core.registry import VALUE_LOSS_REGISTRY, Component
from zoo.rl_utils.check import EACH_SAMPLE, Number, check_returned
from zoo.rl_utils.ppo import mse as mse

Range = Annotated[float, Field(gt=0)]


def checked(
    value_loss: Callable[..., Tensor], value: Tensor, return_: Tensor, value_old: Tensor | None, clip_ratio: Number
) -> Tensor:
    """The checked errors of a value loss, perhaps a user's own."""
    error = value_loss(value, return_, value_old, clip_ratio)
    check_returned('the value loss', error, value.shape, EACH_SAMPLE, value)
    return error


def clips_values(value_loss: Callable[..., Tensor]) -> TypeGuard[Component]:
    """Whether a value loss is one of those whose gradient is cut beyond a range, by its name."""
    return getattr(value_loss, 'name', '') in ('clip', 'error_clip')


@VALUE_LOSS_REGISTRY.register('huber')
def huber(
    value: Tensor,
    return_: Tensor,
    value_old: Tensor | None,
    clip_ratio: Number,
    *,
    delta: Annotated[
        float, Field(gt=0, description='errors beyond it count linearly; in units of the critic output')
    ] = 1.0,
    range: Annotated[
        Range | None, Field(description='errors (of the loss) beyond it have no gradient, as in rl8; null: off')
    ] = None,
) -> Tensor:
    """Squared for small errors, linear for large ones, so that a few outliers do not dominate.

    error = 0.5 e^2 where |e| <= delta, else delta (|e| - 0.5 delta), e = R - V;   its slope is -e limited to +-delta
    error = min(error, range), if range is given
    Source: Huber 1964, doi:10.1214/aoms/1177703732. With delta 1 it is the smooth L1 loss.
    """
    error = return_ - value
    size = error.abs()
    error = torch.where(size > delta, delta * (size - 0.5 * delta), 0.5 * error.square())
    if range is None:
        return error
    return _limited(error, range)


@VALUE_LOSS_REGISTRY.register('clip')
def clip(
    value: Tensor,
    return_: Tensor,
    value_old: Tensor,
    clip_ratio: Number,
    *,
    range: Annotated[
        Range | None,
        Field(description='largest useful change of a value, in units of the critic output; null: clip_ratio'),
    ] = None,
) -> Tensor:
    """Half the squared error, with no gradient for a value that has moved towards the return by more than the range.

    error = 0.5 max((R - V)^2, (R - V_clip)^2),   V_clip = V_old + clamp(V - V_old, -range, range)
    Source: the clip is that of OpenAI baselines' ppo2; Engstrom et al. 2020, arXiv:2005.12729.
    """
    bound = clip_ratio
    if range is not None:
        bound = range
    change = value - value_old
    bounded = change.detach().clamp(-bound, bound)  # type: ignore[arg-type]  # 0-dim tensors too
    change = torch.where(change.abs() > bound, bounded, change)  # clamp alone has no gradient at NaN
    return 0.5 * torch.max((return_ - value).square(), (return_ - (value_old + change)).square())


@VALUE_LOSS_REGISTRY.register('error_clip')
def error_clip(
    value: Tensor,
    return_: Tensor,
    value_old: Tensor | None,
    clip_ratio: Number,
    *,
    range: Annotated[
        float,
        Field(gt=0, description='largest squared error; samples beyond it have no gradient (RLlib: vf_clip_param)'),
    ] = 10.0,
) -> Tensor:
    """Half the squared error, limited: samples whose error is larger than sqrt(range) have no gradient.

    error = 0.5 min((R - V)^2, range);   d error / d V = V - R, and 0 where (R - V)^2 > range
    Source: RLlib's PPO, vf_clip_param. Departs: the half, as in the other value losses.
    """
    return 0.5 * _limited((return_ - value).square(), range)


def _limited(error: Tensor, limit: float) -> Tensor:
    """min(error, limit) with the full gradient at the limit itself, where `clamp` gives 0 in torch 2.15."""
    return torch.where(error > limit, limit, error)


@dataclass(frozen=True, kw_only=True)
class _Histogram:
    """Base of value losses whose critic predicts a histogram of returns: n_bin logits per state, a softmax over the bins.

    Attributes: n_output: width of the critic's output. centres: the return at the centre of each bin.
    """

    n_bin: Annotated[int, Field(ge=2, le=4096, description='bins of the histogram; 51 to 255 is usual')] = 101
    low: Annotated[
        float, Field(description='lowest return, in units of the critic output; lower ones count as it')
    ] = -10.0
    high: Annotated[float, Field(description='highest return; higher ones count as it')] = 10.0

    kind: ClassVar[str] = 'value loss'
    name: ClassVar[str]

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise UserError(
                f'value loss {self.name!r}: low is {self.low} and high {self.high}; low must be below high, and all '
                'returns should lie between them'
            )

    @property
    def n_output(self) -> int:
        return self.n_bin

    def __call__(self, logits: Tensor, return_: Tensor, value_old: Tensor | None, clip_ratio: Number) -> Tensor:
        """Cross-entropy of the target histogram: -sum_k target_k log softmax(logits)_k; value_old, clip_ratio are not read.

        Args: logits [..., n_output]; return_ [...], without gradient. Returns: [...], at least the target's entropy.
        Raises: ValueError if the shapes do not match.
        """
        if logits.shape[-1:] != (self.n_output,) or logits.shape[:-1] != return_.shape:
            raise ValueError(
                f'logits have shape {tuple(logits.shape)} but return_ {tuple(return_.shape)} and the value loss '
                f'{self.name!r} {self.n_output} bins; give logits {(*return_.shape, self.n_output)}'
            )
        return -(self.target(wide(return_.detach())) * wide(logits).log_softmax(-1)).sum(-1)

    def is_outside(self, return_: Tensor) -> Tensor:
        """[...] bool: whether the return lies below low or above high, and so counts as this bound."""
        return (return_ < self.low) | (return_ > self.high)

    def decode(self, logits: Tensor) -> Tensor:
        """The expected return: logits [..., n_output] -> value [...]."""
        p = wide(logits).softmax(-1)
        return (p * self.centres(p)).sum(-1)

    def target(self, return_: Tensor) -> Tensor:
        """The probability of each bin: return_ [...] -> [..., n_output], which sums to 1."""
        raise NotImplementedError

    def centres(self, like: Tensor) -> Tensor:
        """[n_output], in the dtype and on the device of `like`."""
        raise NotImplementedError


@VALUE_LOSS_REGISTRY.register('hl_gauss')
@dataclass(frozen=True, kw_only=True)
class HLGauss(_Histogram):
    """Critic as a classifier: cross-entropy with a histogram of a normal distribution around the return (HL-Gauss).

    Bin k of n_bin is [low + k w, low + (k + 1) w], w = (high - low) / n_bin; s = sigma_ratio w; R limited to [low, high].
    target_k = (F((edge_{k+1} - R) / s) - F((edge_k - R) / s)) / (F((high - R) / s) - F((low - R) / s)), F normal
    value    = sum_k softmax(logits)_k centre_k
    With the default sigma_ratio a target decodes to R within 0.01 bins. Next to low or high it decodes up to 0.7 bins too
    far inside, so choose the bounds with room.
    Source: Farebrother et al. 2024, arXiv:2403.03950; Imani and White 2018, arXiv:1806.04613.
    """

    name: ClassVar[str] = 'hl_gauss'
    sigma_ratio: Annotated[
        float, Field(gt=0, description='standard deviation of the targets in bins; 0.75 is usual')
    ] = 0.75

    def target(self, return_: Tensor) -> Tensor:
        width = (self.high - self.low) / self.n_bin
        edges = torch.arange(self.n_bin + 1, dtype=return_.dtype, device=return_.device) * width + self.low
        distance = edges - return_.clamp(self.low, self.high).unsqueeze(-1)
        cdf = (distance / (math.sqrt(2) * self.sigma_ratio * width)).erf()  # 2 cdf - 1; the ratio below is the same
        return cdf.diff(dim=-1) / (cdf[..., -1:] - cdf[..., :1])

    def centres(self, like: Tensor) -> Tensor:
        width = (self.high - self.low) / self.n_bin
        return (torch.arange(self.n_bin, dtype=like.dtype, device=like.device) + 0.5) * width + self.low


@VALUE_LOSS_REGISTRY.register('two_hot')
@dataclass(frozen=True, kw_only=True)
class TwoHot(_Histogram):
    """Critic as a classifier: cross-entropy with the two bins next to the return (two-hot), linear or symlog.

    Centres are n_bin points from low to high, both included. A return x between centre_k and centre_{k+1} has the target
    (centre_{k+1} - x) / w of bin k and the rest of bin k + 1, so that a target decodes to exactly x; x is limited to
    [low, high]. With symlog x = sign(R) log(1 + |R|), low and high limit x, and the decoded mean is mapped back to a return.
    Source: Bellemare et al. 2017, arXiv:1707.06887; symlog: Hafner et al. 2023, arXiv:2301.04104.
    """

    name: ClassVar[str] = 'two_hot'
    symlog: Annotated[bool, Field(description='bins of sign(R) log(1 + |R|), for returns of many magnitudes')] = False

    def is_outside(self, return_: Tensor) -> Tensor:
        return super().is_outside(self._placed(return_))

    def _placed(self, return_: Tensor) -> Tensor:
        if self.symlog:
            return return_.sign() * return_.abs().log1p()
        return return_

    def target(self, return_: Tensor) -> Tensor:
        return_ = self._placed(return_)
        width = (self.high - self.low) / (self.n_bin - 1)
        place = (return_.clamp(self.low, self.high).unsqueeze(-1) - self.centres(return_)) / width
        return (1 - place.abs()).clamp(min=0)  # 0 at all but the two nearest centres

    def centres(self, like: Tensor) -> Tensor:
        width = (self.high - self.low) / (self.n_bin - 1)
        return torch.arange(self.n_bin, dtype=like.dtype, device=like.device) * width + self.low

    def decode(self, logits: Tensor) -> Tensor:
        mean = super().decode(logits)
        if self.symlog:
            return mean.sign() * mean.abs().expm1()
        return mean


class WideValueHead(nn.Module):
    """Features [..., F] -> logits [..., K] of a distribution of returns, zero at the start: all bins are equally likely."""

    def __init__(self, n_in: int, n_output: int) -> None:
        super().__init__()
        self.layer = nn.Linear(n_in, n_output)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, feature: Tensor) -> Tensor:
        return self.layer(feature)


def widened(head: Any, n_output: int) -> nn.Module:
    """A value head that predicts a distribution in place of a value; hidden layers before its last one stay."""
    if isinstance(head, nn.Sequential):
        head[-1] = widened(head[-1], n_output)
        return head
    return WideValueHead(head.layer.in_features, n_output)
