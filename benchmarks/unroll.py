"""Sequences through a layer of memory in C (zoo/backend/native/unroll.py) beside torch: time of a pass there and back.

    python benchmarks/unroll.py [--passes 60]

For each case the two take turns; what counts is the CPU time of the one thread, in microseconds: the median, and the ratio of
medians. An env begins a new episode before 5% of the rows. Writes results/unroll.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from report import RESULTS, git_commit, machine, table, today
from zoo.backend import native
from zoo.backend.native.bindings import load
from zoo.backend.native.unroll import NativeUnroll
from zoo.model.recurrent import Core, unrolled_by

CELLS = ('lstm', 'gru', 'mingru')
SHAPES = ((16, 16, 64), (16, 16, 128), (16, 16, 256), (32, 16, 64), (128, 8, 64))  # rows, sequences, hidden size
RESET_SHARE = 0.05


def case(cell: str, n_row: int, n: int, size: int, n_pass: int) -> list[object]:
    """A row of the table."""
    lib, why = load()
    if lib is None:
        raise SystemExit(why)
    torch.manual_seed(0)
    core = Core(64, cell, size)
    x = torch.randn(n_row, n, 64, requires_grad=True)
    first = torch.rand(n_row, n) < RESET_SHARE
    weight = torch.randn(n_row, n, size)
    contexts = {'torch': nullcontext, 'C': lambda: unrolled_by(NativeUnroll(lib))}
    times: dict[str, list[float]] = {name: [] for name in contexts}
    for _ in range(n_pass):
        for name, context in contexts.items():
            core.zero_grad()
            start = time.thread_time()
            with context():
                features, _ = core(x, core.initial_state(n), first)
            (features * weight).sum().backward()
            times[name].append((time.thread_time() - start) * 1e6)
    medians = {name: statistics.median(found[n_pass // 10 :]) for name, found in times.items()}
    ratio = medians['torch'] / medians['C']
    return [cell, size, n_row, n, f'{medians["torch"]:.0f}', f'{medians["C"]:.0f}', f'{ratio:.1f}']


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--passes', type=int, default=60)
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    rows = [case(cell, *shape, args.passes) for cell in CELLS for shape in SHAPES]
    columns = ['cell', 'hidden size', 'rows', 'sequences', 'torch, us', 'C, us', 'torch / C']
    text = f"""# Sequences through a layer of memory, in C and in torch

`python benchmarks/unroll.py` made this page on {today()} (commit {git_commit()}; {machine()}; level {native.level()},
torch {torch.__version__}). One thread, float32, forward and backward, 64 inputs.

{table(columns, rows)}
"""
    (RESULTS / 'unroll.md').write_text(text)
    print(text)


if __name__ == '__main__':
    main()
