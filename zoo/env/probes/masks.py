"""Random action masks."""

from __future__ import annotations

import numpy as np

from zoo.core.spaces import Space
from zoo.env.masks import choice_slices, mask_size


def random_mask(space: Space, rng: np.random.Generator) -> np.ndarray:
    """[n_mask] bool, each entry true with chance 1/2; at least one of each choice."""
    mask = rng.random(mask_size(space)) < 0.5
    for choice in choice_slices(space):
        if not mask[choice].any():
            mask[int(rng.integers(choice.start, choice.stop))] = True
    return mask
