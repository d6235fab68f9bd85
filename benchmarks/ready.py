"""Asynchronous stepping with one env of eight ten times as slow; writes ready.md and ready.json in results/.

    python benchmarks/ready.py [--before CHECKOUT] [--seeds 5] [--steps 40000]

Speed: env steps per second of whole rounds (collecting and learning) of PPO on CartPole whose steps also wait, which takes time
but no core, as a simulator elsewhere would: 2 ms, and 20 ms in the first copy. Compared are another checkout of zoo (--before,
built), this one with all envs together (in two groups that take turns, the default for envs in processes), and with
env.ready_num=4. Returns: cartpole_ppo with the same envs, 100 times as fast, for --steps env steps; 20 greedy episodes after
each run. Every run is a process of its own with one thread.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from report import (
    RESULTS,
    git_commit,
    last_json_line,
    last_words,
    machine,
    one_thread_env,
    table,
    today,
    versions,
    versions_line,
    without_folders,
    write_json,
)

log = logging.getLogger('ready')
N_ENV, SLOWER = 8, 10
WAYS: dict[str, dict[str, Any]] = {'together': {}, 'ready': {'ready_num': N_ENV // 2}}
T_95 = {3: 3.182, 4: 2.776, 5: 2.571, 7: 2.365, 9: 2.262}  # two-sided, by degrees of freedom


def copy_index() -> int:
    """The index of the env of this process among all, by the name that zoo gives its processes: 'env NAME[4:8] 0' is 4."""
    found = re.search(r'(?:\[(\d+):\d+\])? (\d+)$', multiprocessing.current_process().name)
    return sum(int(part or 0) for part in found.groups()) if found else 0


class UnevenCartPole(CartPoleEnv):
    """CartPole whose steps take `step_s` seconds more, and ten times that in the first copy."""

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__()
        is_slow = multiprocessing.parent_process() is not None and copy_index() == 0
        self._pause_s = step_s * SLOWER if is_slow else step_s

    def step(self, action: Any) -> Any:
        time.sleep(self._pause_s)
        return super().step(action)


def config(way: str, step_s: float, seed: int, folder: str, n_step: int, max_env_step: int) -> dict[str, Any]:
    return {
        'seed': seed,
        'max_env_step': max_env_step,
        'logger': {'root': folder, 'console': 'off', 'tensorboard': False},
        'env': {
            'id': f'{Path(__file__).resolve()}:UnevenCartPole',
            'kwargs': {'step_s': step_s},
            'max_episode_steps': 500,
            'collector_env_num': N_ENV,
            'vectorization': 'async',
            **WAYS[way],
        },
        'policy': {
            'type': 'ppo',
            'n_thread': 1,
            # those of cartpole_ppo
            'learn': {
                'epoch_per_collect': 10,
                'learning_rate': {'start': 2e-3, 'end': 0.0},
                'clip_ratio': {'start': 0.2, 'end': 0.02},
            },
            'collect': {'n_step': n_step},
            'eval': {'eval_freq': 10 * max_env_step, 'n_episode': 20},
        },
    }


def measure_speed(way: str, n_round: int) -> dict[str, Any]:
    """Env steps per second of rounds after the first, and the ages that the samples had."""
    from zoo.run.job import SerialJob

    with tempfile.TemporaryDirectory() as folder, SerialJob(config(way, 2e-3, 0, folder, 64, 10**6)) as job:
        job.iteration()
        before, start = job.env_step, time.perf_counter()
        for _ in range(n_round):
            job.iteration()
        seconds = time.perf_counter() - start
        ages = {name: round(value, 4) for name, value in getattr(job.collector, 'metrics', dict)().items()}
        return {'env_step': job.env_step - before, 'seconds': seconds, **ages}


def measure_return(way: str, seed: int, n_step: int) -> dict[str, Any]:
    """The mean return of 20 greedy episodes after a run."""
    from zoo import serial_pipeline

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        result = serial_pipeline(config(way, 2e-5, seed, folder, 128, n_step))
        return {'return': result.last_return, 'env_step': result.env_step, 'seconds': time.perf_counter() - start}


def child(words: Sequence[object], checkout: Path | None = None) -> dict[str, Any]:
    """The result of this script in a new process, which imports zoo from a checkout; None: from this one."""
    paths = [Path(__file__).parent] if checkout is None else [checkout, Path(__file__).parent]
    command = [sys.executable, str(Path(__file__).resolve()), *map(str, words)]
    done = subprocess.run(command, env=one_thread_env(*paths), capture_output=True, text=True, check=False)
    found = last_json_line(done.stdout)
    if found is None:
        raise SystemExit(f'{" ".join(map(str, words))}: {last_words(done.stderr)}')
    return found


def interval(values: Sequence[float]) -> str:
    """The mean with its 95% interval, by Student's t."""
    half = T_95.get(len(values) - 1, 2.0) * statistics.stdev(values) / len(values) ** 0.5
    return f'{statistics.mean(values):.1f} ± {half:.1f}'


