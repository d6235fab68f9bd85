"""An update is built from its slots, which options have filled.

rollout --samples--> batch --passes--> plans of minibatches --loss--> steps          (memory: of PPG's auxiliary phase)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from zoo.backend.step import LossSpec
from zoo.core.ranks import Ranks
from zoo.policy.config import ActorCriticPolicyConfig
from zoo.policy.execution import Execution
from zoo.policy.objective import Objective
from zoo.policy.options import UpdateOption
from zoo.policy.passes import Passes, shuffled
from zoo.policy.samples import ROWS, ReturnUnits, Samples, given_reward, normalized
from zoo.policy.slots import Entries, Slot, Units, UpdateSlots


class UpdateBuilder(UpdateSlots):
    """Makes the parts of an update from its slots."""

    def __init__(
        self, cfg: ActorCriticPolicyConfig, objective: Objective, ranks: Ranks, entries: Entries = ROWS
    ) -> None:
        super().__init__()
        self._cfg = cfg
        self._ranks = ranks
        self.units: Slot[Units] = Slot('the unit of the critic', ReturnUnits())
        self.baseline = Slot('the baseline of advantages', ReturnUnits().restore)
        self.reward_scale = Slot('how rewards count', given_reward)
        self.estimator = Slot('the estimator of advantages', cfg.collect.estimator)
        self.entries = Slot('the entries of a batch', entries)
        self.inputs = []
        self.draw = Slot('the order of samples', shuffled)
        self.stop_after = Slot('when passes stop', None)
        self.renew = Slot('what passes compute again', None)
        self.each_pass = Slot('the columns of each pass', None)
        self.surrogate = Slot('the surrogate', objective.surrogate)
        self.value_loss = Slot('the value loss', objective.value_loss)
        self.terms = list(objective.penalties)
        self.proximal = Slot('the loss of the policy', None)
        self.extra_columns = Slot('the columns that steps compute', None)
        self.around_forward = []
        self.memory = Slot('the memory of the auxiliary phase', None)
        self.has_critic = Slot('whether a critic is trained', True)
        self.normalizers = {}
        if cfg.learn.adv_norm == 'batch':
            self.inputs.append(partial(normalized, ranks=ranks))

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
