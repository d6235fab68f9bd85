"""Ranks that share memory, as forked processes without torch.distributed, for the tests of their sums and ends.

`python -m tests.cluster.memory_runs FOLDER` runs every work of WORKS with each of its numbers of ranks, and saves what each rank
found: FOLDER/<work>_<number>_<rank>.pt.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.backend.problems import Case, Problem
from tests.step_parts import PolicyNumbers, ValueNumbers
from zoo.backend.executor import Eager, StepPlan
from zoo.backend.native import NativeExecutor
from zoo.cluster import rank_memory
from zoo.cluster.rank_memory import SLOT, RankMemory, share_memory
from zoo.core.ranks import Ranks, RanksLostError

LONG_S = 60.0  # seconds that a rank waits, where it should not wait in vain
SHORT_S = 0.3
STOP_S = 2.5
STEPS = {
    'ppo': Case('PPO', numbers=PolicyNumbers(value_weight=0.5, grad_clip=0.5), weighted=True, normalize_adv=True),
    'gaussian': Case('PPO', 'free std', numbers=PolicyNumbers(grad_clip=0.05), normalize_adv=True),
    # more minibatches than whose moments are exchanged together
    'many': Case('PPO', numbers=PolicyNumbers(grad_clip=0.5), weighted=True, normalize_adv=True, batch_size=4),
    # of three ranks too, whose mean no product with a reciprocal gives
    'thirds': Case('PPO', numbers=PolicyNumbers(grad_clip=0.5), normalize_adv=True, batch_size=12),
    'two optimizers': Case('PPO', critic_rate=True, numbers=PolicyNumbers(grad_clip=0.05)),
    'policy': Case('POLICY', numbers=PolicyNumbers(), normalize_adv=True),
    'value': Case('VALUE', numbers=ValueNumbers()),
    'auxiliary': Case('AUX', arch='shared', numbers=ValueNumbers()),
}
ORDERED = {  # numbers of each rank whose float32 sum depends on the order: 1e8 + 1 is 1e8
    2: ([0.1], [0.2]),
    3: ([1e8, 1.0, 1e8], [1.0, 1e8, -1e8], [-1e8, -1e8, 1.0]),
    4: ([1e8], [1.0], [-1e8], [1.0]),
}


class FileGather:
    """`Ranks.gather` through files of a folder."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self._folder, self._rank, self._size = folder, rank, size
        self._calls = count()
        folder.mkdir(exist_ok=True)

    def __call__(self, value: Any) -> list[Any]:
        call = next(self._calls)
        path = self._folder / f'{call}_{self._rank}'
        path.with_suffix('.part').write_bytes(pickle.dumps(value))
        path.with_suffix('.part').rename(path)
        paths = [self._folder / f'{call}_{rank}' for rank in range(self._size)]
        while not all(each.exists() for each in paths):
            time.sleep(0.002)
        return [pickle.loads(each.read_bytes()) for each in paths]


class MemoryRanks(Ranks):
    """Ranks with nothing but memory."""

    def __init__(self, rank: int, size: int, memory: RankMemory) -> None:
        self.rank, self.size, self.in_c = rank, size, memory

    def sum_(self, x: Tensor) -> Tensor:
        self.in_c.sum_(x)
        return x


