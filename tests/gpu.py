"""Marks and a check for tests that run on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

needs_gpu = pytest.mark.gpu
with_gpu_too = pytest.mark.gpu(too=True)  # without --gpu it runs on the CPU


@contextmanager
def no_waiting() -> Iterator[None]:
    """Within this context, a call that makes the host wait for the GPU raises a RuntimeError."""
    try:
        torch.cuda.set_sync_debug_mode('error')
        yield
    finally:
        torch.cuda.set_sync_debug_mode('default')
