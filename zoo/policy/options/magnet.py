"""Magnet: an average of past policies from which the penalty 'magnet' takes the distance of the present one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from zoo.backend.step import LossSpec
from zoo.policy.options import Owner, UpdateOption
from zoo.rl_utils.optimizer import FlatOptimizer

if TYPE_CHECKING:
    from zoo.policy.slots import UpdateSlots


def magnet_logit(
    model: nn.Module, optimizers: Sequence[FlatOptimizer], minibatch: Mapping[str, Any], loss: LossSpec
) -> dict[str, Tensor]:
    """Returns the column 'logit_magnet' by the averaged parameters of the first optimiser."""
    from zoo.backend.trace import replaced

    with replaced(model, optimizers[0].averaged):  # not in no_grad, where `forward` ignores the number format of a step
        output, _ = loss.forward(model, 'compute_actor', minibatch)
    return {'logit_magnet': output['logit'].detach()}


class Magnet(UpdateOption):
    """The optimiser of the policy keeps an average of its parameters, whose outputs steps compute. It lasts for the whole run."""

    key = 'policy.learn.penalties'

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        self._policy = policy
        self._decay = next(dict(each.options)['decay'] for each in policy.objective.penalties if each.name == 'magnet')
        update.extra_columns.fill(self, magnet_logit)

    def mechanics(self) -> Mapping[str, Any]:
        return {'average_decay': self._decay}

    def model_replaced(self) -> None:
        for optimizer in self._policy.optimizers.values():
            optimizer.reset_average()
