"""Penalties: terms that a policy loss adds for moving away from the stored policy or value, elementwise.

Each takes (dist, output, minibatch) and returns [N], with a gradient in `output` alone; the caller multiplies the weighted
mean by the penalty's weight, which may follow a schedule or a target.
  output: the present outputs of the model as rows, 'logit' [N, P] and, where the step trains a critic too, 'value' [N].
  minibatch: the stored columns as rows, of which 'logit' is that of the behaviour policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from zoo.core.data import wide
from zoo.core.errors import UserError
from zoo.core.registry import PENALTY_REGISTRY
from zoo.rl_utils.distribution import ActionDist


@PENALTY_REGISTRY.register('kl')
def kl(dist: ActionDist, output: Mapping[str, Tensor], minibatch: Mapping[str, Any]) -> Tensor:
    """KL divergence from the stored policy to the present one, KL(old || new), nats per sample.

    Its gradient keeps probability where the stored policy has some.
    Source: Schulman et al. 2017, arXiv:1707.06347, eq. 8.
    """
    return dist.kl(minibatch['logit'].detach(), output['logit'])


@PENALTY_REGISTRY.register('reverse_kl')
def reverse_kl(dist: ActionDist, output: Mapping[str, Tensor], minibatch: Mapping[str, Any]) -> Tensor:
    """KL divergence from the present policy to the stored one, KL(new || old), nats per sample.

    Its gradient avoids probability where the stored policy has little; the penalty is infinite where the stored policy has none.
    """
    return dist.kl(output['logit'], minibatch['logit'].detach())


@PENALTY_REGISTRY.register('value_drift')
def value_drift(dist: ActionDist, output: Mapping[str, Tensor], minibatch: Mapping[str, Any]) -> Tensor:
    """Half the squared change of the value since the samples were collected, in squared units of the critic's output.

    0.5 (V - V_old)^2, for policies whose actor and critic share a network.
    Source: Moon et al. 2022 (DCPG), arXiv:2210.09960.
    Raises: UserError if the step computes no value.
    """
    if 'value' not in output:
        raise UserError(
            "the penalty 'value_drift' needs the critic's value in the step on the policy, but this policy trains its "
            'critic in steps of its own; leave the penalty out, or use one network for both'
        )
    return 0.5 * (wide(output['value']) - wide(minibatch['value'].detach())).square()
