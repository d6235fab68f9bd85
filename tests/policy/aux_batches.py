"""Batches for the memory of the auxiliary phase, and memories that hold some of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from zoo.policy.aux_memory import AuxMemory
from zoo.policy.options.resumed_memory import make_memory
from zoo.policy.ppg_config import MemoryLocation

CPU = torch.device('cpu')
PLACES: list[MemoryLocation] = ['device', 'cpu', 'disk']
places = pytest.mark.parametrize('where', PLACES)
weighted_places = pytest.mark.parametrize(
    ('where', 'weighted'), [('device', True), ('cpu', False), ('disk', True), ('disk', False)]
)


def part(seed: int, n: int = 6, weighted: bool = False, dtype: torch.dtype = torch.uint8) -> dict[str, Tensor]:
    """A batch: images, returns, and columns that the memory does not keep."""
    generator = torch.Generator().manual_seed(seed)
    data = {
        'obs': torch.randint(256, (n, 4, 5, 3), generator=generator).to(dtype),
        'return_': torch.randn(n, generator=generator),
        'adv': torch.zeros(n),
        'logit': torch.zeros(n, 15),
    }
    if weighted:
        data['weight'] = torch.rand(n, generator=generator)
    return data


def all_rows(memory: AuxMemory) -> dict[str, Tensor]:
    return {key: x.cpu() for key, x in memory.columns().items()}


def joined(parts: list[dict[str, Tensor]], *keys: str) -> dict[str, Tensor]:
    return {key: torch.cat([p[key] for p in parts]) for key in keys}


def assert_holds(memory: AuxMemory, want: dict[str, Tensor]) -> None:
    got = all_rows(memory)
    assert got.keys() == want.keys() and memory.n_row == len(want['return_'])
    for key, x in want.items():
        assert got[key].dtype == x.dtype and torch.equal(got[key], x), key


def filled(n_batch: int, *seeds: int, where: MemoryLocation = 'cpu', is_ring: bool = False) -> Any:
    """A memory for n_batch batches that has the batches of these seeds."""
    memory = make_memory(n_batch, where, is_ring)
    for seed in seeds:
        memory.append(part(seed))
    return memory


def of_seeds(*seeds: int) -> dict[str, Tensor]:
    """What a memory of the batches of these seeds holds."""
    return joined([part(seed) for seed in seeds], 'obs', 'return_')
