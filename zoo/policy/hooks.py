"""Gradient callbacks: calls of a user's code between the backward pass and the step of the optimisers.

A step function calls `gradient_ready` once after each backward pass. Nothing happens unless a run has callbacks for it,
see `Callback.on_gradient`; such a run executes its steps eagerly. Callbacks see the gradient of the step, unclipped and
without a loss scale. If several minibatches make one step, they see the mean gradient, once, before that step. On several
ranks they see the mean over the ranks, and a callback that changes the gradient must run on all ranks.
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
    """The listener of each thread, None: nobody. Several runs in one process may take steps at the same time."""

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
    """Context in which every gradient is shown to the listener `new`; None: to nobody."""
    before = here.listener
    here.listener = new
    try:
        yield
    finally:
        here.listener = before
