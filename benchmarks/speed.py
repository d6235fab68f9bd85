"""How fast zoo trains beside other libraries on matched work: writes speed.md and speed.json in benchmarks/results/.

    python benchmarks/speed.py [--works NAME ...] [--peers NAME ...] [--repeats 5] [--threads 1 2] [--quick]

The works and the drivers are data (speed_works.py). For each work, every driver first takes a short run for each of
its settings and numbers of threads; the quickest of these is what counts. Then all drivers run in turn, each in a
process of its own, every second round backwards, with the round as the seed. The clock of a run starts after its first
iterations (2; 1 where a rollout is 2,048 steps of one env, or images), the same for all: imports and compilation are
timed apart.

Peers run where they have a virtual environment: --venvs, else $ZOO_BENCH_VENVS, else ../venvs beside the repository;
peers/README.md tells how to make them. Works that are not measured this time keep what speed.json has of them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from speed_runs import Plan, calibrate, measure
from speed_tables import report
from speed_works import PEERS, WORKS, Work, before_driver, peer_drivers, zoo_drivers

from report import REPO, RESULTS, git_commit, machine, one_thread_env, today, versions, write_json

log = logging.getLogger('speed')


def first_update_s(limit_s: float = 60.0) -> float:
    """Seconds from the command `zoo train cartpole_ppo` to the first line of metrics that an update wrote."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        # logger.freq=1: the first update is written when it is done, not some rollouts later
        process = subprocess.Popen(
            [sys.executable, '-m', 'zoo', 'train', 'cartpole_ppo', 'logger.freq=1'],
            cwd=folder,
            env=one_thread_env(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            while time.perf_counter() - start < limit_s and process.poll() is None:
                if any('"learn/' in path.read_text() for path in Path(folder).glob('runs/*/*/metrics.jsonl')):
                    return time.perf_counter() - start
                time.sleep(0.01)
        finally:
            process.kill()
            _, stderr = process.communicate()
    raise RuntimeError(f'`zoo train cartpole_ppo` ended or took {limit_s:.0f} s without an update:\n{stderr[-2000:]}')


def measure_work(work: Work, plan: Plan, args: argparse.Namespace) -> dict[str, Any]:
    """Everything about one work, as it goes into speed.json."""
    start, failed = time.perf_counter(), {}
    peers, missing = peer_drivers(work, args.peers, args.venvs)
    for line in missing:
        log.warning('%s', line)
    before = [] if args.before is None else [before_driver(work, args.before)]
    choices, calibration = calibrate(work, [*zoo_drivers(work, args.omit), *before, *peers], plan, failed)
    runs = measure(work, choices, plan, failed)
    return {
        'machine': machine(),
        'versions': versions(),
        'date': today(),
        'commit': git_commit(),
        'command': ' '.join(['python benchmarks/speed.py', *sys.argv[1:]]),
        'scale': plan.scale,
        'took_s': round(time.perf_counter() - start),
        'missing': missing,
        'failed': failed,
        'calibration': calibration,
        'runs': runs,
    }


def parse_args() -> argparse.Namespace:
    venvs = Path(os.environ.get('ZOO_BENCH_VENVS', REPO.parent / 'venvs'))
    names = [work.name for work in WORKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--works', nargs='+', choices=names, default=names, metavar='NAME', help=', '.join(names))
    parser.add_argument(
        '--peers',
        nargs='*',
        choices=list(PEERS),
        default=list(PEERS),
        metavar='NAME',
        help=f'besides zoo: {", ".join(PEERS)}',
    )
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--threads', type=int, nargs='+', default=[1, 2], help='numbers to choose from')
    parser.add_argument('--scale', type=float, default=1.0, help='factor of the env steps of every run')
    parser.add_argument('--venvs', type=Path, default=venvs)
    parser.add_argument('--omit', nargs='*', default=[], metavar='KEY', help='config keys of zoo that are not set')
    parser.add_argument('--before', type=Path, metavar='CHECKOUT', help='also an older zoo, from its checkout')
    parser.add_argument('--results', type=Path, default=RESULTS, help='folder of speed.json and speed.md')
    parser.add_argument(
        '--quick',
        action='store_true',
        help='a look: one repeat of a fifth, no choosing, no Tianshou; '
        'to <temporary folder>/zoo_speed unless --results',
    )
    parser.add_argument('--render', action='store_true', help='measure nothing, write speed.md anew from speed.json')
    args = parser.parse_args()
    if args.quick:
        args.repeats, args.scale, args.threads = 1, 0.2, args.threads[:1]
        args.peers = [name for name in args.peers if name != 'tianshou']
        if args.results == RESULTS:
            args.results = Path(tempfile.gettempdir()) / 'zoo_speed'
    return args


def main() -> None:
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    path = args.results / 'speed.json'
    data: dict[str, Any] = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
    data = data if 'works' in data else {'works': {}}  # an older speed.json has one work only
    works = data['works']
    with tempfile.TemporaryDirectory() as cache:
        plan = Plan(tuple(args.threads), args.repeats, args.scale, not args.quick, Path(cache))
        for work in () if args.render else (work for work in WORKS if work.name in args.works):
            works[work.name] = measure_work(work, plan, args)
            write_json(path, data)  # after each work: an hour is long
    if not args.render and not args.quick:
        data['first_update_s'] = [first_update_s() for _ in range(3)]
    write_json(path, data)
    (args.results / 'speed.md').write_text(report(data), encoding='utf-8')
    log.info('written: %s', args.results / 'speed.md')


if __name__ == '__main__':
    main()
