"""Ranks: processes that train one policy together, each with its own rows; sums and statistics over the rows of all ranks.

A process that trains alone has the ranks `ALONE`. Every rank makes the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from zoo.core.errors import RunError

V = TypeVar('V')


class RanksLostError(RunError):
    """Another rank ended or does not answer; the cause is in the output of that rank."""


def lost_error(rank: int, size: int, what: str, why: str, error: Exception | None = None) -> RanksLostError:
    """The error of a rank that waited for others in vain. Args: error: the cause, whose first line is shown."""
    detail = ''
    if error is not None:  # without the place in torch's code that it came from
        detail = f' ({str(error).strip().splitlines()[0].rpartition("] ")[2][:160]})'
    return RanksLostError(
        f'rank {rank} waited for {what} of {size} ranks, but {why}{detail}; another rank ended or hangs: see its own message, '
        'or its log'
    )


class Ranks:
    """The processes that train together, as one of them sees them; the methods here are those of a process alone.

    rank: the number of this process, from 0; size: the number of processes.
    in_c: the ranks as the C library reads them, so that its gradient steps sum over them; None: only Python can.
    """

    rank = 0
    size = 1
    in_c: Any = None

    def sum_(self, x: Tensor) -> Tensor:
        """Sums a tensor over the ranks, in place; every rank gets the same bits."""
        return x

    def merge(self, n: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Count, mean and variance of the rows of all ranks, float64, from those of each: the same bits on every rank.

        Args: n: 0-dim, or one count for each mean; mean, var: of one shape, var that of the population.
        """
        return n, mean, var

    def gather(self, value: V) -> list[V]:
        """The values of all ranks, by rank. Args: value: small; it is pickled."""
        return [value]

    def share(self, value: V | None, root: int = 0) -> V:
        """Returns the value of rank `root` on all ranks; the values of the others are ignored."""
        return value  # type: ignore[return-value]  # the root gives one

    def close(self) -> None:
        """Leaves the ranks; nothing may be called afterwards."""

    def __reduce__(self) -> tuple[Any, ...]:
        return alone, ()  # a copy is not in the group


class Alone(Ranks):
    """The ranks of a process that trains by itself."""


ALONE = Alone()  # which a copied or unpickled policy has


def alone() -> Ranks:
    """Returns ALONE, which replaces any ranks in a copy or a pickle."""
    return ALONE


class RunInfo(NamedTuple):
    """Facts that a policy gets about its run, once, at construction.

    max_env_step: env steps of the whole run; None: not known.
    reuse: expected draws of each sample by the policy phase and by the value phase; 1 if the buffer keeps no samples.
    n_draw: draws of the policy phase per rollout; None if the buffer keeps no samples: the rollout itself is learned.
    eager_only: why the gradient steps must be executed eagerly, as a clause; '' if they need not.
    config: the config of the run as files hold it; None: the policy was made by hand.
    ranks: the processes that train the policy together.
    env_step: the env steps of training that a policy has had when it is loaded from a file or returned by a run; else 0.
    """

    max_env_step: int | None = None
    reuse: Mapping[str, float] = {'policy': 1.0, 'value': 1.0}
    n_draw: int | None = None
    eager_only: str = ''
    config: Mapping[str, Any] | None = None
    ranks: Ranks = ALONE
    env_step: int = 0

    def of_all_ranks(self, n: int) -> int:
        """The total over all ranks if each has n."""
        return n * self.ranks.size


def rank_count_text(ranks: Ranks) -> str:
    """The number of ranks for a sentence, such as '2 ranks'; '' for one process alone."""
    if ranks.size > 1:
        return f'{ranks.size} ranks'
    return ''


def merged_moments(n: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and variance of K blocks of rows together, merged one after the other.

    Args: n: [K], or [K, *shape]; mean, var: [K, *shape], var that of the population; blocks may be empty.
    Returns: n [] or [*shape], mean and var [*shape].
    Source: Chan et al. 1979, pairwise update.
    """
    all_n = n[0]
    all_mean = mean[0]
    all_var = var[0]
    for n_block, mean_block, var_block in zip(n[1:], mean[1:], var[1:], strict=True):
        all_n = all_n + n_block
        share = n_block / all_n.clamp(min=1)
        delta = mean_block - all_mean
        all_mean = all_mean + delta * share
        all_var = all_var + (var_block - all_var) * share + delta.square() * (share * (1 - share))
    return all_n, all_mean, all_var


def mean_over(x: Tensor, ranks: Ranks) -> Tensor:
    """The mean of a tensor over the ranks, as a new tensor; with one rank, the tensor itself."""
    if ranks.size == 1:
        return x
    return ranks.sum_(x.detach().clone(memory_format=torch.contiguous_format)) / ranks.size


def mean_over_(x: Tensor, ranks: Ranks) -> Tensor:
    """Sets a tensor to its mean over the ranks."""
    return ranks.sum_(x).div_(ranks.size)


def weight_scale(valid: Tensor, ranks: Ranks) -> Tensor:
    """The factor for weights [...] that makes their mean over the rows of all ranks 1, 0-dim."""
    if ranks.size == 1:
        return valid.numel() / valid.sum().clamp(min=1)
    own = valid.sum(dtype=torch.float64)
    n, total = ranks.sum_(torch.stack((own.new_full((), valid.numel()), own)))
    return (n / total.clamp(min=1)).to(valid.dtype)


def normalized_over(x: Tensor, weight: Tensor | None, ranks: Ranks) -> Tensor:
    """(x - mean) / std over the last dimension of all ranks; rows of weight 0 enter neither. Args: x, weight: [..., N].

    In float64: sums of equal float32 numbers are then exact, so equal rows become 0.
    """
    if weight is None:
        valid = torch.ones_like(x, dtype=torch.float64)
    else:
        valid = weight.gt(0).double()
    rows = torch.where(valid > 0, x, 0.0).double()
    n = valid.sum(-1)
    mean = rows.sum(-1) / n.clamp(min=1)
    var = ((rows - mean.unsqueeze(-1)).square() * valid).sum(-1) / n.clamp(min=1)
    _, mean, var = ranks.merge(n, mean, var)
    return ((rows - mean.unsqueeze(-1)) / (var.sqrt().unsqueeze(-1) + 1e-8)).to(x.dtype)


def mean_of_rows(
    mean: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, weight: Tensor | None, ranks: Ranks
) -> Tensor:
    """The mean of x [N] with weights [N] (None: all 1) over all ranks, 0-dim. Args: mean: computes it for one rank."""
    if ranks.size == 1:
        return mean(x, weight)
    if weight is None:
        weight = torch.ones_like(x)
    total = ranks.sum_(torch.stack(((x * weight).sum(), weight.sum())).double())
    return total[0] / total[1].clamp(min=1)
