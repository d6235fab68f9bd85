"""Calls of the run's own code within an update: between a backward pass and the step of the optimisers.

A step function calls `gradient_ready` once after each backward pass. Nothing happens unless a run has callbacks for it,
see `Callback.on_gradient`; such a run executes its steps eagerly. They see the gradient that the optimisers step with,
before its limits: where several minibatches make one step it is their mean, shown before that step alone, and a loss
scale is divided out. Of several ranks it is the mean; code that changes it has to run on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import Any

from torch import Tensor

from zoo.rl_utils.optimizer import FlatOptimizer

Listener = Callable[[Sequence[Any], Tensor], None]
"""(optimisers, loss) -> nothing; may change the gradients of the optimisers in place."""


class _Here(local):
    """Of each thread, since several runs of a process may take their steps at once. listener: None: nobody."""

    listener: Listener | None = None


here = _Here()


def gradient_ready(optimizers: Sequence[Any], loss: Tensor) -> None:
    """Says that the gradient of `loss` (0-dim) is in the flat buffers `grad` of the optimisers, which step next."""
    own = [optimizer for optimizer in optimizers if isinstance(optimizer, FlatOptimizer)]
    if here.listener is None or not all(optimizer.upcoming[1] for optimizer in own):
        return  # an optimiser that waits for more gradients does not step next
    divided = []
    for optimizer in own:
        optimizer.share_gradient()
        divisor = optimizer.divisor(optimizer.upcoming[0], optimizer.scaled_by)
        if divisor is not None:
            optimizer.grad.div_(divisor)
            divided.append((optimizer.grad, divisor))
    try:
        here.listener(optimizers, loss.detach())
    finally:
        for grad, divisor in divided:  # the optimiser's own step divides
            grad.mul_(divisor)


@contextmanager
def listening(new: Listener | None) -> Iterator[None]:
    """Within this context every gradient is shown to a listener; None: to nobody."""
    before, here.listener = here.listener, new
    try:
        yield
    finally:
        here.listener = before
