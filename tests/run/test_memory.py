"""The limit on what building a network allocates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from zoo.run.memory import AllocationError, AllocationLimit, machine_memory


def test_small_network_is_built_as_without_a_limit() -> None:
    torch.manual_seed(0)
    with AllocationLimit(1 << 20):
        limited = nn.init.orthogonal_(nn.Linear(30, 20).weight)
    torch.manual_seed(0)
    assert torch.equal(limited, nn.init.orthogonal_(nn.Linear(30, 20).weight))


@pytest.mark.parametrize(
    'build',
    [
        lambda: nn.Linear(1 << 20, 1 << 20),
        lambda: [nn.Linear(300, 300) for _ in range(10)],  # 10 x 361 kB
        lambda: torch.zeros(3).new_empty(1 << 40),
        lambda: torch.randn(1 << 40, generator=torch.Generator()),
        lambda: torch.arange(1 << 40),
    ],
)
def test_more_than_the_limit_is_refused_before_it_is_allocated(build: Callable[[], object]) -> None:
    with pytest.raises(AllocationError) as error, AllocationLimit(1 << 20):
        build()
    assert error.value.n_byte > 1 << 20


def test_machine_has_memory() -> None:
    assert machine_memory() > 1 << 28
