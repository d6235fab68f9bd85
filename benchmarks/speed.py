"""How fast zoo trains beside stable-baselines3 on matched work: writes benchmarks/results/speed.md and speed.json.

    python benchmarks/speed.py [--repeats 5] [--total-steps 100000] [--sb3-python PATH]

CartPole-v1, 8 envs x 128 steps, 4 epochs, minibatches of 256, two 64-64 tanh towers, one thread. The drivers in
peers/ run in turn, each in a process of its own; the clock covers the training loop only, from the first env step to
the last update. stable-baselines3 runs where it has an environment of its own: --sb3-python, else
$ZOO_BENCH_VENVS/sb3/bin/python, else ../venvs/sb3/bin/python beside the repository.
"""
from __future__ import annotations

import argparse
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import (
    REPO,
    RESULTS,
    git_commit,
    last_json_line,
    machine,
    one_thread_env,
    table,
    today,
    versions,
    versions_line,
    write_json,
)

PEERS = Path(__file__).resolve().parent / 'peers'
BUSY_CORES = 0.12  # other load above this makes a run doubtful; it is marked, never dropped
COLUMNS = ('library', 'env steps/s: median (min to max)', 'optimiser steps per 1,024 env steps', 'peak memory, MB',
           'start-up, s', 'greedy return after (mean of runs)', 'runs', 'other load, cores (max)')

log = logging.getLogger('speed')


