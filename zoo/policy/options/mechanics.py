"""Options around the rule of an optimiser: 'accumulate', 'grad_clip_value' and 'precision'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zoo.backend.choose import Named
from zoo.backend.precision import precision_problem
from zoo.policy.options.base import Owner, UpdateOption

PLAIN = {'accumulate': 1, 'grad_clip_value': None, 'precision': 'fp32'}
"""What a plain optimiser has, by the key of `policy.learn`."""


class OptimizerMechanics(UpdateOption):
    """Several minibatches to a step, a limit for each element of the gradient, another number format inside the networks."""

    def problems(self, policy: Owner) -> Iterator[str]:
        if problem := precision_problem(policy.cfg.learn.precision, policy.device):
            yield problem

    def attach(self, policy: Owner) -> None:
        learn = policy.cfg.learn
        self._settings = {name: learn[name] for name, plain in PLAIN.items() if learn[name] != plain}
        self.parts = tuple(Named('option', f'policy.learn.{name}') for name in self._settings)
        policy.objective.fixed = policy.objective.fixed._replace(precision=learn.precision)

    def mechanics(self) -> Mapping[str, Any]:
        return self._settings
