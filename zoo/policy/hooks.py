"""Where an update calls code of the run: between a backward pass and the step of the optimisers.

A step function calls `gradient_ready` once after each backward pass. Nothing happens unless a run has callbacks for it,
see `Callback.on_gradient`; such a run executes its steps eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

Listener = Callable[[Sequence[Any], Tensor], None]
"""(optimisers, loss) -> nothing; may change the gradients of the optimisers in place."""

_listener: Listener | None = None


def gradient_ready(optimizers: Sequence[Any], loss: Tensor) -> None:
    """Says that the gradient of `loss` (0-dim) is in the flat buffers `grad` of the optimisers, which step next."""
    if _listener is not None:
        _listener(optimizers, loss.detach())


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Within this context every gradient is shown to the listener; None: to nobody."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before
