"""Moves tensors between host and device so that neither waits for the other more than it must."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def send(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; where it comes from the host, it goes through pinned memory, and the host does not wait.

    One that is pinned already is read when its turn comes: leave it as it is until the device was waited for.
    """
    if x.device.type != 'cpu' or device.type == 'cpu':
        return x.to(device)
    if device.type == 'cuda' and x.numel() and not x.is_pinned():
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


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
