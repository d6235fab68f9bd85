"""Spaces of images, images of random bytes, and image encoders with fixed weights, for the tests of images and encoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.core.spaces import Box
from zoo.model import make_encoder
from zoo.model.cnn import CNN


def images(*shape: int, dtype: str = 'uint8') -> Box:
    return Box(np.zeros(shape), np.full(shape, 255.0 if dtype == 'uint8' else 1.0), dtype)


def pixels(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def bytes_to(high: Any, *shape: int) -> Box:
    return Box(np.zeros(shape), np.broadcast_to(np.asarray(high, np.float64), shape).copy(), 'uint8')


def cnn(space: Box, encoder: str | dict[str, Any]) -> CNN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make_encoder(space, encoder)[0]
