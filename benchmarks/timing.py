"""Timing of calls: medians of rounds in which all variants take turns, on a CPU or on a CUDA device.

A call is a function of the number of an input set. The number increases from call to call, and the call takes it modulo its
number of sets, so that an input is not in a cache only because the call before used it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

Call = Callable[[int], Any]
QUEUE_S = 1.5e-3  # work queued while the device spins: 500 launches of 3 us; the queue holds some 1,000
SPIN_CYCLES = 6_000_000  # 3 ms at 2 GHz: longer than queueing takes


class Timed(NamedTuple):
    """A call, and the context (entered outside the clock) in which it runs."""

    call: Call
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


class Budget(NamedTuple):
    """Limits per variant: at most n_round rounds of round_s seconds each, and about total_s seconds in total."""

    n_round: int = 31
    round_s: float = 0.01
    total_s: float = 1.0


def synchronize(device: torch.device) -> None:
    """Waits for a CUDA device; a CPU has always finished."""
    if device.type == 'cuda':
        torch.cuda.synchronize(device)


def wall_seconds(timed: Mapping[str, Timed], device: torch.device, budget: Budget) -> dict[str, float]:
    """Median seconds per call by the wall clock: the time of the host or the device, the longer one."""
    return _medians(timed, device, partial(_wall_round, device), budget)


def device_seconds(timed: Mapping[str, Timed], device: torch.device, budget: Budget) -> dict[str, float]:
    """Median seconds that a call keeps the device busy: CUDA events around calls that are queued while the device spins.

    If the host needs longer to queue the calls than the device spins (a Python loop), the host's time is measured. On a CPU
    this is `wall_seconds`.
    """
    if device.type == 'cpu':
        return wall_seconds(timed, device, budget)
    return _medians(timed, device, _queued_round, budget._replace(round_s=QUEUE_S))


def host_seconds(timed: Mapping[str, Timed], device: torch.device, budget: Budget) -> dict[str, float]:
    """Median seconds until a call returns to the host, with an idle device before it: launch and wrapper."""
    return _medians(timed, device, partial(_host_round, device), budget)


def graph_seconds(call: Call, n_call: int, n_round: int = 11) -> float | str:
    """Seconds per call of a replayed CUDA graph that holds the calls 0 .. n_call-1, or why it can't be captured."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    try:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # capture needs a warm-up on a stream other than the default one
            for i in range(3):
                call(i)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            for i in range(n_call):
                call(i)
    except RuntimeError as error:
        return f'not captured: {str(error).splitlines()[0]}'
    graph.replay()
    return statistics.median(_event_seconds(graph.replay) for _ in range(n_round)) / n_call


def copy_bandwidth(device: torch.device, n_byte: int, n_round: int) -> float:
    """Bytes per second, read and written, of a copy far larger than any cache."""
    source = torch.rand(n_byte // 4, device=device)
    target = torch.empty_like(source)
    copy = {'copy': Timed(lambda _: target.copy_(source))}
    seconds = device_seconds(copy, device, Budget(n_round, total_s=n_round))['copy']
    return 2 * source.nbytes / seconds


def _medians(
    timed: Mapping[str, Timed], device: torch.device, time_round: Callable[[Call, int, int], float], budget: Budget
) -> dict[str, float]:
    plan: dict[str, tuple[int, int]] = {}  # calls per round, rounds
    for name, (call, context) in timed.items():
        with context():
            _wall_round(device, call, 0, 2)  # warm-up: compiles, fills the allocator's cache
            seconds = _wall_round(device, call, 2, 2)  # at least the time of the host or the device
        n_call = min(max(int(budget.round_s / seconds), 1), 1000)
        plan[name] = n_call, min(max(int(budget.total_s / (n_call * seconds)), 3), budget.n_round)
    taken: dict[str, list[float]] = {name: [] for name in timed}
    for index in range(budget.n_round):
        for name in timed if index % 2 == 0 else reversed(list(timed)):  # so that drifts of the machine cancel
            n_call, n_round = plan[name]
            if index < n_round:
                with timed[name].context():
                    taken[name].append(time_round(timed[name].call, index * n_call, n_call))
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def _wall_round(device: torch.device, call: Call, first: int, n_call: int) -> float:
    synchronize(device)
    start = time.perf_counter()
    for i in range(first, first + n_call):
        call(i)
    synchronize(device)
    return (time.perf_counter() - start) / n_call


def _host_round(device: torch.device, call: Call, first: int, n_call: int) -> float:
    taken = 0.0
    for i in range(first, first + n_call):
        synchronize(device)
        start = time.perf_counter()
        call(i)
        taken += time.perf_counter() - start
    return taken / n_call


def _queued_round(call: Call, first: int, n_call: int) -> float:
    def calls() -> None:
        for i in range(first, first + n_call):
            call(i)

    torch.cuda.synchronize()
    torch.cuda._sleep(SPIN_CYCLES)
    return _event_seconds(calls) / n_call


def _event_seconds(work: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3
