"""Training speed of two checkouts of zoo, compared round by round: finds differences that noise hides in whole runs.

    python benchmarks/rounds.py --before CHECKOUT [--only NAME ...] [--rounds 60] [--row 1] [--eager] [--set ...]

Both train the same work (speed_works.py), each in its own process on one thread. They take turns, so that only one runs at any
moment: a round of one, the same round of the other, the next pair in the opposite order. Both rounds of a pair see the same
state of the machine. After a turn of the other, a round of some milliseconds mostly measures cold caches: with --row N a turn is
N rounds, and its time the mean of all but the first. The median ratio over the pairs is printed and written, with a 95% interval
(of the order statistics). The C library of the other checkout has to be built there, as `make train` does.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speed_works import WORKS, Driver, Setting, Work, arguments

from report import git_commit, last_words, machine, one_thread_env, results_folder, today, versions, write_json

HERE = Path(__file__).resolve().parent
END_S = 60.0  # time limit for a trainer to end
log = logging.getLogger('rounds')


class Trainer:
    """A process that trains a work with the zoo of a checkout and runs one round per call of `round_s`.

    Args: under: the beginning of the command, such as that of a program that counts.
    """

    def __init__(self, checkout: Path, work: Work, setting: Setting, n_round: int, under: Sequence[str] = ()) -> None:
        script = HERE / 'peers' / 'run_zoo.py'
        command = (sys.executable, str(script), '--started', str(time.time()))
        driver = Driver('zoo', 'zoo', command, (setting,))
        steps = (work.warmup + n_round) * work.batch
        options = arguments(work._replace(episodes=0), driver, setting, steps, 1, 0)
        env = {**one_thread_env(checkout.resolve()), 'ZOO_BENCH_TURNS': '1'}
        self.process = subprocess.Popen(
            [*under, *command, *options], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def round_s(self) -> float:
        """Runs one round; returns its seconds. Raises: RuntimeError if the process ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(b'\n')
            self.process.stdin.flush()
            return float(self.process.stdout.readline())
        except (OSError, ValueError):
            said = self.process.communicate()[1].decode()
            raise RuntimeError(f'a trainer ended before its rounds: {last_words(said)}') from None

    def close(self, limit_s: float = END_S) -> None:
        """Ends the process."""
        try:
            self.process.communicate(timeout=limit_s)  # closes its stdin: it ends and removes its run folder
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


def turn_s(trainer: Trainer, n_row: int) -> float:
    """Seconds of a round in a turn of n_row rounds: their mean without the first, unless it is the only one."""
    seconds = [trainer.round_s() for _ in range(n_row)]
    return statistics.mean(seconds[1:] or seconds)


def pairs_of(before: Trainer, now: Trainer, n_pair: int, n_row: int = 1) -> list[tuple[float, float]]:
    """Seconds of a round of both trainers in each turn; they alternate in going first."""
    pairs = []
    for index in range(n_pair):
        if index % 2:
            second = turn_s(now, n_row)
            pairs.append((turn_s(before, n_row), second))
        else:
            first = turn_s(before, n_row)
            pairs.append((first, turn_s(now, n_row)))
    return pairs


def summary(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Speed of `now` over `before`: the median ratio of the pairs and its 95% confidence interval; median times in ms."""
    ratios = sorted(before / now for before, now in pairs)
    half = 0.98 * math.sqrt(len(ratios))  # 1.96 deviations of a binomial count with probability 1/2
    low, high = (len(ratios) - 1) / 2 - half, (len(ratios) - 1) / 2 + half
    return {
        'ratio': round(statistics.median(ratios), 4),
        'low': round(ratios[max(math.floor(low), 0)], 4),
        'high': round(ratios[min(math.ceil(high), len(ratios) - 1)], 4),
        'before_ms': round(1e3 * statistics.median(before for before, _ in pairs), 3),
        'now_ms': round(1e3 * statistics.median(now for _, now in pairs), 3),
    }


def compare(work: Work, setting: Setting, checkout: Path, n_round: int, n_row: int = 1) -> dict[str, Any]:
    """Trains one work with one setting of zoo by both checkouts; returns the comparison."""
    n_pair = n_round // n_row + 1
    trainers = [Trainer(where, work, setting, n_pair * n_row) for where in (checkout, HERE.parent)]
    try:
        pairs = pairs_of(*trainers, n_pair, n_row)[1:]  # without the first pair: one trainer may still warm up then
    finally:
        for trainer in trainers:
            trainer.close()
    return {'work': work.name, 'setting': list(setting), 'rounds': n_round, **summary(pairs)}


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes results/rounds.json."""
    names = [work.name for work in WORKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--before', type=Path, required=True, metavar='CHECKOUT', help='the other zoo')
    parser.add_argument('--only', nargs='+', choices=names, default=names, metavar='NAME', help=', '.join(names))
    parser.add_argument('--rounds', type=int, default=60, help='pairs of rounds; 10 at least')
    parser.add_argument('--row', type=int, default=1, help='rounds in a row of one before the other has its turn')
    parser.add_argument('--seconds', type=float, default=60.0, help='about the longest that one row may take')
    parser.add_argument('--eager', action='store_true', help='the eager executor, not the best setting')
    parser.add_argument('--set', nargs='+', default=[], metavar='KEY=VALUE', help='more config overrides, of both')
    parser.add_argument('-o', '--results', type=Path, metavar='FOLDER', help='of rounds.json')
    words = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(words)
    words = [word.replace(str(args.before), 'CHECKOUT') for word in words]
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    rows = []
    for work in (work for work in WORKS if work.name in args.only):
        setting = (*(work.eager if args.eager else work.best)[0], *args.set)
        short = compare(work, setting, args.before, 4)  # measures a round's time, and compiles
        n_round = max(10 * args.row, min(args.rounds, int(1e3 * args.seconds / (short['before_ms'] + short['now_ms']))))
        rows.append(compare(work, setting, args.before, n_round, args.row))
        log.info('%(work)s: %(ratio).3f [%(low).3f, %(high).3f] of %(rounds)d rounds, %(now_ms).1f ms', rows[-1])
    data = {
        'machine': machine(),
        'versions': versions(),
        'date': today(),
        'commit': git_commit(),
        'before': subprocess.run(
            ['git', '-C', str(args.before), 'rev-parse', '--short', 'HEAD'], capture_output=True, text=True, check=True
        ).stdout.strip(),
        'command': ' '.join(['python benchmarks/rounds.py', *words]),
        'rows': rows,
    }
    name = 'rounds_eager.json' if args.eager else 'rounds.json'
    write_json(results_folder(args.results, False) / name, data)
    return 0


if __name__ == '__main__':
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    sys.exit(main())
