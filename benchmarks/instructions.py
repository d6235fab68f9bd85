"""Instructions that a round of training takes in two checkouts of zoo: a count, where noise of times hides some percent.

    python benchmarks/instructions.py --before CHECKOUT [--only NAME] [--eager] [--rounds 4] [--least 20] [--set ...]

Each trains the same work (speed_works.py, one thread) under valgrind's callgrind, which counts from the fifth round on. Printed
are the thousands of instructions of a round, those of each library, and those of the functions whose numbers differ by --least or
more. valgrind knows no AVX-512: the C code of zoo runs at its level for AVX2. Needs valgrind and, in the other checkout too, the
C library. A work takes some minutes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rounds import HERE, Trainer
from speed_works import WORKS, Work

WARM = 4  # rounds before the count
LINE = re.compile(r'\s*([\d,]+) \(\s*[\d.]+%\)\s+(.*)')


def count(checkout: Path, work: Work, setting: Sequence[str], n_round: int) -> Counter[str]:
    """Instructions of n_round rounds by function, 'file:function [library]'."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / 'callgrind.out'
        valgrind = ('valgrind', '--tool=callgrind', '--instr-atstart=no', f'--callgrind-out-file={found}')
        trainer = Trainer(checkout, work, tuple(setting), WARM + n_round, valgrind)
        for i in range(WARM + n_round):
            if i == WARM:
                subprocess.run(
                    ['callgrind_control', '-i', 'on', str(trainer.process.pid)], check=True, capture_output=True
                )
            trainer.round_s()
        subprocess.run(['callgrind_control', '-i', 'off', str(trainer.process.pid)], check=True, capture_output=True)
        trainer.close(limit_s=600.0)
        command = ['callgrind_annotate', '--threshold=100', str(found)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    numbers: Counter[str] = Counter()
    for match in filter(None, map(LINE.match, text.splitlines())):
        if 'PROGRAM TOTALS' not in match[2]:
            numbers[name_of(match[2])] += int(match[1].replace(',', ''))
    return numbers


def name_of(place: str) -> str:
    """The same name for the same function of both checkouts: without folders, and what the compiler or a recursion appends."""
    place = re.sub(r'\[.*/', '[', place)
    place = re.sub(r'^\S*/([^/]*:)', r'\1', place)
    return re.sub(r"'\d+|\.(constprop|isra|part)\.\d+", '', place)


def library_of(name: str) -> str:
    match = re.search(r'\[([^\]]*)\]', name)
    if match:
        return match[1]
    return 'others'


def lines_of(before: Counter[str], now: Counter[str], least: float) -> list[str]:
    """Lines 'difference before now name' of what differs by `least` or more."""
    names = sorted(before.keys() | now.keys(), key=lambda name: now[name] - before[name])
    chosen = [name for name in names if abs(now[name] - before[name]) >= least]
    return [f'{now[name] - before[name]:+10.1f} {before[name]:10.1f} {now[name]:10.1f}  {name}' for name in chosen]


def main() -> int:
    names = [work.name for work in WORKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--before', type=Path, required=True, metavar='CHECKOUT', help='the other zoo')
    parser.add_argument('--only', choices=names, default='cartpole_8x128', metavar='NAME', help=', '.join(names))
    parser.add_argument('--rounds', type=int, default=4)
    parser.add_argument('--least', type=float, default=20.0, help='thousands of instructions of a round')
    parser.add_argument('--eager', action='store_true', help='the eager executor, not the best setting')
    parser.add_argument('--set', nargs='+', default=[], metavar='KEY=VALUE', help='more config overrides, of both')
    args = parser.parse_args()
    work = next(work for work in WORKS if work.name == args.only)
    sides = []
    setting = (*(work.eager if args.eager else work.best)[0], *args.set)
    for checkout in (args.before, HERE.parent):
        numbers = count(checkout, work, setting, args.rounds)
        sides.append(Counter({name: n / args.rounds / 1e3 for name, n in numbers.items()}))
    libraries: list[Counter[str]] = []
    for side in sides:
        sums: Counter[str] = Counter()
        for name, n in side.items():
            sums[library_of(name)] += n
        libraries.append(sums)
    before, now = (sum(side.values()) for side in sides)
    print(f'{work.name}: {before:.1f} before, {now:.1f} now, thousands of instructions of a round: {now / before:.4f}')
    print('\n'.join([*lines_of(*libraries, 0.05), '', *lines_of(*sides, args.least)]))
    return 0


if __name__ == '__main__':
    sys.exit(main())
