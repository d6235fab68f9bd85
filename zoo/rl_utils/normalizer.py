"""Running statistics of observations, rewards and returns, and the discounted sums of rewards that they are taken over."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

from zoo.core.ranks import ALONE, Ranks
from zoo.core.streams import LoadWarning
from zoo.rl_utils.gae import linear_scan

logger = logging.getLogger(__name__)
OLDER_WINDOWS = LoadWarning(
    logger,
    'the statistics of windows were made by an older version of zoo, with the empty places at the start of an episode, and '
    'continue so; new runs count only places that hold an observation',
)


class RunningMeanStd(nn.Module):
    """Mean and standard deviation of all data so far, and the normalisation by them.

    The moments are kept in float64 and merged per block (Chan et al. 1979, pairwise update).
    A forward pass reads `shift` and `scale`: output = clamp((x - shift) * scale, -clip, clip).
    Before the first update shift is 0 and scale is 1.
    Attributes: ranks: the processes whose rows make up a block; all of them must call `update` at the same time.
      is_frozen: `update` does nothing.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(
        self, shape: tuple[int, ...] = (), clip: float = 10.0, epsilon: float = 1e-8, ranks: Ranks = ALONE
    ) -> None:
        super().__init__()
        self.clip = clip
        self._epsilon = epsilon
        self.ranks = ranks
        self.is_frozen = False
        self.register_buffer('mean', torch.zeros(shape, dtype=torch.float64))
        self.register_buffer('var', torch.ones(shape, dtype=torch.float64))
        self.register_buffer('count', torch.zeros((), dtype=torch.float64))
        self.register_buffer('shift', torch.zeros(shape))
        self.register_buffer('scale', torch.ones(shape))

    @torch.no_grad()
    def update(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Adds the rows of x [N, *shape] that are finite and have a weight [N] above 0; changes nothing if there are none."""
        if self.is_frozen:
            return
        x = x.to(torch.float64)
        valid = self._valid_rows(x, weight)
        self._merge(x, valid, valid.sum(), self.count)

    def _valid_rows(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """Rows of x that count, [N, 1, ..] bool."""
        if x.dim() > 1:
            valid = x.isfinite().flatten(1).all(1)
        else:
            valid = x.isfinite()
        if weight is not None:
            valid &= weight > 0
        return valid.reshape(-1, *([1] * (x.dim() - 1)))

    def _merge(self, x: Tensor, valid: Tensor, n: Tensor, count: Tensor) -> None:
        """Adds x where it is valid: n values of the block to `count` earlier ones, one number or one for each entry."""
        x = torch.where(valid, x, 0.0)
        batch_mean = x.sum(0) / n.clamp(min=1)
        batch_var = torch.where(valid, (x - batch_mean).square(), 0.0).sum(0) / n.clamp(min=1)
        if self.ranks is not ALONE:
            n, batch_mean, batch_var = self.ranks.merge(n, batch_mean, batch_var)
        new = n / (count + n).clamp(min=1)  # share of this block in all rows so far; 0 if it has none
        delta = batch_mean - self.mean
        self.var.add_((batch_var - self.var) * new + delta.square() * (new * (1 - new)))
        self.mean.add_(delta * new)
        count.add_(n)
        self.shift.copy_(self.mean)
        self.scale.copy_((self.var + self._epsilon).rsqrt())

    def forward(self, x: Tensor) -> Tensor:
        """Normalised and clipped x, any leading shape."""
        return ((x - self.shift) * self.scale).clamp(-self.clip, self.clip)

    def rescale(self, x: Tensor) -> Tensor:
        """x divided by the standard deviation and clipped; the mean is not subtracted (for rewards, whose sign matters)."""
        return (x * self.scale).clamp(-self.clip, self.clip)

    def standardize(self, x: Tensor) -> Tensor:
        """(x - mean) / std, not clipped."""
        return (x - self.shift) * self.scale

    def restore(self, x: Tensor) -> Tensor:
        """Inverse of `standardize`."""
        return x / self.scale + self.shift


class WindowMeanStd(RunningMeanStd):
    """Statistics of windows, the entries of n places; only the places that hold an observation count.

    At the start of an episode the first places of a window are empty. So each entry has a count of its own.
    Attributes: entry_count: None after a state without these counts was loaded. It belongs to weights that were trained with
      statistics of all places, by an older version, and that is continued.
    """

    entry_count: Tensor | None

    def __init__(self, shape: tuple[int, ...] = (), clip: float = 10.0, epsilon: float = 1e-8) -> None:
        super().__init__(shape, clip, epsilon)
        self.register_buffer('entry_count', torch.zeros(shape, dtype=torch.float64))

    @torch.no_grad()
    def update_places(self, x: Tensor, is_real: Tensor, weight: Tensor | None = None) -> None:
        """As `update`, for the entries of x [N, *shape] where is_real, which broadcasts to x, is true."""
        if self.entry_count is None:
            self.update(x, weight)
            return
        if self.is_frozen:
            return
        x = x.to(torch.float64)
        valid = self._valid_rows(x, weight) & is_real
        n_valid = valid.sum(0).to(torch.float64).expand_as(self.entry_count)
        self._merge(x, valid, n_valid, self.entry_count)
        self.count.copy_(self.entry_count.amax())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        is_given = f'{prefix}entry_count' in state_dict
        if is_given and self.entry_count is None:
            self.entry_count = torch.zeros_like(self.mean)
        elif not is_given and self.entry_count is not None and f'{prefix}count' in state_dict:
            OLDER_WINDOWS.log(args[-1])
            self.entry_count = None
        super()._load_from_state_dict(state_dict, prefix, *args)


def discounted_sum(reward: Tensor, end: Tensor, carry: Tensor, gamma: float) -> Tensor:
    """Running discounted sum of each env's rewards: R_t = gamma * R_{t-1} * (1 - end_{t-1}) + reward_t.

    Args: reward [T, B]; end [T, B] bool, the episode ends at t; carry [B], gamma * R_{-1} * (1 - end_{-1}).
    Returns: R [T, B], a new tensor.
    """
    x = torch.cat(((reward[:1] + carry), reward[1:]))
    keep = torch.cat((torch.zeros_like(carry).unsqueeze(0), 1 - end[:-1].to(reward.dtype)))
    return linear_scan(x.flip(0), (keep * gamma).flip(0)).flip(0)
