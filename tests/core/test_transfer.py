"""Moves between host and device."""

from __future__ import annotations

import pytest
import torch

from tests.gpu import needs_gpu, no_waiting
from zoo.core.data import send
from zoo.worker.gpu import Fetch

CPU = torch.device('cpu')


def test_what_is_there_already_is_not_copied() -> None:
    x = torch.arange(3)
    assert send(x, CPU) is x


@needs_gpu
@pytest.mark.parametrize('pinned', [True, False])
@pytest.mark.parametrize('n', [0, 5])
def test_send_does_not_wait(pinned: bool, n: int) -> None:
    x = torch.arange(n).pin_memory() if pinned and n else torch.arange(n)
    with no_waiting():
        there = send(x, torch.device('cuda'))
    assert there.is_cuda and there.tolist() == list(range(n))


@needs_gpu
def test_fetch_brings_one_after_another_though_the_device_is_busy_with_what_came_later() -> None:
    fetch, busy = Fetch(), torch.rand(4096, 4096, device='cuda')
    for k in range(3):
        result = fetch.start(torch.full((4,), k, device='cuda'))
        busy = busy @ busy
        assert result().tolist() == [k] * 4 and not result().is_cuda