def joined(folder: Path, rank: int, size: int, timeout: float = LONG_S, per_machine: int = 9) -> MemoryRanks:
    """Joins the ranks. Args: per_machine: ranks of a machine; those of others behave as if they shared no memory."""
    rank_memory.machine_key = lambda: ('', rank // per_machine)  # type: ignore[assignment]
    gather = FileGather(folder, rank, size)

    def sum_over(firsts: list[int]) -> Callable[[Tensor], None]:
        between = FileGather(folder / 'machines', firsts.index(rank) if rank in firsts else -1, len(firsts))

        def sum_machines(x: Tensor) -> None:
            x.copy_(torch.stack(between(x.clone())).sum(0))

        return sum_machines

    memory = share_memory(rank, gather, timeout, sum_over)
    assert memory is not None and memory.is_whole == (size <= per_machine)
    return MemoryRanks(rank, size, memory)


def numbers_of(rank: int) -> Tensor:
    """Numbers of a rank: more than the slots take at once."""
    return torch.randn(SLOT // 4 + 70_001, generator=torch.Generator().manual_seed(rank))


def sums(ranks: MemoryRanks) -> dict[str, Any]:
    """Sums of all types and sizes, and the bytes of all ranks."""
    found: dict[str, Any] = {'ordered': ranks.sum_(torch.tensor(ORDERED.get(ranks.size, [[0.0]] * 9)[ranks.rank]))}
    for n in (1, 17, 100_003, len(numbers_of(0))):
        found[f'float {n}'] = ranks.sum_(numbers_of(ranks.rank)[:n].clone())
    found['double'] = ranks.sum_(torch.full((5,), 0.1 + ranks.rank, dtype=torch.float64))
    found['integer'] = ranks.sum_(torch.tensor([2**53 + ranks.rank, -ranks.rank]))
    if ranks.in_c.is_whole:
        own = bytes([ranks.rank]) * (ranks.rank * SLOT + 3)
        found['bytes'] = [(len(x), x[:1] == x[-1:] == bytes([i])) for i, x in enumerate(ranks.in_c.exchange(own))]
        found['words'] = [ranks.in_c.exchange(f'{i} of {ranks.rank}'.encode()) for i in range(3)]
    found['memory'] = sorted(os.listdir('/dev/shm'))
    return found


def steps(ranks: Ranks) -> dict[str, Any]:
    """Parameters and metrics after each of STEPS that divides by the ranks: of several ranks in C, of one eagerly."""
    return {name: _steps_of(name, case, ranks) for name, case in STEPS.items() if case.batch_size % ranks.size == 0}


def _steps_of(name: str, case: Case, ranks: Ranks) -> dict[str, Tensor]:
    problem = Problem(case, n_step=40 if name == 'many' else 8)
    model = problem.model
    optimizers = problem.optimizers(model)
    for optimizer in optimizers:
        optimizer.ranks = ranks
    batch_size = case.batch_size // ranks.size
    n = problem.order.shape[1] // case.batch_size * case.batch_size
    order = problem.order[:, :n].unflatten(1, (-1, ranks.size, batch_size))[:, :, ranks.rank].flatten(1)
    plan = StepPlan(problem.columns, order, batch_size, torch.device('cpu'), case.normalize_adv, ranks=ranks)
    if ranks.size == 1:
        executor = Eager(model, problem.dist)
    else:
        nothing: Any = object()  # runs no step: all are in C
        executor = NativeExecutor(model, problem.dist, fallback=nothing, is_named=True)
    metrics = executor.run(problem.step, optimizers, plan, *case.numbers)
    return {
        **{name: p.detach() for name, p in model.named_parameters()},
        'norm': next(x for name, x in metrics.items() if name.endswith('grad_norm')),
    }


def kill_in_sum(ranks: MemoryRanks) -> dict[str, Any]:
    """The last rank is killed while the others wait for its numbers."""
    ranks.sum_(torch.zeros(1))
    if ranks.rank == ranks.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return said(partial(ranks.sum_, torch.ones(3)), partial(ranks.in_c.exchange, b''))


def kill_in_steps(ranks: MemoryRanks) -> dict[str, Any]:
    """The last rank is killed while the others take steps in C."""
    ranks.sum_(torch.zeros(1))
    if ranks.rank == ranks.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return said(partial(steps, ranks))


def leave(ranks: MemoryRanks) -> dict[str, Any]:
    """The last rank leaves, and lives on until the others have seen it."""
    if ranks.rank == ranks.size - 1:
        ranks.in_c.close()
        time.sleep(1)
        return {}
    return said(partial(ranks.sum_, torch.ones(3)))


def come_late(ranks: MemoryRanks) -> dict[str, Any]:
    """The last rank comes after the others have given up. Each tries twice."""
    if ranks.rank == ranks.size - 1:
        time.sleep(4 * SHORT_S)
    call = partial(ranks.sum_, torch.ones(3))
    return said(call, call)


def stop(ranks: MemoryRanks) -> dict[str, Any]:
    """All ranks are stopped for longer than one waits for another, as by Ctrl-Z, while the first one waits for the last."""
    if ranks.rank == 0:
        pids = [int(pid) for pid in ranks.in_c.exchange(str(os.getpid()).encode())]
        if os.fork() == 0:
            time.sleep(0.3)
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(STOP_S)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            os._exit(0)
    else:
        ranks.in_c.exchange(str(os.getpid()).encode())
        for _ in range(12):  # one long sleep would be over as soon as the rank goes on
            time.sleep(0.05)
    return {'sum': ranks.sum_(torch.ones(1)).item()}


def fail_between_machines(ranks: MemoryRanks) -> dict[str, Any]:
    """The connection between machines breaks."""

    def fail(x: Tensor) -> None:
        raise RuntimeError('[somewhere.cc:1] the cable was cut')

    ranks.in_c.sum_machines = fail
    found = said(partial(ranks.sum_, torch.ones(3)))
    ranks.in_c.close()
    return found


def said(*calls: Callable[[], Any]) -> dict[str, Any]:
    """The messages of calls that lose the other ranks."""
    found = {}
    for i, call in enumerate(calls):
        try:
            call()
        except RanksLostError as error:
            found[str(i)] = str(error)
    return found


class Work(NamedTuple):
    """Something that ranks do. join: further arguments of `joined`."""

    do: Callable[..., dict[str, Any]]
    sizes: tuple[int, ...]
    join: dict[str, Any] = {}


WORKS = {
    'sums': Work(sums, (2, 3, 4)),
    'machines': Work(sums, (4,), {'per_machine': 2}),
    'lonely': Work(sums, (2,), {'per_machine': 1}),
    'steps': Work(steps, (2, 3, 4)),
    'steps on machines': Work(steps, (4,), {'per_machine': 2}),
    'kill_in_sum': Work(kill_in_sum, (3,)),
    'kill_in_steps': Work(kill_in_steps, (2,)),
    'leave': Work(leave, (2,)),
    'come_late': Work(come_late, (2,), {'timeout': SHORT_S}),
    'stop': Work(stop, (2,), {'timeout': STOP_S - 0.5}),
    'fail_between_machines': Work(fail_between_machines, (4,), {'per_machine': 2}),
}
WAITING = ('leave', 'stop')


def run(name: str, size: int, folder: Path) -> None:
    """Does a work in forked ranks, and waits for them."""
    children = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ranks = joined(folder / f'{name} {size}', rank, size, **WORKS[name].join)
                torch.save(WORKS[name].do(ranks), folder / f'{name}_{size}_{rank}.pt')
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


def run_all(folder: Path) -> int:
    """Does all works: those that only wait in processes of their own, beside the others. Returns: exit code, 0 or 1."""
    children = []
    for name in WAITING:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for size in WORKS[name].sizes:
                    run(name, size, folder)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    for name, work in WORKS.items():
        if name not in WAITING:
            for size in work.sizes:
                run(name, size, folder)
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    return int(any(codes))


if __name__ == '__main__':
    torch.set_num_threads(1)
    sys.exit(run_all(Path(sys.argv[1])))
