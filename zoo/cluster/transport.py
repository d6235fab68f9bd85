"""Transport between processes of one machine: messages with file descriptors, and shared memory without a name; POSIX."""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import struct
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np


class Channel:
    """One end of a stream socket that carries pickled messages, and descriptors with them. Both ends trust each other.

    Args: patience: seconds after which an end that reads nothing, or stops inside a message, counts as hung; None: never.
    """

    def __init__(self, end: socket.socket, patience: float | None = None) -> None:
        if patience is not None:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                end.setsockopt(socket.SOL_SOCKET, option, struct.pack('@ll', int(patience), int(patience % 1 * 1e6)))
        self._socket = end
        self._messages = Connection(os.dup(end.fileno()))

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._socket.fileno()

    def send(self, message: object, fds: Sequence[int] = ()) -> None:
        """Sends all of a message; the descriptors stay open here. Raises: OSError; BlockingIOError after the patience."""
        # not `Connection.send`, which would put tensors into torch's shared memory
        self._messages.send_bytes(pickle.dumps((message, len(fds)), pickle.HIGHEST_PROTOCOL))
        if fds:
            socket.send_fds(self._socket, [b'-'], fds)

    def receive(self) -> tuple[Any, list[int]]:
        """Waits for the next message. Raises: EOFError if the other end is closed, or hangs in a message."""
        try:
            message, n_fd = pickle.loads(self._messages.recv_bytes())
            fds = []
            if n_fd:
                fds = socket.recv_fds(self._socket, 1, n_fd)[1]
        except OSError as error:
            raise EOFError from error
        for fd in fds:
            os.set_inheritable(fd, False)
        if len(fds) < n_fd:
            raise EOFError
        return message, fds

    def read(self) -> Iterator[tuple[Any, list[int]]]:
        """Yields the messages that have arrived; call it when this end is ready to read. Raises: as `receive`."""
        yield self.receive()
        while self._messages.poll():
            yield self.receive()

    def close(self) -> None:
        """Closes this end, and what was not received. May be called again."""
        self._socket.close()
        self._messages.close()


ALIGNMENT = 64  # bytes: a cache line


def new_memory(n_byte: int) -> int:
    """A descriptor of new memory, which is 0; the caller closes it."""
    if hasattr(os, 'memfd_create'):
        fd = os.memfd_create('zoo')
    else:
        with tempfile.TemporaryFile() as file:  # it has no name either
            fd = os.dup(file.fileno())
    os.ftruncate(fd, n_byte)
    return fd


def map_memory(fd: int) -> np.ndarray:
    """Maps the memory of a descriptor, [n_byte] u8, and closes the descriptor. The memory is freed with its last view."""
    try:
        return np.frombuffer(mmap.mmap(fd, 0), dtype=np.uint8)
    finally:
        os.close(fd)


def aligned(n_byte: int) -> int:
    """Returns n_byte, rounded up to a multiple of ALIGNMENT."""
    return -(-n_byte // ALIGNMENT) * ALIGNMENT


class WeightSlots:
    """Shared memory with several versions of the weights; one process writes them, the others read.

    Header: number of slots, bytes of one version, slot that was written last, version in each slot (-1 while it is written).

    Args: fd: of the memory, which stays open.
    """

    def __init__(self, fd: int) -> None:
        memory = map_memory(os.dup(fd))
        n_slot, n_byte = (int(x) for x in memory[:16].view(np.int64))
        header = memory[: aligned(8 * (3 + n_slot))]
        self._newest = header[16:24].view(np.int64)
        self._versions = header[24 : 24 + 8 * n_slot].view(np.int64)
        self._slots = memory[header.size :].reshape(n_slot, aligned(n_byte))[:, :n_byte]

    @staticmethod
    def new(n_byte: int, n_slot: int) -> int:
        """A descriptor of memory for n_slot versions of n_byte bytes."""
        fd = new_memory(aligned(8 * (3 + n_slot)) + n_slot * aligned(n_byte))
        header = np.full(3 + n_slot, -1, dtype=np.int64)
        header[:3] = n_slot, n_byte, 0
        os.pwrite(fd, header.tobytes(), 0)
        return fd

    def write(self, weights: np.ndarray, version: int, in_use: Collection[int]) -> None:
        """Replaces the oldest version by the newest. Args: in_use: versions that must stay."""
        free = [i for i, held in enumerate(self._versions.tolist()) if held == version or held not in in_use]
        if not free:
            raise RuntimeError(f'{len(self._versions)} versions of the weights are all in use: {sorted(in_use)}')
        slot = min(free, key=lambda i: (self._versions[i] != version, self._versions[i]))
        self._versions[slot] = -1
        self._slots[slot] = weights
        self._versions[slot] = version
        self._newest[0] = slot

    def load(self, version: int | None, load: Callable[[np.ndarray, int], None]) -> int:
        """Calls `load(weights, version)`, again if the weights were overwritten meanwhile. Returns the version; None: newest."""
        while True:
            held = self._versions.tolist()
            if version is not None and version not in held:
                raise RuntimeError(f'weights of version {version} are gone; there are {held}')
            if version is None:
                slot = int(self._newest[0])
            else:
                slot = held.index(version)
            if held[slot] >= 0:
                load(self._slots[slot], held[slot])
                if self._versions[slot] == held[slot]:
                    return held[slot]


# blocks in shared memory: their pickle without the data; (offset, bytes) of each buffer of data
Packed = tuple[bytes, list[tuple[int, int]]]


class BlockMemory:
    """Memory for the blocks that one process writes; new memory replaces it when the blocks do not fit."""

    def __init__(self) -> None:
        self._memory = np.empty(0, dtype=np.uint8)

    def write(self, blocks: dict[str, np.ndarray]) -> tuple[Packed, int | None]:
        """Copies the blocks into the memory. Returns: Packed; if the memory is new, its descriptor, which the caller closes."""
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(blocks, 5, buffer_callback=buffers.append)
        parts = [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers]
        stops = np.cumsum([aligned(part.size) for part in parts]).tolist()
        fd = None
        if stops and stops[-1] > self._memory.size:
            fd = new_memory(stops[-1])
            self._memory = map_memory(os.dup(fd))
        places = [(stop - aligned(part.size), part.size) for part, stop in zip(parts, stops, strict=True)]
        for part, (start, n_byte) in zip(parts, places, strict=True):
            self._memory[start : start + n_byte] = part
        return (head, places), fd


def read_blocks(packed: Packed, memory: np.ndarray) -> dict[str, np.ndarray]:
    """The blocks, as views of the memory."""
    head, places = packed
    return pickle.loads(head, buffers=[memory[start : start + n_byte] for start, n_byte in places])
