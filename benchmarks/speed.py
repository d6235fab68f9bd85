"""Training speed of zoo and other libraries on matched work; writes speed.md and speed.json in benchmarks/results/.

    python benchmarks/speed.py [--only NAME ...] [--peers NAME ...] [--repeats 5] [--threads 1 2] [--quick]

The works and the drivers are data (speed_works.py). For each work, every driver first makes a short run with each of its
settings and numbers of threads, and the fastest combination is measured. Then all drivers run in turn, each in its own
process, every second round in reverse order; the number of the round is the seed. The clock of a run starts after its first
iterations (2; 1 where a rollout is 2,048 steps of one env, or images), equal for all drivers. Imports and compilation are
timed separately.

A peer runs if it has a virtual environment in --venvs, else $ZOO_BENCH_VENVS, else ../venvs next to the repository
(./venvs if zoo is an installed wheel); peers/README.md explains how to make it. Works that are not measured this time
keep their results in speed.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speed_runs import Plan, calibrate, measure
from speed_tables import report
from speed_works import PEERS, WORKS, Work, before_driver, is_installed, left_out, peer_drivers, zoo_drivers
from startup import first_update, users_env

from report import REPO, VENVS, git_commit, machine, results_folder, today, versions, write_json

PARTS = {work.name: work.title for work in WORKS}  # choices of --only
log = logging.getLogger('speed')


def first_update_s() -> list[float]:
    """Seconds from the command `zoo train cartpole_ppo` to its first update, three times."""
    with tempfile.TemporaryDirectory() as bytecode:
        env = users_env(REPO, Path(bytecode))
        first_update('cartpole_ppo', env)  # makes the bytecode that users have
        return [first_update('cartpole_ppo', env).wall_s for _ in range(3)]


def measure_work(work: Work, plan: Plan, args: argparse.Namespace) -> dict[str, Any]:
    """Measures one work with all drivers; returns its entry of speed.json."""
    start, failed = time.perf_counter(), {}
    peers, missing = peer_drivers(work, args.peers, args.venvs)
    before = [] if args.before is None else [before_driver(work, args.before)]
    drivers = [
        driver._replace(command=(*driver.command, '--device', args.device))
        for driver in (*zoo_drivers(work, args.omit, args.device), *before, *peers)
    ]
    choices, calibration = calibrate(work, drivers, plan, failed)
    runs = measure(work, choices, plan, failed)
    return {
        'machine': machine(args.device),
        'versions': versions(),
        'date': today(),
        'commit': git_commit(),
        'command': args.command,
        'scale': plan.scale,
        'took_s': round(time.perf_counter() - start),
        'missing': missing,
        'failed': failed,
        'calibration': calibration,
        'runs': runs,
    }


def parse_args(argv: Sequence[str], program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--only', '--works', nargs='+', choices=PARTS, default=list(PARTS), metavar='NAME', help=', '.join(PARTS)
    )
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
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu', help='cuda: writes speed_cuda.md and .json')
    parser.add_argument('--venvs', type=Path, default=VENVS)
    parser.add_argument('--omit', nargs='*', default=[], metavar='KEY', help='config keys of zoo that are not set')
    parser.add_argument('--before', type=Path, metavar='CHECKOUT', help='also an older zoo, from its checkout')
    parser.add_argument('-o', '--results', type=Path, metavar='FOLDER', help='of speed.json and speed.md')
    parser.add_argument(
        '--quick',
        action='store_true',
        help='a look: one repeat of a fifth, no choosing, no Tianshou; into the temporary folder unless --results',
    )
    parser.add_argument('--render', action='store_true', help='measure nothing, write speed.md anew from speed.json')
    args = parser.parse_args(argv)
    args.command = ' '.join([program, *argv])
    args.results = results_folder(args.results, args.quick)
    if args.quick:
        args.repeats, args.scale, args.threads = 1, min(args.scale, 0.2), args.threads[:1]
        args.peers = [name for name in args.peers if name != 'tianshou']
    return args


def main(argv: Sequence[str] | None = None, program: str = 'python benchmarks/speed.py') -> int:
    """Measures and writes; 1 if some work could not be measured. program: the command's name in the results."""
    args = parse_args(sys.argv[1:] if argv is None else argv, program)
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    path = args.results / ('speed.json' if args.device == 'cpu' else f'speed_{args.device}.json')
    data: dict[str, Any] = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
    data = data if 'works' in data else {'works': {}}  # older files have only one work
    works = data['works']
    todo = [] if args.render else [work for work in WORKS if work.name in args.only]
    say_what_is_left_out(todo, args)
    with tempfile.TemporaryDirectory() as cache:
        plan = Plan(tuple(args.threads), args.repeats, args.scale, not args.quick, Path(cache))
        for work in todo:
            works[work.name] = measure_work(work, plan, args)
            write_json(path, data)  # after each work, since all works take an hour
    if not args.render and not args.quick and args.device == 'cpu':
        data['first_update_s'] = first_update_s()
    write_json(path, data)
    path.with_suffix('.md').write_text(report(data), encoding='utf-8')
    log.info('written: %s', path.with_suffix('.md'))
    return 0 if all(works[work.name]['runs'] for work in todo) else 1


def say_what_is_left_out(works: Sequence[Work], args: argparse.Namespace) -> None:
    """Logs one sentence about all requested peers that are not installed."""
    wanted = dict.fromkeys(name for work in works for name in work.peers if name in args.peers)
    for line in left_out([PEERS[name].label for name in wanted if not is_installed(name, args.venvs)], args.venvs):
        log.warning('%s', line)


if __name__ == '__main__':
    sys.exit(main())
