"""Helpers for buffer tests: numbered samples and buffers."""

from __future__ import annotations

from typing import Any

import torch

from zoo.buffer import MultiBuffer, MultiConfig, ReplayBuffer, ReplayConfig
from zoo.config.section import validate
from zoo.core.data import leaves, map_tensors


def numbered(first: int, n: int) -> dict[str, Any]:
    """Samples with the numbers first, first + 1, ... in column 'id'; the other columns are computed from the number."""
    number = torch.arange(first, first + n)
    return {
        'id': number,
        'adv': number / 2,
        'obs': (number % 256).to(torch.uint8)[:, None, None].repeat(1, 2, 3),
        'logit': {'mu': torch.stack((number, -number), 1).float(), 'sigma': number.double()[:, None]},
    }


def is_whole(batch: dict[str, Any]) -> bool:
    """Whether every row of a batch is a sample as `numbered` made it."""
    number = batch['id']
    want = map_tensors(lambda *xs: torch.cat(xs), *(numbered(int(i), 1) for i in number))
    return same({name: x for name, x in batch.items() if name != 'staleness'}, want)


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two batches are equal, leaf by leaf."""
    x, y = dict(leaves(a)), dict(leaves(b))
    return x.keys() == y.keys() and all(torch.equal(x[path], y[path]) for path in x)


def replay(seed: int = 0, **fields: Any) -> ReplayBuffer:
    return ReplayBuffer(validate(ReplayConfig, fields, 'buffer'), seed)


def multi(seed: int = 0, **fields: Any) -> MultiBuffer:
    return MultiBuffer(validate(MultiConfig, fields, 'buffer'), seed)


def push_numbered(buffer: Any, sizes: list[int], first: int = 0) -> None:
    for n in sizes:
        buffer.push(numbered(first, n))
        first += n
