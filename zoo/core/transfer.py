"""Results that a GPU made, brought to the host without waiting for what it does next."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Fetch:
    """Brings CUDA tensors of one form to the host, one after another.

    The host waits for the one that it asks for, not for the work that the device was given after it.
    """

    def __init__(self) -> None:
        self._place: Tensor | None = None  # the next `start` writes it
        self._event: torch.cuda.Event | None = None

    def start(self, x: Tensor) -> Callable[[], Tensor]:
        """Has x brought over once the device has made it; returns what waits for it and gives it, on the host.

        Its memory is overwritten by the next `start`.
        """
        if self._place is None or self._event is None:
            self._place, self._event = torch.empty(x.shape, dtype=x.dtype, pin_memory=True), torch.cuda.Event()
        self._place.copy_(x, non_blocking=True)
        self._event.record(torch.cuda.current_stream(x.device))
        return self._result

    def _result(self) -> Tensor:
        assert self._place is not None and self._event is not None
        self._event.synchronize()
        return self._place
