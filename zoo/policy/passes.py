"""Passes of gradient steps over a batch: the order of its entries, the count of steps.

A draw takes (columns, n_pass, generator) and returns (order, weight): order [n_pass, n] int64 on the generator's device,
indices of entries, n of them in each pass; weight [n] f32 or None: a factor of the loss of each entry, None: 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from zoo.backend.executor import Numbers, Pass, Step
from zoo.config.components import make_part
from zoo.core.data import Columns, Metrics, send
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.core.registry import DRAW_REGISTRY
from zoo.core.seeding import reseed, torch_generator
from zoo.policy.execution import Execution, ModelMode
from zoo.policy.metrics import summaries
from zoo.policy.sequences import length_of, n_entry
from zoo.rl_utils.check import check_pair, check_returned
from zoo.rl_utils.optimizer import FlatOptimizer

if TYPE_CHECKING:
    from zoo.policy.config import ActorCriticLearnConfig  # which names the draws that are registered here
    from zoo.policy.samples import Samples

P = TypeVar('P', bound='Passes')
Drawn = tuple[Tensor, Tensor | None]
_FLOOR = 1e-6
"""Of a priority, as a share of the largest one: every entry may come, and a batch without advantages is drawn evenly."""


@DRAW_REGISTRY.register('shuffle')
def shuffle(columns: Columns, n_pass: int, generator: torch.Generator) -> Drawn:
    """Every entry once in each pass, in a random order."""
    n, device = n_entry(columns), generator.device
    return torch.stack([torch.randperm(n, generator=generator, device=device) for _ in range(n_pass)]), None


@DRAW_REGISTRY.register('in_order')
def in_order(columns: Columns, n_pass: int, generator: torch.Generator) -> Drawn:
    """Every entry once in each pass, in the order of collection: step by step, at each step all envs."""
    return torch.arange(n_entry(columns), device=generator.device).repeat(n_pass, 1), None


@DRAW_REGISTRY.register('prioritized')
@torch.no_grad()
def prioritized(
    columns: Columns,
    n_pass: int,
    generator: torch.Generator,
    *,
    alpha: Annotated[
        float, Field(ge=0, description='0: all entries alike; 1: in proportion to their advantages')
    ] = 0.8,
    beta: Annotated[
        float, Field(ge=0, le=1, description='1: weights make up for all of the preference; 0: none')
    ] = 0.2,
) -> Drawn:
    """Entries with large advantages come more often, with replacement, and count less each time.

    p_i = s_i^alpha / sum_j s_j^alpha, s_i = sum of |adv| over the entry's samples;   weight_i = (n p_i)^-beta / z
    z makes the weights of the drawn entries 1 on average, sum_i p_i weight_i m_i = 1 with m_i the mean of the column
    'weight' in the entry (1 if there is none). So the loss keeps its scale, which a largest weight of 1 would not, and
    with beta 1 it is, on average, that of 'shuffle'. Samples of weight 0 add nothing to s; an entry of them never comes,
    unless there are no others: then all come alike, with weight 0.
    adv is what the steps read, so normalised where policy.learn.adv_norm is 'batch'.
    Source: Schaul et al. 2016, arXiv:1511.05952, sec. 3.3; for segments of rollouts by |adv|: PufferLib 3. Departs: the
      weights' scale; beta is constant.
    Raises: UserError if the batch has no column 'adv'.
    """
    if 'adv' not in columns:
        raise UserError(
            "the draw 'prioritized' needs the column 'adv', which these samples lack; use the draw 'shuffle'"
        )
    n, device = n_entry(columns), generator.device
    adv, given = columns['adv'].to(device, torch.float64), columns.get('weight')
    share = torch.ones_like(adv) if given is None else given.to(device, torch.float64)
    size = torch.where(share > 0, adv.abs(), 0.0).view(n, -1).sum(-1)
    mean_weight = share.view(n, -1).mean(-1)
    size = size.clamp(min=size.max().clamp(min=torch.finfo(size.dtype).tiny) * _FLOOR)
    priority = torch.where(mean_weight > 0, (size / size.max()).pow(alpha), 0.0)
    total = priority.sum()
    p = torch.where(total > 0, priority / total, 1 / n)
    order = torch.multinomial(p, n_pass * n, replacement=True, generator=generator).view(n_pass, n)
    weight = torch.where(priority > 0, (n * p).pow(-beta), 0.0)
    scale = (p * weight * mean_weight).sum()
    return order, torch.where(scale > 0, weight / scale, 0.0).float()


def check_drawn(drawn: object, n_pass: int, n: int) -> Drawn:
    """A draw, which may be somebody's own, gave an order and weights; that indices are below n is not looked at. Raises: UserError."""
    order, weight = check_pair('the draw', drawn, ': the order, and weights or None')
    is_index = isinstance(order, Tensor) and order.dtype in (torch.int64, torch.int32) and order.dim() == 2
    if not is_index or len(order) != n_pass or not order.shape[1]:
        got = f'{order.dtype} {tuple(order.shape)}' if isinstance(order, Tensor) else type(order).__name__
        raise UserError(
            f'the draw returned {got} as the order but must return indices, torch.int64 of shape ({n_pass}, {n})'
        )
    if weight is not None:
        check_returned('the draw, as weights,', weight, (n,), 'one number for each entry, or None')
    return order, weight


