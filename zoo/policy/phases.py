"""Auxiliary phases of ppg: which step they take, and what its value head on the policy's trunk learns."""

from __future__ import annotations

from typing import Literal, NamedTuple

from zoo.backend.executor import Step
from zoo.core.registry import PHASE_REGISTRY
from zoo.policy.updates import aux_step, distill_step


class Phase(NamedTuple):
    """An auxiliary phase.

    target: what the auxiliary head learns: the returns that were kept, or the critic's values as the phase begins.
    moves_critic: whether the critic's parameters take part.
    """

    step: Step
    target: Literal['return', 'critic']
    moves_critic: bool


@PHASE_REGISTRY.register('ppg')
def ppg() -> Phase:
    """The auxiliary head and the critic learn the returns, while KL(old || new) holds the policy (arXiv:2009.04416)."""
    return Phase(aux_step, 'return', True)


@PHASE_REGISTRY.register('distill')
def distill() -> Phase:
    """The auxiliary head learns the critic's values, while KL(old || new) holds the policy (DNA, arXiv:2206.10027)."""
    return Phase(distill_step, 'critic', False)
