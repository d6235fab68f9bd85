"""Ranks over torch.distributed, as torchrun starts them: memory that those of a machine share, gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import torch
from torch import Tensor

from zoo.cluster.config import STARTED_BY
from zoo.cluster.rank_memory import RankMemory, share_memory
from zoo.core.errors import RunError, UserError
from zoo.core.processes import die_with_parent
from zoo.core.ranks import ALONE, Ranks, lost_error, merged_moments

T = TypeVar('T')
TIMEOUT = 300.0  # s
ANSWER = 1.0  # s for which a rank waits for the answer of rank 0, before it looks for a newer name
_NEEDED = ('RANK', 'MASTER_ADDR', 'MASTER_PORT')


def join(device: str = 'cpu', timeout: float = TIMEOUT, environ: Mapping[str, str] = os.environ) -> Ranks:
    """Joins the ranks that torchrun started with this process; returns `ALONE` without torchrun, or if it started only one.

    Args: device: 'cpu', or 'cuda:N' of this rank; timeout: seconds that a rank waits for the others.
    Raises: UserError if the environment does not say where the ranks are, or a rank has no GPU; RunError if ranks do not come.
    """
    # torchrun's agent does not end its processes when it is killed
    if 'TORCHELASTIC_RUN_ID' in environ and STARTED_BY not in environ:
        die_with_parent(os.getppid(), True, time.sleep)
    size = environ.get('WORLD_SIZE', '1')
    if not size.isdigit() or size == '0':
        raise UserError(
            f'the environment has WORLD_SIZE={size!r}, which should be the number of processes; use torchrun'
        )
    if int(size) == 1:
        return ALONE
    missing = [name for name in _NEEDED if name not in environ]
    if missing:
        raise UserError(
            f'the environment has WORLD_SIZE={size} but no {", ".join(missing)}; start the processes with torchrun, or '
            'unset WORLD_SIZE to train in this one alone'
        )
    if not torch.distributed.is_available():
        raise UserError(
            f'the environment has WORLD_SIZE={size} but this torch has no torch.distributed; install one that has'
        )
    is_cuda = device.startswith('cuda')
    rank = int(environ['RANK'])
    n = int(size)
    limit = timedelta(seconds=timeout)
    if is_cuda:
        if (torch.device(device).index or 0) >= torch.cuda.device_count():
            raise UserError(
                f'rank {rank} wants the GPU {device} but torch sees {torch.cuda.device_count()} of them, and each rank '
                'needs one; start fewer processes on this machine, or set policy.device=cpu'
            )
        torch.cuda.set_device(device)
    try:
        store, _, _ = next(torch.distributed.rendezvous('env://', rank, n, timeout=limit))
        fresh = _fresh(store, rank, n, timeout)
        if is_cuda:
            backend = 'cpu:gloo,cuda:nccl'
        else:
            backend = 'gloo'
        torch.distributed.init_process_group(backend, timeout=limit, world_size=n, rank=rank, store=fresh)
    except RuntimeError as error:
        where = f'{environ["MASTER_ADDR"]}:{environ["MASTER_PORT"]}'
        raise RunError(
            f'rank {rank} did not meet the other {n - 1} at {where} within {timeout:g} s ({_first(error)}); '
            'see whether all of them were started'
        ) from error
    ranks = TorchRanks(timeout)
    if not is_cuda:
        ranks.share_memory()
    return ranks


def _fresh(store: torch.distributed.Store, rank: int, size: int, timeout: float) -> torch.distributed.PrefixStore:
    """Returns an empty part of the store, the same for all ranks of this start.

    torchrun keeps the store after a restart and from one process group to the next, with addresses that no longer exist. So
    rank 0 names a new part. Another rank may read an old name first; it accepts a name only if rank 0 answers.
    Raises: RuntimeError if the other ranks do not come.
    """
    own = uuid4().hex
    end = time.monotonic() + timeout
    if rank == 0:
        store.set_timeout(timedelta(seconds=timeout))
        store.set('zoo/part', own)
        for other in range(1, size):
            name = store.get(f'{own}/{other}').decode()  # waits for that rank
            store.set(f'{own}/{name}', '')
        return torch.distributed.PrefixStore(own, store)
    while time.monotonic() < end:
        store.set_timeout(timedelta(seconds=max(end - time.monotonic(), 0.1)))
        part = store.get('zoo/part').decode()
        store.set(f'{part}/{rank}', own)
        try:
            store.wait([f'{part}/{own}'], timedelta(seconds=min(ANSWER, timeout)))
        except RuntimeError:  # the name is from an earlier start: the new rank 0 is not here yet
            continue
        store.set_timeout(timedelta(seconds=timeout))
        return torch.distributed.PrefixStore(part, store)
    raise RuntimeError('timed out: rank 0 has not come')


class TorchRanks(Ranks):
    """The ranks of the default process group, which `join` makes.

    Args: timeout: of that group, s.
    """

    in_c: RankMemory | None = None

    def __init__(self, timeout: float) -> None:
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()
        self._timeout = timeout

    def share_memory(self) -> None:
        """Lets the ranks of each machine sum in memory that they share, and C sum over all; all ranks call it."""
        self.in_c = share_memory(self.rank, self.gather, self._timeout, self._sum_over)

    def sum_(self, x: Tensor) -> Tensor:
        """As `Ranks.sum_`: shared memory, gloo and NCCL sum each element in one order, and all get the result."""
        if x.is_contiguous():
            flat = x
        else:
            flat = x.contiguous()
        if self.in_c is not None and self.in_c.knows(flat):
            self.in_c.sum_(flat.detach())
        else:
            self._call('the sum', lambda: torch.distributed.all_reduce(flat))
        if flat is x:
            return x
        return x.copy_(flat)

    def merge(self, n: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `Ranks.merge`, in one exchange."""
        own = torch.cat([x.detach().to(torch.float64).flatten() for x in (n, mean, var)])
        blocks = own.new_zeros(self.size, own.numel())
        if self.in_c is not None and self.in_c.knows(blocks):
            blocks[self.rank] = own
            self.in_c.sum_(blocks)  # with the zeros of the others
        else:
            self._call('moments', lambda: torch.distributed.all_gather(list(blocks.unbind()), own))
        parts = blocks.split([n.numel(), mean.numel(), var.numel()], 1)
        counts = parts[0].view(self.size, *(n.shape if n.dim() else [1] * mean.dim()))
        found = merged_moments(counts, *(x.view(self.size, *mean.shape) for x in parts[1:]))
        return found[0].view(n.shape), found[1], found[2]

    def gather(self, value: Any) -> list[Any]:
        if self._is_in_memory:
            return [pickle.loads(data) for data in self._exchanged(value)]
        values: list[Any] = [None] * self.size
        self._call('what all ranks say', lambda: torch.distributed.all_gather_object(values, value))
        return values

    def share(self, value: Any, root: int = 0) -> Any:
        if self._is_in_memory:
            return pickle.loads(self._exchanged(value if self.rank == root else None)[root])
        place = [value if self.rank == root else None]
        self._call(f'what rank {root} says', lambda: torch.distributed.broadcast_object_list(place, root))
        return place[0]

    def close(self) -> None:
        if self.in_c is not None:
            self.in_c.close()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    @property
    def _is_in_memory(self) -> bool:
        """Whether all ranks share memory."""
        return self.in_c is not None and self.in_c.is_whole

    def _exchanged(self, value: Any) -> list[bytes]:
        """The pickled values of all ranks, which share memory."""
        assert self.in_c is not None
        return self.in_c.exchange(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def _sum_over(self, firsts: list[int]) -> Callable[[Tensor], None]:
        """How some of the ranks sum a tensor; all ranks call it."""
        group = torch.distributed.new_group(firsts, timeout=timedelta(seconds=self._timeout), backend='gloo')

        def sum_machines(x: Tensor) -> None:
            torch.distributed.all_reduce(x, group=group)

        return sum_machines

    def _call(self, what: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except RuntimeError as error:
            is_late = 'timed out' in str(error).lower() or 'timeout' in str(error).lower()
            if is_late:
                why = f'they did not come within {self._timeout:g} s'
            else:
                why = 'the connection to them was lost'
            raise lost_error(self.rank, self.size, what, why, error) from error


def _first(error: Exception) -> str:
    """Returns the first line of a message, without the place in torch's code that it came from."""
    return str(error).strip().splitlines()[0].rpartition('] ')[2][:160]
