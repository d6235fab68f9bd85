"""Fixtures of the kernels' tests: kernels on any device, and memory that shows unwritten elements."""

from __future__ import annotations

import pytest
import torch

from tests.rl_utils.kernels.compare import set_mode


@pytest.fixture
def kernels_everywhere(monkeypatch):
    """Without a GPU the kernels run in Triton's interpreter on CPU tensors (tests/conftest.py); with one, on the GPU."""
    set_mode(monkeypatch, 'interpret')


@pytest.fixture
def poisoned_memory():
    """Fresh memory is NaN: an element that a kernel leaves unwritten fails every comparison."""
    torch.use_deterministic_algorithms(True)  # this makes torch.empty fill the memory
    yield
    torch.use_deterministic_algorithms(False)
