"""Loss and numbers of a step from one list of keywords, for tests of steps and executors."""

from __future__ import annotations

from typing import Any

from zoo.backend.step import LossAndNumbers, LossSpec, StepNumbers

POLICY_ORDER = (
    'clip_ratio',
    'entropy_weight',
    'dual_clip',
    'grad_clip',
    'measure_kl',
    'value_weight',
    'surrogate',
    'value_loss',
    'terms',
    'term_weights',
)
CRITIC_ORDER = ('clip_ratio', 'grad_clip', 'value_loss', 'value_weight')


def PolicyNumbers(*values: Any, **fields: Any) -> LossAndNumbers:
    """Of a step on the policy. values: in POLICY_ORDER."""
    plain = LossAndNumbers(LossSpec(), StepNumbers())
    return plain._replace(**dict(zip(POLICY_ORDER, values, strict=False)), **fields)


def ValueNumbers(*values: Any, **fields: Any) -> LossAndNumbers:
    """Of a step on the critic. values: in CRITIC_ORDER."""
    plain = LossAndNumbers(LossSpec(), StepNumbers(grad_clip=None, value_weight=1.0))
    return plain._replace(**dict(zip(CRITIC_ORDER, values, strict=False)), **fields)
