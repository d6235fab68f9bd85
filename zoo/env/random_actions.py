"""Random legal actions, as a policy makes them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from zoo.core.spaces import Box, Dict, Discrete, MultiDiscrete, Space, leaf_spaces
from zoo.env.masks import mask_size


def random_actions(space: Space, n: int, rng: torch.Generator, mask: Tensor | None = None) -> Tensor:
    """n actions, each in the form that ActionMap takes; of a Box, numbers from -1 to 1.

    Args: mask: [n, n_mask] bool, the actions that are legal; None: all.
    """
    parts = list(_parts(space, n, rng, mask))
    if isinstance(space, Dict):
        return torch.cat([part.reshape(n, -1).float() for part in parts], 1)
    return parts[0]


def _parts(space: Space, n: int, rng: torch.Generator, mask: Tensor | None) -> Iterator[Tensor]:
    start = 0
    for _, leaf in leaf_spaces(space):
        stop = start + mask_size(leaf)
        legal = torch.ones((n, stop - start), dtype=torch.bool) if mask is None else mask[:, start:stop]
        start = stop
        if isinstance(leaf, Box):
            yield torch.rand((n, int(np.prod(leaf.shape))), generator=rng) * 2 - 1
        elif isinstance(leaf, Discrete):
            yield _choice(legal, rng)
        elif isinstance(leaf, MultiDiscrete):
            yield torch.stack([_choice(part, rng) for part in legal.split(list(leaf.nvec), 1)], 1)
        else:
            yield torch.randint(2, legal.shape, generator=rng) * legal


def _choice(legal: Tensor, rng: torch.Generator) -> Tensor:
    """[n] int64, one of the legal entries of each row with equal chances."""
    return torch.rand(legal.shape, generator=rng).masked_fill(~legal, -1.0).argmax(1)