def busy_seconds() -> float | None:
    """Seconds that all cores of the machine were busy since boot; None where the kernel does not say."""
    stat = Path('/proc/stat')
    if not stat.exists():
        return None
    user, nice, system, _, _, irq, softirq = (int(x) for x in stat.read_text().split('\n', 1)[0].split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf('SC_CLK_TCK')


def run_driver(label: str, command: Sequence[str]) -> dict[str, Any]:
    """One driver in a process of its own -> its record, with the load of others while it ran."""
    usage, busy, start = resource.getrusage(resource.RUSAGE_CHILDREN), busy_seconds(), time.time()
    done = subprocess.run([*command, '--started', str(start)], env=one_thread_env(), capture_output=True, text=True,
                          check=False)
    record = last_json_line(done.stdout)
    if done.returncode or record is None:
        raise RuntimeError(f'the {label} driver failed with exit code {done.returncode}:\n{done.stderr[-2000:]}')
    after, busy_after = resource.getrusage(resource.RUSAGE_CHILDREN), busy_seconds()
    if busy is not None and busy_after is not None:
        own = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
        record['other_load'] = round(max(0.0, (busy_after - busy - own) / (time.time() - start)), 3)
    log.info('%s: %.0f env steps/s, %.0f MB, return %.1f, other load %s', label, record['env_step_per_s'],
             record['peak_rss_mb'], record['final_return'], record.get('other_load'))
    return {'label': label, **record}


def first_update_s(limit_s: float = 60.0) -> float:
    """Seconds from the command `zoo train cartpole_ppo` to the first line of metrics that an update wrote."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        # logger.freq=1: the first update is written when it is done, not some rollouts later
        process = subprocess.Popen([sys.executable, '-m', 'zoo', 'train', 'cartpole_ppo', 'logger.freq=1'], cwd=folder,
                                   env=one_thread_env(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            while time.perf_counter() - start < limit_s and process.poll() is None:
                if any('"learn/' in path.read_text() for path in Path(folder).glob('runs/*/*/metrics.jsonl')):
                    return time.perf_counter() - start
                time.sleep(0.01)
        finally:
            process.kill()
            _, stderr = process.communicate()
    raise RuntimeError(f'`zoo train cartpole_ppo` ended or took {limit_s:.0f} s without an update:\n{stderr[-2000:]}')


def drivers(args: argparse.Namespace) -> dict[str, list[str]]:
    """Label -> command of everything that can be measured here."""
    work = ['--total-steps', str(args.total_steps), '--threads', str(args.threads)]
    zoo = [sys.executable, str(PEERS / 'run_zoo.py'), *work, '--vectorization']
    found = {'zoo (batched env)': [*zoo, 'batched'], 'zoo (sync envs)': [*zoo, 'sync']}
    if args.sb3_python.exists():
        found['stable-baselines3'] = [str(args.sb3_python), str(PEERS / 'run_sb3.py'), *work]
    else:
        log.warning('%s does not exist: stable-baselines3 is skipped; install it there or pass --sb3-python',
                    args.sb3_python)
    return found


def measure(commands: dict[str, list[str]], repeats: int) -> list[dict[str, Any]]:
    """All drivers in turn, `repeats` times; every second round runs backwards, so that drifts of the machine cancel."""
    runs = []
    for repeat in range(repeats):
        order = list(commands) if repeat % 2 == 0 else list(reversed(commands))
        runs += [run_driver(label, [*commands[label], '--seed', str(repeat)]) for label in order]
    return runs


def summary_row(label: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    speeds = [run['env_step_per_s'] for run in runs]
    loads = [run['other_load'] for run in runs if 'other_load' in run]
    load = f'{max(loads):.2f}' + (' (busy)' if max(loads) > BUSY_CORES else '') if loads else 'unknown'
    return [f'{label} {runs[0]["version"]}',
            f'{statistics.median(speeds):,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})',
            f'{statistics.median(run["train_iter_per_1024"] for run in runs):g}',
            f'{max(run["peak_rss_mb"] for run in runs):.0f}',
            f'{statistics.median(run["startup_s"] for run in runs):.1f}',
            f'{statistics.mean(run["final_return"] for run in runs):.0f}', str(len(runs)), load]


def write_results(runs: list[dict[str, Any]], first_updates: list[float], args: argparse.Namespace) -> None:
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(run['label'], []).append(run)
    median = {label: statistics.median(run['env_step_per_s'] for run in group) for label, group in groups.items()}
    sb3 = median.get('stable-baselines3')
    ratios = [f'- {label}: {speed / sb3:.2f} times stable-baselines3' for label, speed in median.items()
              if sb3 and label != 'stable-baselines3']
    command = f'python benchmarks/speed.py --repeats {args.repeats} --total-steps {args.total_steps}'
    facts = {'machine': machine(), 'versions': versions(), 'date': today(), 'commit': git_commit(), 'command': command}
    text = [
        '# Speed on matched work\n',
        'CartPole-v1, 8 envs x 128 steps, 4 epochs, minibatches of 256, two 64-64 tanh towers, '
        f'{args.total_steps:,} env steps, threads: {args.threads}. The clock covers the training loop only; '
        'evaluation is off. Runs in turn, each in its own process. Differences under 10% are ties.\n',
        table(COLUMNS, [summary_row(label, group) for label, group in groups.items()]),
        *(ratios or ['- no ratio: stable-baselines3 was not measured']),
        f'- `zoo train cartpole_ppo`, command to first update: {statistics.median(first_updates):.1f} s (median of '
        f'{len(first_updates)}, {min(first_updates):.1f} to {max(first_updates):.1f})',
        f'- machine: {facts["machine"]}', f'- versions: {versions_line(versions())}',
        f'- date: {facts["date"]}, commit {facts["commit"]}', f'- command: `{command}`; every run: `speed.json`',
    ]
    write_json(RESULTS / 'speed.json', {**facts, 'median_env_step_per_s': median, 'first_update_s': first_updates,
                                        'runs': runs})
    (RESULTS / 'speed.md').write_text('\n'.join(text) + '\n', encoding='utf-8')


def main() -> None:
    venvs = Path(os.environ.get('ZOO_BENCH_VENVS', REPO.parent / 'venvs'))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--total-steps', type=int, default=100_000)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--sb3-python', type=Path, default=venvs / 'sb3' / 'bin' / 'python')
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    runs = measure(drivers(args), args.repeats)
    write_results(runs, [first_update_s() for _ in range(min(args.repeats, 3))], args)


if __name__ == '__main__':
    main()
