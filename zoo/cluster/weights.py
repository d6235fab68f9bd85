"""The weights that acting needs, as one vector of bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.core import VERSION

ALIGNMENT = 8  # bytes: of every tensor's start, so that a view of the vector can be read as its dtype
CACHE_LINE = 64  # bytes; on a CPU, the order of sums in a matrix product depends on the address within a cache line


class Placement(NamedTuple):
    """The position of a tensor in memory. offset: bytes from a multiple of CACHE_LINE to its start; stride: in elements."""

    offset: int
    stride: tuple[int, ...]


def placements(tensors: Mapping[str, Tensor]) -> dict[str, Placement]:
    """Returns the position of each tensor in memory."""
    return {name: Placement(x.data_ptr() % CACHE_LINE, x.stride()) for name, x in tensors.items()}


def place(tensors: Mapping[str, Tensor], wanted: Mapping[str, Placement]) -> None:
    """Moves tensors on the CPU to the wanted positions, so that acting gives bitwise equal results; values stay.

    The parameters of a learner are parts of one buffer. Those of a policy that only acts have memory of their own.
    """
    for name, (offset, stride) in wanted.items():
        x = tensors[name]
        if not x.is_cpu or not x.numel() or placements({'': x})[''] == (offset, stride):
            continue
        extent = 1 + sum((n - 1) * step for n, step in zip(x.shape, stride, strict=True))  # elements
        memory = torch.empty(CACHE_LINE + extent * x.element_size(), dtype=torch.uint8)
        start = (offset - memory.data_ptr()) % CACHE_LINE
        flat = memory[start : start + extent * x.element_size()].view(x.dtype)
        x.data = flat.as_strided(x.shape, stride).copy_(x.detach())


class WeightLayout:
    """The layout of tensors in a vector of bytes: tensors with the largest elements first, then by name.

    Args: tensors: views of live memory, which `pack` reads and `unpack` writes.
    Attributes: n_byte: size of the vector; digest: the same for all layouts that give a vector the same meaning.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])))
        self._places: dict[str, tuple[int, int]] = {}
        n = 0
        for name, x in self._tensors.items():
            self._places[name] = n, n + x.numel() * x.element_size()
            n = -(-self._places[name][1] // ALIGNMENT) * ALIGNMENT
        self.n_byte = n
        words = [VERSION, *(f'{name} {tuple(x.shape)} {x.dtype}' for name, x in self._tensors.items())]
        self.digest = hashlib.sha256('\n'.join(words).encode()).hexdigest()[:16]

    @torch.no_grad()
    def pack(self) -> np.ndarray:
        """Copies the values of the tensors into a new vector [n_byte] u8."""
        out = np.zeros(self.n_byte, dtype=np.uint8)
        for name, view in self._split(torch.from_numpy(out)):
            view.copy_(self._tensors[name])
        return out

    @torch.no_grad()
    def unpack(self, flat: np.ndarray) -> None:
        """Copies a vector [n_byte] u8 into the tensors, in place. Raises: ValueError for another size."""
        if flat.nbytes != self.n_byte:
            raise ValueError(
                f'weights of {flat.nbytes} bytes were sent but this policy acts with {self.n_byte}; build both from one config'
            )
        if not flat.flags.writeable:  # torch warns of read-only arrays; nothing is written into this one here
            there = {**flat.__array_interface__, 'data': (flat.__array_interface__['data'][0], False)}
            # a view of the same memory that is not marked as read-only
            view = type('Memory', (), {'__array_interface__': there, 'base': flat})()
            flat = flat.copy() if flat.nbytes < 1 << 16 else np.asarray(view)
        for name, view in self._split(torch.from_numpy(flat)):
            self._tensors[name].copy_(view)

    def _split(self, flat: Tensor) -> list[tuple[str, Tensor]]:
        return [
            (name, flat[start:stop].view(x.dtype).view(x.shape))
            for (name, x), (start, stop) in zip(self._tensors.items(), self._places.values(), strict=True)
        ]
