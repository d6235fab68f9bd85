"""Passes of gradient steps over a batch: the order of its entries, the count of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from zoo.backend.executor import Numbers, Step, StepPlan
from zoo.config.components import make_component, name_of
from zoo.core.data import Columns, Metrics, first_leaf, send
from zoo.core.ranks import ALONE, Ranks
from zoo.core.registry import DRAW_REGISTRY
from zoo.core.seeding import reseed, torch_generator
from zoo.policy.execution import Execution
from zoo.policy.metrics import summaries
from zoo.rl_utils.optimizer import FlatOptimizer

if TYPE_CHECKING:
    from zoo.policy.config import ActorCriticLearnConfig  # which names the draws that are registered here
    from zoo.policy.samples import Samples


@DRAW_REGISTRY.register('shuffle')
def shuffle(columns: Columns, n_pass: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
    """Every entry once in each pass, in a random order."""
    n, device = len(first_leaf(columns)), generator.device
    return torch.stack([torch.randperm(n, generator=generator, device=device) for _ in range(n_pass)]), None


class Trained(NamedTuple):
    """Metrics and counts of passes over a batch.

    metrics: means over all steps, maxima for ratio_max; n_pass: number of passes, of which the last may be incomplete.
    steps: each metric for all steps, [n]; n_last: number of steps in the last pass.
    """

    metrics: Metrics
    n_pass: int
    steps: Metrics
    n_last: int

    def last(self) -> Metrics:
        """Means over the steps of the last pass."""
        return {name: x[-self.n_last :].mean() for name, x in self.steps.items()}


class Passes:
    """Runs passes of gradient steps over a batch, in minibatches.

    The order of samples in an update depends only on the seed, the rank and the number of steps before it.
    Args: cfg: the resolved section `policy.learn`; samples: gives the columns that steps read; execution: runs the steps;
      ranks: take the steps together, each on its own minibatches; training: train_iter -> context for steps.
    Attributes: train_iter: gradient steps so far.
    """

    def __init__(
        self,
        cfg: ActorCriticLearnConfig,
        samples: Samples,
        execution: Execution,
        seed: int,
        device: torch.device,
        ranks: Ranks = ALONE,
        training: Callable[[int], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._cfg, self._samples, self._execution, self._training = cfg, samples, execution, training
        self._seed, self._device, self._ranks = seed, device, ranks
        self._draw = _draw_of(cfg.draw)
        self._generator = torch_generator(seed, 'learn', device)
        self.train_iter = 0

    def run(
        self,
        step: Step,
        optimizers: Sequence[FlatOptimizer],
        numbers: Numbers,
        n_pass: int,
        batch: Columns,
        batch_size: int | None = None,
    ) -> Trained:
        """n_pass passes over a batch [N], in minibatches of batch_size samples (None: all); `InterruptedPasses` may stop early."""
        plan = self._plan(self._samples.read_by_steps(batch), n_pass, batch_size, self._order_stream())
        found = self.steps(step, optimizers, plan, numbers)
        return Trained(summaries(found), n_pass, found, len(next(iter(found.values()))) // n_pass)

    def steps(self, step: Step, optimizers: Sequence[FlatOptimizer], plan: StepPlan, numbers: Numbers) -> Metrics:
        """Takes gradient steps, with the model in training mode; everything else uses it in eval mode."""
        with self._training(self.train_iter):
            found = self._execution.executor.run(step, optimizers, plan, numbers)
        self.train_iter += len(next(iter(found.values())))
        return found

    def permutations(self, n_pass: int, n: int, device: torch.device) -> Tensor:
        """Draws a permutation of n rows for each pass, [n_pass, n], on a device."""
        generator = self._order_stream()
        orders = [torch.randperm(n, generator=generator, device=generator.device) for _ in range(n_pass)]
        return send(torch.stack(orders), device)

    def _order_stream(self) -> torch.Generator:
        """The random stream of the order of samples, from the steps so far."""
        return reseed(self._generator, self._seed, 'learn', self._ranks.rank, self.train_iter)

    def _plan(self, columns: Columns, n_pass: int, batch_size: int | None, stream: torch.Generator) -> StepPlan:
        order, columns = self._draw(columns, n_pass, stream)
        length = self._samples.entry_len
        n_row = len(first_leaf(columns)) if batch_size is None else max(batch_size // length, 1)  # or sequences
        normalize = self._cfg.adv_norm == 'minibatch'
        return StepPlan(columns, send(order, self._device), n_row, self._device, normalize, ranks=self._ranks)


def _draw_of(spec: str | Mapping[str, Any]) -> Callable[[Columns, int, torch.Generator], tuple[Tensor, Columns]]:
    """Returns the draw as a function (columns, n_pass, generator) -> (order, columns with the weights of the draw)."""
    if name_of(spec) == 'shuffle':
        return _shuffled
    from zoo.policy.options.draws import checked_draw

    return partial(checked_draw, make_component(DRAW_REGISTRY, spec))


def _shuffled(columns: Columns, n_pass: int, generator: torch.Generator) -> tuple[Tensor, Columns]:
    return shuffle(columns, n_pass, generator)[0], columns
