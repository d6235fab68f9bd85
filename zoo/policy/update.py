"""An update as a value: the config and its options fill named slots, and `UpdateBuilder` makes the parts from them.

    rollout --samples--> batch --passes--> plans of minibatches --loss--> steps          (memory: of PPG's auxiliary phase)

A slot has one value. A second option that fills it is refused in a sentence with both names, so the order of options never
decides what an update is. What several options may do one after the other is a list: `inputs`, `around_forward`, `terms`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from zoo.backend.step import LossSpec
from zoo.core.data import Transition
from zoo.core.errors import UserError
from zoo.core.ranks import Ranks
from zoo.policy.config import ActorCriticPolicyConfig
from zoo.policy.execution import Execution
from zoo.policy.options import UpdateOption
from zoo.policy.options.loss import Objective
from zoo.policy.passes import Draw, EachPass, Passes, Renew, StopAfter, shuffled
from zoo.policy.samples import ROWS, Entries, ReturnUnits, Samples, given_reward, normalized

T = TypeVar('T')
ColumnsByName = dict[str, Any]


class Slot(Generic[T]):
    """A part of an update that at most one option chooses.

    Args: title: names the part in errors, a noun phrase; value: of a plain update.
    Attributes: option: that has filled it.
    """

    def __init__(self, title: str, value: T) -> None:
        self.title = title
        self.value = value
        self.option: UpdateOption | None = None

    def fill(self, option: UpdateOption, value: T) -> None:
        """Sets the part. Raises: UserError if another option has set it."""
        if self.option is not None and self.option is not option:
            raise UserError(f'{self.option.title} and {option.title} both choose {self.title}; drop one of the two')
        self.option = option
        self.value = value


class UpdateBuilder:
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

    def __init__(
        self, cfg: ActorCriticPolicyConfig, objective: Objective, ranks: Ranks, entries: Entries = ROWS
    ) -> None:
        self._cfg = cfg
        self._ranks = ranks
        self._measures_kl = False
        self.units: Slot[Any] = Slot('the unit of the critic', ReturnUnits())
        self.baseline: Slot[Callable[[Tensor], Tensor]] = Slot('the baseline of advantages', ReturnUnits().restore)
        self.reward_scale: Slot[Callable[[Transition, Tensor | None], Tensor]] = Slot('how rewards count', given_reward)
        self.estimator: Slot[Any] = Slot('the estimator of advantages', cfg.collect.estimator)
        self.entries: Slot[Entries] = Slot('the entries of a batch', entries)
        self.inputs: list[Callable[[ColumnsByName], ColumnsByName]] = []
        self.draw: Slot[Draw] = Slot('the order of samples', shuffled)
        self.stop_after: Slot[StopAfter | None] = Slot('when passes stop', None)
        self.renew: Slot[Renew | None] = Slot('what passes compute again', None)
        self.each_pass: Slot[EachPass | None] = Slot('the columns of each pass', None)
        self.surrogate: Slot[Callable[..., Tensor]] = Slot('the surrogate', objective.surrogate)
        self.value_loss: Slot[Callable[..., Tensor]] = Slot('the value loss', objective.value_loss)
        self.terms: list[Any] = list(objective.penalties)
        self.proximal: Slot[Callable[..., Any] | None] = Slot('the loss of the policy', None)
        self.extra_columns: Slot[Callable[..., Any] | None] = Slot('the columns that steps compute', None)
        self.around_forward: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = []
        self.memory: Slot[Any] = Slot('the memory of the auxiliary phase', None)
        self.has_critic = Slot('whether a critic is trained', True)
        self.normalizers: dict[str, nn.Module] = {}
        if cfg.learn.adv_norm == 'batch':
            self.inputs.append(partial(normalized, ranks=ranks))

    def measure_kl(self) -> None:
        """Lets steps of the policy give the metric kl, although it may cost time."""
        self._measures_kl = True

    def loss(self) -> LossSpec:
        """The loss of steps on the policy, with the parts as they are now."""
        forward = self.entries.value.forward
        for around in self.around_forward:
            forward = around(forward)
        return LossSpec(
            surrogate=self.surrogate.value,
            value_loss=self.value_loss.value,
            terms=tuple(self.terms),
            proximal=self.proximal.value,
            forward=forward,
            extra_columns=self.extra_columns.value,
            measure_kl=self._measures_kl,
        )

    def samples(self, options: tuple[UpdateOption, ...]) -> Samples:
        """Makes a batch of a rollout, and of a batch the columns that steps read."""
        collect = self._cfg.collect
        return Samples(
            collect.discount_factor,
            collect.gae_lambda,
            self._ranks,
            options,
            units=self.units.value,
            baseline=self.baseline.value,
            reward_scale=self.reward_scale.value,
            estimator=self.estimator.value,
            entries=self.entries.value,
            inputs=self.inputs,
        )

    def passes(
        self,
        samples: Samples,
        execution: Execution,
        seed: int,
        device: torch.device,
        training: Callable[[int], AbstractContextManager[Any]] = nullcontext,
    ) -> Passes:
        """Takes the steps of an update. Args: see `Passes`."""
        return Passes(
            samples,
            execution,
            seed,
            device,
            draw=self.draw.value,
            stop_after=self.stop_after.value,
            renew=self.renew.value,
            each_pass=self.each_pass.value,
            normalizes=self._cfg.learn.adv_norm == 'minibatch',
            ranks=self._ranks,
            training=training,
        )
