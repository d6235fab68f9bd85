"""Passes of gradient steps over a batch: the order of samples, and when passes stop early or compute columns again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.backend.executor import joined
from zoo.backend.step import LossSpec, Step, StepNumbers, StepPlan
from zoo.core.data import Columns, Metrics, first_leaf, send
from zoo.core.ranks import ALONE, Ranks
from zoo.core.registry import DRAW_REGISTRY
from zoo.core.seeding import reseed, torch_generator
from zoo.policy.execution import Execution
from zoo.policy.metrics import summaries
from zoo.policy.samples import Samples
from zoo.policy.slots import Draw, EachPass, Renew, StopAfter
from zoo.rl_utils.optimizer import FlatOptimizer


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
    """Passes over batches, and the gradient steps in them.

    The order of samples in an update depends only on the seed, the rank and the number of steps before it.
    Args: samples: gives the columns that steps read; execution: runs the steps; stop_after, renew, each_pass: see `over`;
      normalizes: each minibatch normalises its advantages; ranks: take the steps together, each on its own
      minibatches; training: train_iter -> context for steps.
    Attributes: train_iter: gradient steps so far; draw: orders the samples.
    """

    def __init__(
        self,
        samples: Samples,
        execution: Execution,
        seed: int,
        device: torch.device,
        draw: Draw,
        stop_after: StopAfter | None = None,
        renew: Renew | None = None,
        each_pass: EachPass | None = None,
        normalizes: bool = False,
        ranks: Ranks = ALONE,
        training: Callable[[int], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.train_iter = 0
        self._samples = samples
        self.draw = draw
        self._stop_after = stop_after
        self._renew = renew
        self._each_pass = each_pass
        self._taken: list[Metrics] = []  # of the plans of the present passes
        self._n_pass = 0
        self._n_last = 0
        self._execution = execution
        self._normalizes = normalizes
        self._training = training
        self._seed = seed
        self._device = device
        self._ranks = ranks
        self._generator = torch_generator(seed, 'learn', device)

    def over(self, batch: Columns, n_pass: int, batch_size: int | None) -> Iterator[StepPlan]:
        """n_pass passes over a batch [N], in minibatches of batch_size samples (None: all): yields plans for `take`.

        One plan has all passes, which is fastest, unless `renew` computes columns again before every pass but the first,
        `each_pass` changes those that steps read, or `stop_after` may end them; then each plan has one pass, or one minibatch.
        """
        self._taken = []
        stream = self._order_stream()
        columns = self._samples.read_by_steps(batch)
        if self._stop_after is None and self._renew is None and self._each_pass is None:
            before = self.train_iter
            yield self._plan(columns, n_pass, batch_size, stream)
            self._n_pass = n_pass
            self._n_last = (self.train_iter - before) // n_pass
            return
        for i in range(n_pass):
            if i > 0 and self._renew is not None:
                columns = self._samples.read_by_steps(self._renew(batch))
            plan = self._plan(columns, 1, batch_size, stream)
            if self._each_pass is not None:
                plan = plan._replace(columns=self._each_pass(plan.columns, self.train_iter))
            self._n_pass = i + 1
            before = self.train_iter
            for part in self._parts(plan):
                n_taken = len(self._taken)
                yield part
                self._n_last = self.train_iter - before
                if self._stop_after is not None and self._stop_after.is_over(joined(self._taken[n_taken:])):
                    return

    def _parts(self, plan: StepPlan) -> list[StepPlan]:
        """The plan of one pass, or of its minibatches one by one."""
        if self._stop_after is None or self._stop_after.every == 'epoch':
            return [plan]
        return [plan._replace(order=order) for order in plan.order.split(plan.batch_size, dim=1)]

    def take(
        self, step: Step, optimizers: Sequence[FlatOptimizer], plan: StepPlan, loss: LossSpec, numbers: StepNumbers
    ) -> Metrics:
        """Takes the step for each minibatch of the plan; returns each metric of all steps, [n].

        The model is in training mode meanwhile; everything else uses it in eval mode.
        """
        with self._training(self.train_iter):
            metrics = self._execution.executor.run(step, optimizers, plan, loss, numbers)
        self.train_iter += step_count(metrics)
        self._taken.append(metrics)
        return metrics

    def trained(self) -> Trained:
        """Metrics and counts of the passes of the last `over`."""
        steps = joined(self._taken)
        self._taken = []
        return Trained(summaries(steps), self._n_pass, steps, self._n_last)

    def _plan(self, columns: Columns, n_pass: int, batch_size: int | None, stream: torch.Generator) -> StepPlan:
        order, columns = self.draw(columns, n_pass, stream)
        if batch_size is None:
            n_row = len(first_leaf(columns))
        else:
            n_row = max(batch_size // self._samples.entry_len, 1)  # or sequences
        order = send(order, self._device)
        return StepPlan(columns, order, n_row, self._device, self._normalizes, ranks=self._ranks)

    def permutations(self, n_pass: int, columns: Columns, device: torch.device) -> Tensor:
        """Draws a permutation of the n entries of the columns for each pass, [n_pass, n], on a device."""
        return send(shuffle(columns, n_pass, self._order_stream())[0], device)

    def _order_stream(self) -> torch.Generator:
        """The random stream of the order of samples, from the steps so far."""
        return reseed(self._generator, self._seed, 'learn', self._ranks.rank, self.train_iter)


def step_count(metrics: Metrics) -> int:
    """Number of steps that metrics [n] are of."""
    return len(next(iter(metrics.values())))


@DRAW_REGISTRY.register('shuffle')
def shuffle(columns: Columns, n_pass: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
    """Every entry once in each pass, in a random order."""
    n = len(first_leaf(columns))
    order = [torch.randperm(n, generator=generator, device=generator.device) for _ in range(n_pass)]
    return torch.stack(order), None


def shuffled(columns: Columns, n_pass: int, generator: torch.Generator) -> tuple[Tensor, Columns]:
    """`shuffle` as a `Draw`: the columns stay as they are."""
    return shuffle(columns, n_pass, generator)[0], columns
