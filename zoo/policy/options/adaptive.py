"""Adaptive learning rates, which follow the KL of updates, and weights of penalties with a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zoo.config.schedule import adaptive_rate, schedule_value
from zoo.core.data import Columns, Metrics
from zoo.core.ranks import mean_of_rows, mean_over
from zoo.policy.options import Owner, UpdateOption
from zoo.rl_utils.ppo import weighted_mean

if TYPE_CHECKING:
    from zoo.policy.slots import UpdateSlots

GROWS = 1.5
SHRINKS = 0.5
BAND = 2.0
"""Weight factors if a penalty is above BAND * target, or below target / BAND; RLlib's, after arXiv:1707.06347, sec. 4."""


class AdaptiveNumbers(UpdateOption):
    """Measures KL(before || after) of an update, and adapts learning rates and penalty weights for the next update.

    Only adaptive rates and the weights of penalties with a target change.
    """

    key = 'policy.learn.learning_rate'
    names = ('update_kl',)

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        self._policy = policy
        rules = {name: adaptive_rate(policy.cfg.learn[name]) for name in policy.rates.names}
        self._rules = {name: rule for name, rule in rules.items() if rule is not None}
        self._rates = {name: rule.start for name, rule in self._rules.items()}
        penalties = zip(policy.objective.penalties, policy.objective.common, strict=True)
        self._followers = {penalty.name: common for penalty, common in penalties if common.target is not None}
        self._weights = {name: schedule_value(common.weight, 0) for name, common in self._followers.items()}
        self._before: Tensor | None = None

    def choose_rates(self) -> Mapping[str, float]:
        return self._rates

    def choose_weights(self) -> Mapping[str, float]:
        return self._weights

    def before_update(self, batch: Columns) -> Columns:
        self._before = self._policy.logit_of(batch)
        return batch

    @torch.no_grad()
    def after_passes(self, batch: Columns, trained: Any) -> Metrics:
        policy = self._policy
        weight = batch.get('weight')
        before = self._before
        assert before is not None
        before, now = (x.flatten(0, x.dim() - 2) for x in (before, policy.logit_of(batch)))
        if weight is not None:
            weight = weight.flatten()
        kl = mean_of_rows(weighted_mean, policy.dist.kl(before, now), weight, policy.run.ranks)
        self._rates = {name: rule.next(self._rates[name], float(kl)) for name, rule in self._rules.items()}
        self.adapt_weights({**trained.last(), 'penalty_kl': kl})
        return {'update_kl': kl}

    def adapt_weights(self, last: Mapping[str, Tensor]) -> None:
        """Adapts weights with a target to the penalties in the last pass of an update, on all ranks. Waits for the device."""
        for name, common in self._followers.items():
            penalty = float(mean_over(last[f'penalty_{name}'], self._policy.run.ranks))
            weight = self._weights[name]
            if penalty > BAND * common.target:
                weight *= GROWS
            elif penalty < common.target / BAND:
                weight *= SHRINKS
            self._weights[name] = min(max(weight, common.min_weight), common.max_weight)

    def state_dict(self) -> dict[str, Any]:
        """The rates and the weights by name, and the values with which they began."""
        rates = self._rates | {f'{name}_start': rule.start for name, rule in self._rules.items()}
        weights: dict[str, float] = {}
        for name, common in self._followers.items():
            weights |= {name: self._weights[name], f'{name}_start': schedule_value(common.weight, 0)}
        state = {'penalty_weight': weights, 'adaptive_rate': rates}
        return {name: x for name, x in state.items() if x}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies a `state_dict` in, clamped to the config's limits; entries that it lacks, or with a new start value, stay."""
        rates = state.get('adaptive_rate', {})
        weights = state.get('penalty_weight', {})
        for name, rule in self._rules.items():
            if rates.get(f'{name}_start') == rule.start:
                self._rates[name] = min(max(rates[name], rule.min), rule.max)
        for name, common in self._followers.items():
            if weights.get(f'{name}_start') == schedule_value(common.weight, 0):
                self._weights[name] = min(max(weights[name], common.min_weight), common.max_weight)
