"""Passes of gradient steps over a batch: what is drawn, how far it goes, how many steps were taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.backend.executor import Executor, Pass, Step
from zoo.config.parts import make_part
from zoo.core.data import Columns, Metrics
from zoo.core.ranks import ALONE, Ranks, mean_over
from zoo.core.registry import DRAW_REGISTRY
from zoo.core.seeding import reseed, torch_generator
from zoo.core.transfer import send
from zoo.policy.draw import check_drawn
from zoo.policy.metrics import summaries
from zoo.policy.modes import ModelMode
from zoo.policy.sequences import length_of, n_entry
from zoo.rl_utils.optimizer import FlatOptimizer

KL_FACTOR = 1.5  # of target_kl, at which an update stops


class Trained(NamedTuple):
    """What passes over a batch found.

    metrics: means over all steps (of ratio_max the largest); n_epoch: passes, the last maybe a part of one.
    steps: each metric of all steps, [n]; n_last: how many of them the last pass had.
    total_loss: see zoo.policy.metrics; None of steps that are not zoo's own.
    """

    metrics: Metrics
    n_epoch: int
    steps: Metrics
    n_last: int
    total_loss: Tensor | None = None

    def last(self) -> Metrics:
        """Means over the steps of the last pass."""
        return {name: x[-self.n_last :].mean() for name, x in self.steps.items()}


class Epochs:
    """Trains on a batch for some passes, in minibatches, until `target_kl` stops it.

    The order of an update's passes is a function of the seed, the rank and the steps before it.
    Args: cfg: the resolved section `policy.learn`; mode: of the model that the steps move; device: where they run; ranks:
      that take the steps together, each with minibatches of its own.
    Attributes: train_iter: steps so far.
    """

    def __init__(self, cfg: Any, mode: ModelMode, seed: int, device: torch.device, ranks: Ranks = ALONE) -> None:
        self._cfg, self._mode, self._seed, self._device, self._ranks = cfg, mode, seed, device, ranks
        self._draw = make_part(DRAW_REGISTRY, cfg.draw)
        self._generator = torch_generator(seed, 'learn', device)
        self.train_iter = 0

    def run(
        self,
        executor: Executor,
        step: Step,
        optimizers: Sequence[FlatOptimizer],
        numbers: Any,
        n_epoch: int,
        columns: Columns,
        renew: Callable[[], Columns] | None = None,
        batch_size: int | None = None,
    ) -> Trained:
        """Up to n_epoch passes over columns [N], in minibatches of batch_size samples (None: all of them).

        Args: renew: gives the columns anew before each pass but the first; None: they stay the same.
        """
        target_kl, by_minibatch = self._cfg.target_kl, self._cfg.target_kl_at == 'minibatch'
        at_once = target_kl is None and renew is None
        found: list[Metrics] = []
        n_done, n_last, is_over = 0, 0, False
        self._reseed()
        while n_done < n_epoch and not is_over:
            if n_done and renew is not None:
                columns = renew()
            data, n_last = self._pass(columns, n_epoch if at_once else 1, batch_size), 0
            for piece in _minibatches(data) if target_kl is not None and by_minibatch else [data]:
                found.append(self.steps(executor, step, optimizers, piece, numbers))
                n_last += len(next(iter(found[-1].values())))
                is_over = target_kl is not None and 'kl' in found[-1] and self._is_beyond(found[-1]['kl'], target_kl)
                if is_over:
                    break
            n_done += len(data.order)
        metrics = (
            found[0] if len(found) == 1 else {name: torch.cat([each[name] for each in found]) for name in found[0]}
        )
        n_last //= len(data.order)  # steps of the last pass, or of what it came to
        return Trained(summaries(metrics), n_done, metrics, n_last)

    def steps(
        self, executor: Executor, step: Step, optimizers: Sequence[FlatOptimizer], data: Pass, numbers: Any
    ) -> Metrics:
        """Passes of gradient steps, which see the model in training mode; all else sees it in eval mode."""
        with self._mode.steps(self._seed, self.train_iter):
            found = executor.run(step, optimizers, data, numbers)
        self.train_iter += len(next(iter(found.values())))
        return found

    def permutations(self, n_pass: int, n: int, device: torch.device) -> Tensor:
        """For each of some passes a permutation of n rows, [n_pass, n], on a device."""
        generator = self._reseed()
        orders = [torch.randperm(n, generator=generator, device=generator.device) for _ in range(n_pass)]
        return send(torch.stack(orders), device)

    def state_dict(self) -> dict[str, Any]:
        """The counter, which all random orders follow."""
        return {'train_iter': self.train_iter}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copies a `state_dict` in."""
        self.train_iter = state['train_iter']

    def _reseed(self) -> torch.Generator:
        return reseed(self._generator, self._seed, 'learn', self._ranks.rank, self.train_iter)

    def _is_beyond(self, kl: Tensor, target: float) -> bool:
        return bool(mean_over(kl.mean(), self._ranks) > KL_FACTOR * target)

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


def _minibatches(data: Pass) -> list[Pass]:
    return [
        data._replace(order=data.order[:, i : i + data.batch_size])
        for i in range(0, data.order.shape[1], data.batch_size)
    ]