class Trained(NamedTuple):
    """What passes over a batch found.

    metrics: means over all steps (of ratio_max the largest); n_pass: passes, the last maybe a part of one.
    steps: each metric of all steps, [n]; n_last: how many of them the last pass had.
    """

    metrics: Metrics
    n_pass: int
    steps: Metrics
    n_last: int

    def last(self) -> Metrics:
        """Means over the steps of the last pass."""
        return {name: x[-self.n_last :].mean() for name, x in self.steps.items()}


class Passes:
    """Passes of gradient steps over a batch, in minibatches.

    The order of an update's passes is a function of the seed, the rank and the steps before it.
    Args: cfg: the resolved section `policy.learn`; samples: say what steps read; mode: of the model that the steps move;
      execution: what runs them; ranks: that take the steps together, each with minibatches of its own.
    Attributes: train_iter: steps so far.
    """

    def __init__(
        self,
        cfg: ActorCriticLearnConfig,
        samples: Samples,
        mode: ModelMode,
        execution: Execution,
        seed: int,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        self._cfg, self._samples, self._mode, self._execution = cfg, samples, mode, execution
        self._seed, self._device, self._ranks = seed, device, ranks
        self._draw = make_part(DRAW_REGISTRY, cfg.draw)
        self._generator = torch_generator(seed, 'learn', device)
        self.train_iter = 0

    @classmethod
    def like(cls: type[P], other: Passes) -> P:
        """Passes of this class with all that others have."""
        new = cls.__new__(cls)
        vars(new).update(vars(other))
        return new

    def run(
        self,
        step: Step,
        optimizers: Sequence[FlatOptimizer],
        numbers: Numbers,
        n_pass: int,
        batch: Columns,
        batch_size: int | None = None,
    ) -> Trained:
        """Up to n_pass passes over a batch [N], in minibatches of batch_size samples (None: all of them)."""
        self._reseed()
        data = self._pass(self._samples.read_by_steps(batch), n_pass, batch_size)
        found = self.steps(step, optimizers, data, numbers)
        return Trained(summaries(found), n_pass, found, len(next(iter(found.values()))) // n_pass)

    def steps(self, step: Step, optimizers: Sequence[FlatOptimizer], data: Pass, numbers: Numbers) -> Metrics:
        """Gradient steps, which see the model in training mode; all else sees it in eval mode."""
        with self._mode.steps(self._seed, self.train_iter):
            found = self._execution.executor.run(step, optimizers, data, numbers)
        self.train_iter += len(next(iter(found.values())))
        return found

    def permutations(self, n_pass: int, n: int, device: torch.device) -> Tensor:
        """For each of some passes a permutation of n rows, [n_pass, n], on a device."""
        generator = self._reseed()
        orders = [torch.randperm(n, generator=generator, device=generator.device) for _ in range(n_pass)]
        return send(torch.stack(orders), device)

    def _reseed(self) -> torch.Generator:
        return reseed(self._generator, self._seed, 'learn', self._ranks.rank, self.train_iter)

    def _pass(self, columns: Columns, n_pass: int, batch_size: int | None) -> Pass:
        order, weight = check_drawn(self._draw(columns, n_pass, self._generator), n_pass, n_entry(columns))
        if weight is not None:
            columns = {**columns, 'weight': weighted(columns, send(weight, self._device))}
        n_sample = n_entry(columns) * length_of(columns) if batch_size is None else batch_size
        n_row = max(n_sample // length_of(columns), 1)  # or sequences
        normalize = self._cfg.adv_norm == 'minibatch'
        return Pass(columns, send(order, self._device), n_row, self._device, normalize, ranks=self._ranks)


def weighted(columns: Columns, weight: Tensor) -> Tensor:
    """The column 'weight' of a batch times one weight [n] for each entry; made where there is none."""
    like = columns['adv' if 'adv' in columns else 'return_']
    rows = weight.view(-1, *(1,) * (like.dim() - 1)).expand_as(like)
    return rows * columns['weight'] if 'weight' in columns else rows.contiguous()
