"""How much memory there is, and a limit on what building a network may allocate."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def machine_memory() -> int:
    """Bytes of this machine's memory; without a bound where the system does not say."""
    if not hasattr(os, 'sysconf') or 'SC_PHYS_PAGES' not in os.sysconf_names:
        return 2**63
    return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')


class AllocationError(Exception):
    """More memory was asked for than the limit; holds the bytes asked for so far."""

    def __init__(self, n_byte: int) -> None:
        super().__init__(n_byte)
        self.n_byte = n_byte


class AllocationLimit(TorchDispatchMode):
    """Within this context, new tensors of more than n_byte in sum raise AllocationError before they are allocated.

    Each operation that makes a tensor on a device is first run on the device 'meta', which has sizes but no memory.
    """

    def __init__(self, n_byte: int) -> None:
        super().__init__()
        self._limit, self._total = n_byte, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(argument.name == 'device' for argument in func._schema.arguments):
            here = {**kwargs, 'device': torch.device('meta')} | ({'generator': None} if 'generator' in kwargs else {})
            new = func(*args, **here)
            self._total += new.numel() * new.element_size()
            if self._total > self._limit:
                raise AllocationError(self._total)
        return func(*args, **kwargs)
