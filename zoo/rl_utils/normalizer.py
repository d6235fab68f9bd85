"""Running statistics: of observations, rewards and returns."""
from __future__ import annotations

import torch
from torch import Tensor, nn


class RunningMeanStd(nn.Module):
    """Mean and standard deviation over everything seen so far, and the normalisation by them.

    The moments are kept in float64 and merged per block (Chan et al. 1979, pairwise update); `shift` and `scale` are
    what a forward pass reads: output = clamp((x - shift) * scale, -clip, clip). Before the first update it is
    the identity.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...] = (), clip: float = 10.0, epsilon: float = 1e-8) -> None:
        super().__init__()
        self._clip, self._epsilon = clip, epsilon
        self.register_buffer('mean', torch.zeros(shape, dtype=torch.float64))
        self.register_buffer('var', torch.ones(shape, dtype=torch.float64))
        self.register_buffer('count', torch.zeros((), dtype=torch.float64))
        self.register_buffer('shift', torch.zeros(shape))
        self.register_buffer('scale', torch.ones(shape))

    @torch.no_grad()
    def update(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Takes in x [N, *shape]; weight [N] >= 0 leaves rows out (0) or counts them more; all 0: no change."""
        x = x.to(torch.float64)
        w = torch.ones(x.shape[0], dtype=x.dtype, device=x.device) if weight is None else weight.gt(0).to(x.dtype)
        w = w.reshape(-1, *([1] * (x.dim() - 1)))
        n = w.sum()
        batch_mean = (x * w).sum(0) / n.clamp(min=1)
        batch_var = ((x - batch_mean).square() * w).sum(0) / n.clamp(min=1)
        total = (self.count + n).clamp(min=1)
        delta = batch_mean - self.mean
        self.var.copy_((self.var * self.count + batch_var * n + delta.square() * (self.count * n / total)) / total)
        self.mean.add_(delta * (n / total))
        self.count.add_(n)
        self.shift.copy_(self.mean)
        self.scale.copy_((self.var + self._epsilon).rsqrt())

    def forward(self, x: Tensor) -> Tensor:
        """Normalised and clipped x, any leading shape."""
        return ((x - self.shift) * self.scale).clamp(-self._clip, self._clip)

    def rescale(self, x: Tensor) -> Tensor:
        """x divided by the standard deviation and clipped; the mean stays (for rewards, whose sign matters)."""
        return (x * self.scale).clamp(-self._clip, self._clip)

    def standardize(self, x: Tensor) -> Tensor:
        """(x - mean) / std, not clipped."""
        return (x - self.shift) * self.scale

    def restore(self, x: Tensor) -> Tensor:
        """Inverse of `standardize`."""
        return x / self.scale + self.shift


def normalize_advantage(adv: Tensor, weight: Tensor | None = None) -> Tensor:
    """(adv - mean) / std over the last dimension; one row, or equal rows, are only centred.

    Args: adv [..., N]; weight [..., N], rows of weight 0 enter no statistic. Returns: [..., N], a new tensor.
    """
    if weight is None:
        std, mean = torch.std_mean(adv, dim=-1, correction=0, keepdim=True)
        return (adv - mean) / (std + 1e-8)
    valid = weight.gt(0).to(adv.dtype)
    n = valid.sum(-1, keepdim=True).clamp(min=1)
    centred = adv - (adv * valid).sum(-1, keepdim=True) / n
    std = ((centred.square() * valid).sum(-1, keepdim=True) / n).sqrt()
    return centred / (std + 1e-8)
