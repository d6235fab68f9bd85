"""Gradient hook of an update: callbacks see each gradient before its step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from zoo.policy.config import UpdatePrecision
from zoo.policy.hooks import gradient_ready, listening
from zoo.policy.ppo import descend
from zoo.rl_utils.optimizer import FlatOptimizer
from zoo.rl_utils.update_rules import SGDRule

LOSS = torch.ones((), requires_grad=True)


def test_gradient_is_shown_to_the_listener_alone_and_only_inside_the_context() -> None:
    seen: list[Any] = []
    gradient_ready(['outside'], LOSS)
    with listening(lambda optimizers, loss: seen.append((optimizers, loss.requires_grad))):
        gradient_ready(['inside'], LOSS)
        with listening(None):
            gradient_ready(['nobody'], LOSS)
        gradient_ready(['again'], LOSS)
    gradient_ready(['outside'], LOSS)
    assert seen == [(['inside'], False), (['again'], False)]


def test_listener_that_raises_is_gone_afterwards() -> None:
    def refuse(optimizers: Any, loss: Any) -> None:
        raise RuntimeError('no')

    with pytest.raises(RuntimeError, match='no'), listening(refuse):
        gradient_ready([], LOSS)
    gradient_ready([], LOSS)


@pytest.mark.parametrize('precision', ['fp32', 'fp16'])
@pytest.mark.parametrize('accumulate', [1, 2])
def test_listener_sees_the_gradient_of_the_step_that_follows_and_no_other(
    precision: UpdatePrecision, accumulate: int
) -> None:
    """Losses k * p with k = 1, 3, 5, 9 have the gradients k, or in pairs the means 2 and 7, with any loss scale."""
    p = torch.nn.Parameter(torch.zeros(1))
    optimizer = FlatOptimizer([('p', p)], SGDRule(), lr=1.0)
    optimizer.configure(accumulate=accumulate, precision=precision)
    seen: list[float] = []
    with listening(lambda optimizers, loss: seen.append(optimizers[0].grad.item())):
        for k in (1.0, 3.0, 5.0, 9.0):
            descend([optimizer], (k * p).sum(), None)
    assert seen == ([1, 3, 5, 9] if accumulate == 1 else [2, 7])
    assert p.item() == -sum(seen)  # the step applies the gradient as it was shown, without another division


def test_listener_changes_the_step_where_gradients_gather() -> None:
    p = torch.nn.Parameter(torch.zeros(1))
    optimizer = FlatOptimizer([('p', p)], SGDRule(), lr=1.0)
    optimizer.configure(accumulate=2, precision='fp16')
    with listening(lambda optimizers, loss: optimizers[0].grad.fill_(0.5)):
        for k in (1.0, 3.0):
            descend([optimizer], (k * p).sum(), None)
    assert p.item() == -0.5
