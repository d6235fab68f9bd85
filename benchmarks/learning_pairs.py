"""Whether recurrent policies learn as before: the same configs and seeds trained by two checkouts of zoo.

    python benchmarks/learning_pairs.py --before CHECKOUT [--now CHECKOUT] [--only NAME ...] [--seeds 10] [--seconds 2400]
    python benchmarks/learning_pairs.py --table   # from the records alone

Each run is `benchmarks/learning.py --one CONFIG SEED` of its checkout, in a process of one thread; the first seed of all
configs comes first, and no run begins after --seconds. Records lie in results/learning_pairs_raw/; a run that has one is not
repeated. results/learning_pairs.md has, of each config, the mean return of the last policy over the seeds with its 95%
interval (Student's t), the mean over training of the evaluations (the area under the curve), and the mean difference of the
pairs with its interval: learning is unchanged as far as these seeds can tell where that holds 0.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import REPO, RESULTS, last_json_line, last_words, one_thread_env, table, write_json

CONFIGS = ('remember_cue_ppo', 'cartpole_no_velocity_ppo', 'cartpole_no_velocity_ppg', 'minigrid_memory_s7_ppo')
SIDES = ('before', 'now')
RAW = RESULTS / 'learning_pairs_raw'
T_95 = (
    *(math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262),
    *(2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093),
)  # by degrees of freedom
MAX_SEEDS = 20
log = logging.getLogger('learning_pairs')


def path_of(name: str, seed: int, side: str) -> Path:
    return RAW / f'{name}_seed{seed}_{side}.json'


def run(checkout: Path, name: str, seed: int, side: str) -> None:
    """Trains one config with one seed in a checkout and keeps its record."""
    command = [sys.executable, str(checkout / 'benchmarks' / 'learning.py'), '--one', name, str(seed)]
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=checkout, env=one_thread_env(checkout), capture_output=True, text=True, check=False
    )
    record = last_json_line(done.stdout)
    if done.returncode or record is None:
        raise SystemExit(f'{name} seed {seed} {side} failed: {last_words(done.stderr)}')
    kept = {
        key: record[key] for key in ('seed', 'env_step', 'return_mean', 'curve', 'wall_s', 'commit') if key in record
    }
    write_json(path_of(name, seed, side), kept, indent=None)
    log.info('%s seed %d %s: %.2f in %.0f s', name, seed, side, record['return_mean'], time.perf_counter() - start)


def train(args: argparse.Namespace) -> None:
    """Trains all pairs that have no record, until the time is over; both sides of a pair, or none."""
    start = time.perf_counter()
    checkouts = dict(zip(SIDES, (args.before, args.now), strict=True))
    for seed in range(args.seeds):
        for name in args.only:
            if time.perf_counter() - start > args.seconds:
                return
            for side, checkout in checkouts.items():
                if not path_of(name, seed, side).exists():
                    run(checkout.resolve(), name, seed, side)


def with_interval(values: Sequence[float]) -> str:
    """The mean with its 95% interval, of 2 to 10 values."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return f'{mean:.3f}'
    half = T_95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return f'{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]'


def area(record: dict[str, Any]) -> float:
    """The mean of the evaluations during training."""
    return statistics.mean(value for _, value in record['curve'])


def row_of(name: str) -> list[str] | None:
    """The row of a config over the seeds that both sides have; None if there is none."""
    pairs = []
    for seed in range(MAX_SEEDS):
        paths = [path_of(name, seed, side) for side in SIDES]
        if all(path.exists() for path in paths):
            pairs.append([json.loads(path.read_text()) for path in paths])
    if not pairs:
        return None
    before, now = ([pair[i] for pair in pairs] for i in range(2))
    difference = [area(b) - area(a) for a, b in pairs]
    cells = [name, str(len(pairs))]
    for measure in (lambda record: record['return_mean'], area):
        cells += [with_interval([measure(record) for record in records]) for records in (before, now)]
    return [*cells, with_interval(difference)]


def write_table(command: str) -> None:
    """Writes results/learning_pairs.md from the records."""
    head = ('config', 'seeds', 'last return, before', 'now', 'mean over training, before', 'now', 'difference of pairs')
    rows = [row for row in map(row_of, CONFIGS) if row is not None]
    commits = {
        side: sorted({json.loads(path.read_text())['commit'] for path in RAW.glob(f'*_{side}.json')}) for side in SIDES
    }
    text = f"""# Learning of recurrent policies, before and now

`{command}`: memories run eagerly before, and in C now. The same seeds; means over seeds with 95% intervals.
Before: {', '.join(commits['before'])}. Now: {', '.join(commits['now'])}. Records: `learning_pairs_raw/`.

{table(head, rows)}
"""
    (RESULTS / 'learning_pairs.md').write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--before', type=Path, metavar='CHECKOUT', help='the other zoo, with its C library')
    parser.add_argument('--now', type=Path, metavar='CHECKOUT', default=REPO)
    parser.add_argument('--only', nargs='+', choices=CONFIGS, default=CONFIGS, metavar='NAME', help=', '.join(CONFIGS))
    parser.add_argument('--seeds', type=int, default=10, choices=range(1, MAX_SEEDS + 1), metavar='N', help='1 to 20')
    parser.add_argument('--seconds', type=float, default=math.inf, help='no run begins after so long')
    parser.add_argument('--table', action='store_true', help='only writes the table')
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    if not args.table:
        if args.before is None:
            parser.error('--before is missing: a checkout of zoo')
        RAW.mkdir(exist_ok=True)
        train(args)
    write_table('python benchmarks/learning_pairs.py --before CHECKOUT')
    return 0


if __name__ == '__main__':
    sys.exit(main())
