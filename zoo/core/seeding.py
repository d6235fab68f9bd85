"""Random streams: every part of a run draws from its own child of the one seed.

The names: 'model' (first parameters), ('collect', first env, rollout) (noise of actions), ('collect', env step) (resets of envs),
('learn', rank, train_iter) (order of samples), ('model steps', train_iter) (dropout), 'buffer/<name>' (draws of replay),
('evaluate', env step), 'intrinsic', 'plasticity', 'pretrain'.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


def stream(seed: int, *name: int | str) -> np.random.SeedSequence:
    """The random stream of one part of a run: a child of the seed, identified by name, the same in every process."""
    words = [w if isinstance(w, int) else int.from_bytes(w.encode(), 'little') for w in name]
    return np.random.SeedSequence([seed, *words])


N_POOL = 4  # 32-bit words of a SeedSequence's pool
WORD = 2**32
PCG_FACTOR = 0x2360ED051FC65DA44385DF649FCCF645
LAST_64, LAST_128 = 2**64 - 1, 2**128 - 1


def words_of(seed: int, *name: int | str) -> list[int]:
    """The 32-bit words of what identifies a stream, as a SeedSequence takes them: of each number the lowest first."""
    words = []
    for part in (seed, *name):
        number = part if isinstance(part, int) else int.from_bytes(part.encode(), 'little')
        words.append(number % WORD)
        while number >= WORD:
            number //= WORD
            words.append(number % WORD)
    return words


def first_numbers(words: np.ndarray, n: int) -> list[list[float]]:
    """What np.random.default_rng(stream(...)).random(n) gives for each of many streams, in a third of the time.

    Args: words: [K, W], those of each stream, see `words_of`; W >= 4.   Returns: n numbers for each.
    Source: the definitions of numpy's SeedSequence (O'Neill, "Developing a seed_seq alternative", 2015) and of PCG64 (XSL-RR).
    """
    state = _generated(_mixed(words.astype(np.uint32)), 8).astype(np.uint64)
    quads = (state[0::2] | state[1::2] << np.uint64(32)).T.tolist()  # [K, 4], of 64 bits
    return [_pcg_numbers(high << 64 | low, above << 64 | below, n) for high, low, above, below in quads]


def _mixed(words: np.ndarray) -> np.ndarray:
    """The pools of SeedSequences, [4, K] uint32. Args: words: [K, W] uint32."""
    factors = _factors(0x43B0D7E5, 0x931E8875)

    def hashed(x: np.ndarray) -> np.ndarray:
        return _hashed(x, *next(factors))

    columns = words.T
    pool = [hashed(column) for column in columns[:N_POOL]]
    for source in range(N_POOL):
        for i in range(N_POOL):
            if i != source:
                pool[i] = _joined(pool[i], hashed(pool[source]))
    for column in columns[N_POOL:]:
        pool = [_joined(each, hashed(column)) for each in pool]
    return np.stack(pool)


def _generated(pool: np.ndarray, n: int) -> np.ndarray:
    """n words of the states of SeedSequences, [n, K] uint32."""
    factors = _factors(0x8B51F9DD, 0x58F38DED)
    return np.stack([_hashed(pool[i % N_POOL], *next(factors)) for i in range(n)])


def _factors(first: int, factor: int) -> Iterator[tuple[np.uint32, np.uint32]]:
    """The pairs of numbers by which a SeedSequence hashes one word after the other."""
    now = first
    while True:
        after = now * factor % WORD
        yield np.uint32(now), np.uint32(after)
        now = after


def _hashed(x: np.ndarray, mask: np.uint32, factor: np.uint32) -> np.ndarray:
    hashed: np.ndarray = (x ^ mask) * factor
    return hashed ^ hashed >> np.uint32(16)


def _joined(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    joined: np.ndarray = x * np.uint32(0xCA01F9DD) - y * np.uint32(0x4973F715)
    return joined ^ joined >> np.uint32(16)


def _pcg_numbers(state: int, sequence: int, n: int) -> list[float]:
    """The first n numbers in [0, 1) of a PCG64. Args: state, sequence: of 128 bits, as its seed gives them."""
    increment = (sequence << 1 | 1) & LAST_128
    state = ((increment + state) * PCG_FACTOR + increment) & LAST_128
    numbers = []
    for _ in range(n):
        state = (state * PCG_FACTOR + increment) & LAST_128
        folded = (state >> 64 ^ state) & LAST_64
        turn = state >> 122
        turned = (folded >> turn | folded << (64 - turn)) & LAST_64
        numbers.append((turned >> 11) / 2**53)
    return numbers


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
