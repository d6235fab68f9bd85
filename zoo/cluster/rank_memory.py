"""Memory that the ranks of one machine share: C sums in it, in the order of the ranks, and waits there for the others.

It has no name, so nothing of it is left when its processes end, whatever ends them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn
from uuid import uuid4

import torch
from torch import Tensor

from zoo.backend.native.bindings import Across, Level, Library, RanksStruct, SumKind, load
from zoo.cluster.transport import map_memory, new_memory
from zoo.core.ranks import lost_error

SLOT = 1 << 22
"""Bytes that a rank can show the others at once; more goes in pieces. The system gives memory for what was used of them."""
SPIN = 20_000  # looks at a counter before a rank that waits sleeps
_HEAD = 64  # bytes of a slot before its data
_LATE = 6  # of zoo_native.h
_KINDS = {torch.float32: SumKind.FLOAT, torch.float64: SumKind.DOUBLE, torch.int64: SumKind.INT64}
_DTYPES = {int(kind): dtype for dtype, kind in _KINDS.items()}

Gather = Callable[[Any], list[Any]]  # the values of all ranks, as `Ranks.gather`
SumMachines = Callable[[Tensor], None]  # sums a tensor over the first ranks of the machines, in place


class Offer(NamedTuple):
    """Where the other ranks of a machine find the memory of their first one."""

    pid: int
    fd: int
    token: bytes


class RankMemory:
    """The ranks as C reads them.

    Args: machines: of each rank, the number of the first rank of its machine; fd: of the memory, which `close` closes; level: of
      instructions, that all ranks have.
    Attributes: struct: the zoo_ranks; n_local: ranks of this machine; is_whole: whether that is all.
    """

    def __init__(
        self,
        library: Library,
        rank: int,
        machines: Sequence[int],
        fd: int | None,
        timeout: float,
        sum_machines: SumMachines | None,
        level: Level,
    ) -> None:
        locals_ = [i for i, first in enumerate(machines) if first == machines[rank]]
        self.n_local = len(locals_)
        self.is_whole = self.n_local == len(machines)
        self._library = library
        self._level_before = library.level()
        library.set_level(level)
        self._fd = fd
        self.sum_machines = sum_machines
        self._failure: Exception | None = None
        self._kept: list[Any] = []  # what C has the address of
        self.struct = RanksStruct(
            rank=rank,
            n_rank=len(machines),
            local=locals_.index(rank),
            n_local=self.n_local,
            fd=-1,
            n_byte=SLOT,
            timeout=timeout,
        )
        if fd is not None and self.n_local > 1:
            import fcntl  # Windows has none

            memory = map_memory(os.dup(fd))[_HEAD:]
            self._kept.append(memory)
            self.struct.memory = memory.ctypes.data
            self.struct.fd = fd
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self.struct.local)  # ends with this process
            if len(os.sched_getaffinity(0)) >= self.n_local:
                self.struct.n_spin = SPIN
        if sum_machines is not None:
            across = Across(self._across)
            self._kept.append(across)
            self.struct.across = across

    def knows(self, x: Tensor) -> bool:
        """Whether C can sum such tensors."""
        return x.is_cpu and x.dtype in _KINDS and (self.is_whole or self.sum_machines is not None)

    def sum_(self, x: Tensor) -> None:
        """Sums a contiguous tensor over all ranks, in place. Raises: RanksLostError."""
        error = self._library.dll.zoo_ranks_sum(
            ctypes.byref(self.struct), x.data_ptr(), x.numel(), int(_KINDS[x.dtype])
        )
        self.check(error, 'the sum')

    def exchange(self, own: bytes) -> list[bytes]:
        """The bytes of each rank, if all are on this machine. Raises: RanksLostError."""
        found = [b''] * self.n_local
        slots = (ctypes.c_void_p * self.n_local)()
        start = 0
        left = 1
        while left > 0:
            part = own[start : start + SLOT]
            error = self._library.dll.zoo_ranks_exchange(
                ctypes.byref(self.struct), part, len(part), len(own) - start, slots
            )
            self.check(error, 'what all ranks say')
            sizes = [int(ctypes.c_int64.from_address(slot or 0).value) for slot in slots]
            for i, (slot, size) in enumerate(zip(slots, sizes, strict=True)):
                found[i] += ctypes.string_at((slot or 0) + _HEAD, max(min(size, SLOT), 0))
            start += SLOT
            left = max(sizes) - SLOT
        return found

    def check(self, error: int, what: str = 'the sum') -> None:
        """Raises RanksLostError if a call of C failed because of another rank."""
        if error >= _LATE:
            self._raise(error, what)

    def close(self) -> None:
        """Leaves the ranks: those that wait for this one see it."""
        self.struct.error = _LATE + 1
        self._library.set_level(self._level_before)
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _raise(self, error: int, what: str) -> NoReturn:
        why = 'the connection to them was lost'
        if error == _LATE:
            why = f'they did not come within {self.struct.timeout:g} s'
        raise lost_error(self.struct.rank, self.struct.n_rank, what, why, self._failure) from self._failure

    def _across(self, address: int, n: int, kind: int) -> int:
        """Sums n numbers over the machines, for C."""
        dtype = _DTYPES[kind]
        memory = (ctypes.c_char * (n * dtype.itemsize)).from_address(address)
        try:
            assert self.sum_machines is not None
            self.sum_machines(torch.frombuffer(memory, dtype=dtype))
        except Exception as error:  # C cannot raise it: `check` does
            self._failure = error
            return 1
        return 0


def share_memory(
    rank: int, gather: Gather, timeout: float, sum_over: Callable[[list[int]], SumMachines]
) -> RankMemory | None:
    """Finds the ranks of each machine, which from now on share memory; None where the C library is missing on any.

    Where memory cannot be shared, each rank counts as a machine. The library uses the least level of instructions of all
    ranks, so that all compute the same bits.
    Args: sum_over: all ranks call it, with the first rank of each machine, if there are several.
    """
    library, _ = load()
    least = None
    if library is not None:
        least = int(library.level())
    levels = gather(least)
    if library is None or None in levels:
        return None
    keys = gather(machine_key())
    machines = [i if key is None else keys.index(key) for i, key in enumerate(keys)]
    n_local = machines.count(machines[rank])
    fd = None
    offer = None
    if machines[rank] == rank and n_local > 1:
        fd = new_memory(_HEAD + library.dll.zoo_ranks_bytes(n_local, SLOT))
        offer = Offer(os.getpid(), fd, uuid4().bytes)
        os.pwrite(fd, offer.token, 0)
    offers = gather(offer)
    if offer is None and n_local > 1:
        fd = opened(offers[machines[rank]])
    can_share = gather(fd is not None or n_local == 1)
    cut_off = {machines[i] for i, can in enumerate(can_share) if not can}
    machines = [i if first in cut_off else first for i, first in enumerate(machines)]
    if fd is not None and machines.count(machines[rank]) == 1:
        os.close(fd)
        fd = None
    firsts = sorted(set(machines))
    sum_machines = None
    if len(firsts) > 1:
        sum_machines = sum_over(firsts)
    memory = RankMemory(library, rank, machines, fd, timeout, sum_machines, Level(min(levels)))
    gather(True)  # from here on, each has its lock
    return memory


def machine_key() -> tuple[str, int] | None:
    """A value that is equal for processes that can share memory; None where the system lacks what it takes."""
    if not hasattr(os, 'memfd_create'):
        return None
    try:
        with open('/proc/sys/kernel/random/boot_id', encoding='utf-8') as file:
            return file.read(), os.stat('/proc/self/ns/pid').st_ino
    except OSError:
        return None


def opened(offer: Offer) -> int | None:
    """A descriptor of the memory of another process; None if it cannot be opened."""
    try:
        fd = os.open(f'/proc/{offer.pid}/fd/{offer.fd}', os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.pread(fd, len(offer.token), 0) == offer.token:
        return fd
    os.close(fd)
    return None