def report(data: Mapping[str, Any]) -> str:
    """The Markdown page, made from the data of the JSON file."""
    speeds = {
        name: statistics.median(x['env_step'] / x['seconds'] for x in runs) for name, runs in data['speed'].items()
    }
    base = speeds['before' if 'before' in speeds else 'together']
    names = {'before': 'together, before', 'together': 'together', 'ready': f'env.ready_num={N_ENV // 2}'}
    ages = data['speed']['ready'][0]
    text = [
        '# Asynchronous stepping: one env of eight ten times as slow\n',
        table(
            ['envs', 'env steps/s', 'times the first row'],
            [[names[name], f'{speed:,.0f}', f'{speed / base:.2f}'] for name, speed in speeds.items()],
        ),
        f'With env.ready_num the age of samples is {ages["collect/age_mean"]:.3f} updates in the mean and at most '
        f'{ages["collect/age_max"]:.0f}; the slow env gives {ages["collect/env_share_min"]:.2f} times an equal share of the '
        'rows.\n',
        f'Returns of 20 greedy episodes after {data["n_step"]:,} env steps, {data["seeds"]} seeds, with 95% intervals:\n',
        table(
            ['envs', 'return', 'each seed'],
            [
                [names[name], interval(x := [run['return'] for run in runs]), ', '.join(f'{each:.0f}' for each in x)]
                for name, runs in data['returns'].items()
            ],
        ),
        f'- machine: {data["machine"]}',
        f'- versions: {versions_line(data["versions"])}',
        f'- date: {data["date"]}, commit {data["commit"]}; before: {data["before"]}',
        f'- command: `{data["command"]}`',
    ]
    return '\n'.join(text) + '\n'


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('one', nargs='*', help='speed WAY ROUNDS, or return WAY SEED STEPS: one run, printed as JSON')
    parser.add_argument('--before', type=Path, help='another checkout of zoo, built')
    parser.add_argument('--before-name', default='none', help='its commit')
    parser.add_argument('--seeds', type=int, default=5)
    parser.add_argument('--repeats', type=int, default=3, help='runs of each speed')
    parser.add_argument('--rounds', type=int, default=8)
    parser.add_argument('--steps', type=int, default=40_000, help='env steps of each run for the returns')
    parser.add_argument('--results', type=Path, default=RESULTS, help='folder of the two files')
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    if args.one:
        kind, way, *numbers = args.one
        measure = {'speed': measure_speed, 'return': measure_return}[kind]
        print(json.dumps(measure(way, *map(int, numbers))))
        return
    arms: dict[str, tuple[str, Path | None]] = {'together': ('together', None), 'ready': ('ready', None)}
    if args.before is not None:
        arms = {'before': ('together', args.before.resolve()), **arms}
    speed: dict[str, list[Any]] = {name: [] for name in arms}
    for _ in range(args.repeats):
        for name, (way, checkout) in arms.items():
            speed[name].append(child(['speed', way, args.rounds], checkout))
            log.info('%s: %s', name, speed[name][-1])
    returns: dict[str, list[Any]] = {way: [] for way in WAYS}
    for seed in range(args.seeds):
        for way, runs in returns.items():
            runs.append(child(['return', way, seed, args.steps]))
            log.info('%s, seed %d: %s', way, seed, runs[-1])
    data = {
        'machine': machine(),
        'versions': versions(),
        'date': today(),
        'commit': git_commit(),
        'before': args.before_name,
        'command': without_folders(' '.join(['python benchmarks/ready.py', *(sys.argv[1:] if argv is None else argv)])),
        'n_step': args.steps,
        'seeds': args.seeds,
        'speed': speed,
        'returns': returns,
    }
    write_json(args.results / 'ready.json', data)
    (args.results / 'ready.md').write_text(report(data), encoding='utf-8')


if __name__ == '__main__':
    main()
