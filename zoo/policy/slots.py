"""Slots of an update: the parts that options may choose. `zoo.policy.update` gives them their plain values.

A slot has one value. A second option that fills it is refused in a sentence with both names, so the order of options never
decides what an update is. What several options may do one after the other is a list: `inputs`, `around_forward`, `terms`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from zoo.core.data import Columns, Metrics, Rollout, Sample, Transition
from zoo.core.errors import UserError

T = TypeVar('T')
ColumnsByName = dict[str, Any]
# (columns, n_pass, generator) -> rows of each pass [n_pass, n], and the columns, perhaps with other weights
Draw = Callable[[Columns, int, torch.Generator], tuple[Tensor, Columns]]
Renew = Callable[[Columns], Columns]
EachPass = Callable[[Columns, int], Columns]  # (columns, gradient steps so far) -> columns


class StopAfter(NamedTuple):
    """When passes over a batch stop early.

    every: after which steps is_over is asked; is_over: the metrics of these steps, [n] each -> whether no step may follow.
    """

    every: Literal['epoch', 'minibatch']
    is_over: Callable[[Metrics], bool]


class Units(Protocol):
    """Unit of the critic's outputs: that of returns, or another."""

    def restore(self, output: Tensor, /) -> Tensor:
        """Converts outputs of the critic to returns."""

    def standardize(self, return_: Tensor, /) -> Tensor:
        """Converts returns to outputs of the critic."""


class Entries(NamedTuple):
    """What a batch is made of: single rows, or the sequences of a recurrent model.

    cut: (columns [T, B, ...], rollout) -> columns [N, ...]; rows_once: batch -> its rows, and weights [N] with which
      statistics count every row once, None: all equal; forward: runs a method of the model on a minibatch, see
      `zoo.backend.step.forward_rows`; length: steps in an entry.
    """

    cut: Callable[[dict[str, Any], Rollout], Sample]
    rows_once: Callable[[Columns], tuple[Columns, Tensor | None]]
    forward: Callable[..., Any]
    length: int = 1


class Titled(Protocol):
    """An option, as errors name it."""

    @property
    def title(self) -> str: ...


class Slot(Generic[T]):
    """A part of an update that at most one option chooses.

    Args: title: names the part in errors, a noun phrase; value: of a plain update.
    Attributes: option: that has filled it.
    """

    def __init__(self, title: str, value: T) -> None:
        self.title = title
        self.value = value
        self.option: Titled | None = None

    def fill(self, option: Titled, value: T) -> None:
        """Sets the part. Raises: UserError if another option has set it."""
        if self.option is not None and self.option is not option:
            raise UserError(f'{self.option.title} and {option.title} both choose {self.title}; drop one of the two')
        self.option = option
        self.value = value


class UpdateSlots:
    """Slots for the parts of an update, which options fill by their method `fill`.

    Attributes, of samples:
      units: converts between the critic's output and returns; `units.restore` gives returns.
      baseline: the critic's values, [T, B] in return units -> the values with which advantages compare returns, [T, B].
      reward_scale: (transition, weight [T, B] or None) -> rewards [T, B], as advantages use them.
      estimator: see `zoo.policy.samples.estimator_of`.
      entries: what a batch is made of: rows, or the sequences of a recurrent model.
      inputs: functions of the columns that a step reads, each called on the result of the one before.
    Of passes:
      draw: orders the samples of a batch. stop_after: ends passes early. renew: computes columns of the batch again before
      each pass but the first. each_pass: changes the columns that the steps of a pass read.
    Of the loss:
      surrogate, value_loss, proximal, extra_columns: see `zoo.backend.step.LossSpec`. terms: further terms of the loss;
      those that follow the penalties have weight 1. around_forward: functions of a forward function, which return one that
      calls it.
    memory: of the batches for an auxiliary phase; None: the plain one. has_critic: whether the update trains a critic.
    normalizers: modules with running statistics, by the name under which checkpoints save them.
    """

    units: Slot[Units]
    baseline: Slot[Callable[[Tensor], Tensor]]
    reward_scale: Slot[Callable[[Transition, Tensor | None], Tensor]]
    estimator: Slot[Any]
    entries: Slot[Entries]
    inputs: list[Callable[[ColumnsByName], ColumnsByName]]
    draw: Slot[Draw]
    stop_after: Slot[StopAfter | None]
    renew: Slot[Renew | None]
    each_pass: Slot[EachPass | None]
    surrogate: Slot[Callable[..., Tensor]]
    value_loss: Slot[Callable[..., Tensor]]
    terms: list[Any]
    proximal: Slot[Callable[..., Any] | None]
    extra_columns: Slot[Callable[..., Any] | None]
    around_forward: list[Callable[[Callable[..., Any]], Callable[..., Any]]]
    memory: Slot[Any]
    normalizers: dict[str, nn.Module]
    has_critic: Slot[bool]

    def __init__(self) -> None:
        self._measures_kl = False

    def measure_kl(self) -> None:
        """Lets steps of the policy give the metric kl, although it may cost time."""
        self._measures_kl = True
