"""Tests that a captured call does the same as its function; they need a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.gpu import needs_gpu, no_waiting
from zoo.backend.trace import CapturedCall

pytestmark = needs_gpu


def add_up(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Adds the second input to the first, in place; returns twice the second."""
    total, x = inputs
    total.add_(x)
    return [x * 2]


def test_captured_call_takes_every_step_once() -> None:
    total, call = torch.zeros(3, device='cuda'), CapturedCall(add_up, n_fixed=1)
    results = [call([total, torch.full((3,), float(k), device='cuda')])[0] for k in range(1, 6)]
    assert total.tolist() == [15.0] * 3  # 1 + 2 + 3 + 4 + 5: the captured call counts exactly once
    assert [x[0].item() for x in results] == [2.0, 4.0, 6.0, 8.0, 10.0]  # no result is overwritten by the next


def test_captured_call_follows_a_fixed_input_to_another_address() -> None:
    first, second, call = torch.zeros(1, device='cuda'), torch.zeros(1, device='cuda'), CapturedCall(add_up, n_fixed=1)
    one = torch.ones(1, device='cuda')
    for total, n in ((first, 3), (second, 2), (first, 1)):
        for _ in range(n):
            call([total, one])
    assert (first.item(), second.item()) == (4.0, 2.0)


def test_captured_call_waits_for_nothing() -> None:
    total, call, x = torch.zeros(3, device='cuda'), CapturedCall(add_up, n_fixed=1), torch.ones(3, device='cuda')
    for _ in range(2):
        call([total, x])
    with no_waiting():
        call([total, x])
    assert total.tolist() == [3.0] * 3
