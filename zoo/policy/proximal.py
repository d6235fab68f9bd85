"""Proximal policies: which policy an update stays near, while samples of any age are weighed by the one that acted."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from zoo.core.registry import PROXIMAL_REGISTRY

RhoMax = Annotated[
    Annotated[float, Field(ge=1)] | None,
    Field(
        description='bound of the ratio p_proximal / p_behaviour that weighs a sample; null: p_new / p_behaviour <= 100'
    ),
]


@PROXIMAL_REGISTRY.register('behaviour')
def behaviour() -> None:
    """The policy that acted: the ratio of PPO as published; old samples are clipped for their age."""


@PROXIMAL_REGISTRY.register('recent')
def recent(*, rho_max: RhoMax = None) -> None:
    """The policy as the update began: one more pass of the network over the batch (decoupled clip, arXiv:2110.00641).

    With rho_max 2 it is what policy.learn.correction calls 'decoupled'.
    """


@PROXIMAL_REGISTRY.register('ewma')
def ewma(
    *,
    decay: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description='of the average, per gradient step; 1 - 1 / (gradient steps of the policy per rollout) is usual',
        ),
    ] = 0.889,
    rho_max: RhoMax = None,
) -> float:
    """An exponential average of the policy over gradient steps (PPO-EWMA, arXiv:2110.00641).

    It begins anew after each auxiliary phase of ppg, and after a plasticity part has acted.
    """
    return decay
