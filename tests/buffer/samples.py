"""Numbered samples for tests of buffers."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from zoo.buffer import MultiBuffer, MultiConfig, ReplayBuffer, ReplayConfig
from zoo.config.section import validate


def numbered(first: int, n: int) -> TensorDict:
    """Samples first, first + 1, ...: everything in a sample follows from its number, under 'id'."""
    number = torch.arange(first, first + n)
    return TensorDict(
        {
            'id': number,
            'adv': number / 2,
            'obs': (number % 256).to(torch.uint8)[:, None, None].repeat(1, 2, 3),
            'logit': {'mu': torch.stack((number, -number), 1).float(), 'sigma': number.double()[:, None]},
        },
        batch_size=[n],
    )


def is_whole(batch: TensorDict) -> bool:
    """Whether every row of a batch is a sample as `numbered` made it."""
    number = batch['id']
    return all(
        torch.equal(leaf, torch.cat([numbered(int(i), 1).get(key) for i in number]))
        for key, leaf in batch.exclude('staleness').items(True, True)
    )


def replay(seed: int = 0, **fields: Any) -> ReplayBuffer:
    return ReplayBuffer(validate(ReplayConfig, fields, 'buffer'), seed)


def multi(seed: int = 0, **fields: Any) -> MultiBuffer:
    return MultiBuffer(validate(MultiConfig, fields, 'buffer'), seed)


def push_numbered(buffer: Any, sizes: list[int], first: int = 0) -> None:
    for n in sizes:
        buffer.push(numbered(first, n))
        first += n
