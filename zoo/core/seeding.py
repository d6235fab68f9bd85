"""Random streams: every part of a run draws from its own child of the one seed.

The names: 'model' (first parameters), ('collect', first env, rollout) (noise of actions), ('collect', env step) (resets of envs),
('learn', rank, train_iter) (order of samples), ('model steps', train_iter) (dropout), 'buffer/<name>' (draws of replay),
('evaluate', env step), 'intrinsic', 'plasticity', 'pretrain'.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor


def stream(seed: int, *name: int | str) -> np.random.SeedSequence:
    """The random stream of one part of a run: a child of the seed, identified by name, the same in every process."""
    words = [w if isinstance(w, int) else int.from_bytes(w.encode(), 'little') for w in name]
    return np.random.SeedSequence([seed, *words])


def child_seeds(seed: np.random.SeedSequence | int, first: int, n: int) -> list[int]:
    """One 31-bit int (some simulators take no more) for each of `n` children of a seed sequence, from `first` on."""
    if isinstance(seed, np.random.SeedSequence):
        parent = seed
    else:
        parent = np.random.SeedSequence(seed)
    return [int(child_of(parent, i).generate_state(1)[0]) >> 1 for i in range(first, first + n)]


def child_of(parent: np.random.SeedSequence, i: int) -> np.random.SeedSequence:
    """The i-th child of a seed sequence; spawn() would count up, and give other children the next time."""
    return np.random.SeedSequence(parent.entropy, spawn_key=(*parent.spawn_key, i), pool_size=parent.pool_size)


def torch_generator(seed: int, name: str, device: torch.device | None = None) -> torch.Generator:
    """A generator with the stream of that name; on the device if it is a GPU, else on the CPU."""
    generator = torch.Generator(device if device is not None and device.type == 'cuda' else 'cpu')
    return reseed(generator, seed, name)


def reseed(generator: torch.Generator, seed: int, *name: int | str) -> torch.Generator:
    """Sets a generator to the beginning of the stream of that name, and returns it."""
    return generator.manual_seed(int(stream(seed, *name).generate_state(1, np.uint64)[0]) >> 1)


def restore_generator(generator: torch.Generator, state: Tensor) -> None:
    """Sets a generator to a saved state. The state of another kind of device gives a new stream, the same each time."""
    if state.shape == generator.get_state().shape:
        generator.set_state(state)
    else:
        digest = hashlib.sha256(state.numpy().tobytes()).digest()
        generator.manual_seed(int.from_bytes(digest[:8], 'little') >> 1)
