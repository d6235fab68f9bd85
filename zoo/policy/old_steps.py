"""Steps and numbers in the form with five parameters, until zoo 0.4: loss and numbers are one object."""

from __future__ import annotations

from typing import Any

from zoo.backend.step import LossAndNumbers, LossSpec, StepNumbers
from zoo.policy import ppo


def policy_terms(*args: Any) -> Any:
    """`zoo.policy.ppo.policy_terms`, also with loss and numbers as one object."""
    if isinstance(args[-1], LossAndNumbers):
        return ppo.policy_terms(*args[:-1], *args[-1])
    return ppo.policy_terms(*args)


def surrogate_loss(*args: Any) -> Any:
    """`zoo.policy.ppo.surrogate_loss`, also with loss and numbers as one object."""
    if isinstance(args[-1], LossAndNumbers):
        return ppo.surrogate_loss(*args[:-1], *args[-1])
    return ppo.surrogate_loss(*args)


def PolicyNumbers(*args: Any, **fields: Any) -> LossAndNumbers:  # noqa: N802
    """The numbers and the parts of the loss of a step on the policy, as one object."""
    names = 'clip_ratio entropy_weight dual_clip grad_clip measure_kl value_weight surrogate value_loss'.split()
    return LossAndNumbers(LossSpec(), StepNumbers())._replace(**dict(zip(names, args, strict=False)), **fields)


def ValueNumbers(*args: Any, **fields: Any) -> LossAndNumbers:  # noqa: N802
    """The numbers and the parts of the loss of a step on the critic, as one object."""
    names = 'clip_ratio grad_clip value_loss value_weight forward bc_weight'.split()
    plain = LossAndNumbers(LossSpec(), StepNumbers(grad_clip=None, value_weight=1.0))
    return plain._replace(**dict(zip(names, args, strict=False)), **fields)
