"""Speed and memory of zoo by number of envs, network width and rollout length; writes scaling.md and .json in results/.

    python benchmarks/scaling.py [--axes envs widths rollouts] [--seconds 2] [--threads 1] [--device cpu]

CartPole-v1, PPO, 4 epochs of 4 minibatches at any size, so 16 optimiser steps per rollout; two towers of two tanh
layers. Each point is run with executor eager, and with the fastest executor (C on a CPU) and compiled envs, in a process each.
The clock starts after 2 iterations (imports, compilation) and runs for some seconds. For a device other than the CPU, the
file names contain the device.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from speed_runs import DriverError, run_driver
from speed_works import BATCHED, COMPILED, EAGER, PEERS_DIR, flags

from report import RESULTS, git_commit, machine, table, today, versions, versions_line, write_json

N_MINIBATCH, EPOCHS, WARMUP = 4, 4, 2
MODES = {'eager': EAGER, 'fastest': COMPILED}
TORCH, GYMNASIUM = 'tensor env (torch)', "gymnasium's batched env"
ENVS = {TORCH: ('torch/CartPole-v1', ()), GYMNASIUM: ('CartPole-v1', (BATCHED,))}
COLUMNS = (
    'env steps/s, eager',
    'env steps/s, fastest',
    'fastest / eager',
    'peak MB, eager',
    'peak MB, fastest',
    'first iterations, s, eager',
    'first iterations, s, fastest (cache empty at the start)',
)

log = logging.getLogger('scaling')


class Point(NamedTuple):
    """One size. axis: its table; x: its place on that axis; the other fields are the settings of the run."""

    axis: str
    env: str
    x: int
    num_envs: int
    rollout: int
    width: int


POINTS = (
    *(Point('envs', env, n, n, 32, 64) for env in ENVS for n in (1, 4, 16, 64, 256, 1024, 4096)),
    *(Point('widths', GYMNASIUM, width, 64, 32, width) for width in (64, 128, 256, 512, 1024)),
    *(Point('rollouts', GYMNASIUM, n, 8, n, 64) for n in (8, 16, 32, 64, 128, 256, 512)),
)
TITLES = {
    'envs': ('Number of envs', 'envs', 'rollouts of 32 steps, towers 64-64'),
    'widths': ('Width of the network', 'width', '64 envs x 32 steps'),
    'rollouts': ('Length of the rollout', 'steps', '8 envs, towers 64-64'),
}


def command(point: Point, mode: str, args: argparse.Namespace) -> list[str]:
    """Command line of run_zoo.py for one point; --seconds ends the run, since its env steps are too many to be reached."""
    env, overrides = ENVS[point.env]
    settings = [
        *overrides,
        MODES[mode],
        f'policy.model.hidden_sizes=[{point.width},{point.width}]',
        f'policy.device={args.device}',
    ]
    options = {
        'env': env,
        'num-envs': point.num_envs,
        'rollout': point.rollout,
        'epochs': EPOCHS,
        'minibatch': point.num_envs * point.rollout // N_MINIBATCH,
        'warmup': WARMUP,
        'episodes': 0,
        'total-steps': 10**9,
        'seconds': args.seconds,
        'threads': args.threads,
    }
    wanted = [item for item in settings if item.partition('=')[0] not in args.omit]
    return [sys.executable, str(PEERS_DIR / 'run_zoo.py'), *flags(options, wanted)]


def measure(args: argparse.Namespace, cache: Path) -> list[dict[str, Any]]:
    """Runs every point in every mode; returns their records, for a failed run with the reason."""
    records = []
    for point in (point for point in POINTS if point.axis in args.axes):
        for mode in MODES:
            try:
                record = run_driver(command(point, mode, args), cache)
                log.info(
                    '%s %d, %s, %s: %.0f env steps/s, %.0f MB',
                    point.axis,
                    point.x,
                    point.env,
                    mode,
                    record['env_step_per_s'],
                    record['peak_rss_mb'],
                )
            except DriverError as error:
                record = {'failed': str(error)}
                log.error('%s %d, %s, %s failed: %s', point.axis, point.x, point.env, mode, error)
            records.append({**point._asdict(), 'mode': mode, **record})
    return records


def row(x: int, by_mode: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Table row of one point, with both modes."""

    def cells(key: str, form: str) -> list[str]:
        return [format(record[key], form) if key in record else 'failed' for record in by_mode.values()]

    speeds = [record.get('env_step_per_s') for record in by_mode.values()]
    ratio = f'{speeds[1] / speeds[0]:.2f}' if all(speeds) else ''
    return [f'{x:,}', *cells('env_step_per_s', ',.0f'), ratio, *cells('peak_rss_mb', '.0f'), *cells('warmup_s', '.1f')]


def section(axis: str, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tables of one axis, one for each env."""
    title, name, fixed = TITLES[axis]
    lines = [f'## {title}\n']
    for env in ENVS:
        found: dict[int, dict[str, Mapping[str, Any]]] = {}
        for record in records:
            if (record['axis'], record['env']) == (axis, env):
                found.setdefault(record['x'], {})[record['mode']] = record
        if found:
            lines += [f'{env}; {fixed}.\n', table([name, *COLUMNS], [row(x, modes) for x, modes in found.items()])]
    return lines


def report(data: Mapping[str, Any]) -> str:
    """The text of scaling.md, made from the data of scaling.json."""
    records = data['records']
    text = [
        '# How the cost grows\n',
        f'CartPole-v1, PPO, {EPOCHS} epochs of {N_MINIBATCH} minibatches for every rollout, two towers of two tanh '
        f'layers; device {data["device"]}, threads: {data["threads"]}. Env steps/s of training over '
        f'{data["seconds"]:g} s, after the first {WARMUP} iterations. One run each: differences under 10% are '
        'noise.\n',
    ]
    text += [line for axis in TITLES if any(r['axis'] == axis for r in records) for line in section(axis, records)]
    text += [
        f'- failed: {r["axis"]} {r["x"]}, {r["env"]}, {r["mode"]}: {r["failed"].splitlines()[-1]}'
        for r in records
        if 'failed' in r
    ]
    loads = [record['other_load'] for record in records if 'other_load' in record]
    text += [
        f'- machine: {data["machine"]}; other load, cores: {max(loads, default=0):.2f} at most',
        f'- versions: {versions_line(data["versions"])}',
        f'- date: {data["date"]}, commit {data["commit"]}',
        f'- command: `{data["command"]}`',
    ]
    return '\n'.join(text) + '\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--axes', nargs='+', choices=list(TITLES), default=list(TITLES))
    parser.add_argument('--seconds', type=float, default=2.0, help='that the clock of a run runs, about')
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--omit', nargs='*', default=[], metavar='KEY', help='config keys of zoo that are not set')
    parser.add_argument('--results', type=Path, default=RESULTS, help='folder of scaling.json and scaling.md')
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    with tempfile.TemporaryDirectory() as cache:
        records = measure(args, Path(cache))
    data = {
        'machine': machine(),
        'versions': versions(),
        'date': today(),
        'commit': git_commit(),
        'command': ' '.join(['python benchmarks/scaling.py', *sys.argv[1:]]),
        'device': args.device,
        'threads': args.threads,
        'seconds': args.seconds,
        'records': records,
    }
    name = 'scaling' if args.device == 'cpu' else f'scaling_{args.device.partition(":")[0]}'
    write_json(args.results / f'{name}.json', data)
    (args.results / f'{name}.md').write_text(report(data), encoding='utf-8')


if __name__ == '__main__':
    main()
