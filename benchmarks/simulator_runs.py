"""Learning in simulators written in JAX: returns, env steps and time of runs on one core.

    python benchmarks/simulator_runs.py [--only gymnax ...] [--seeds 3] [--core 0] [--table]

A run is a process. Its line is `zoo train` with the overrides below, as docs/device_envs.md has it. The last policy
plays greedy episodes, 20 of CartPole and 16 of the others, from starts that training never had. Each run keeps its command, its
evaluations and its time in results/simulator_runs_raw; a run with a record is not repeated. Needs the packages gymnax, brax and
mujoco_playground (each for its rows) in the Python that runs this. Writes results/simulator_runs.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from report import (
    HERE,
    REPO,
    RESULTS,
    git_commit,
    machine,
    metric_curve,
    metric_rows,
    one_thread_env,
    table,
    today,
    versions,
    versions_line,
    write_json,
)

RAW = RESULTS / 'simulator_runs_raw'
RUNS: dict[str, list[str]] = {
    'gymnax': [
        'gymnax:CartPole-v1',
        'env.collector_env_num=64',
        'policy.collect.n_step=64',
        'policy.learn.batch_size=512',
        'policy.learn.epoch_per_collect=4',
        'max_env_step=100_000',
        'policy.eval.eval_freq=20_000',
        'policy.eval.n_episode=20',
    ],
    'brax': [
        'brax:ant',
        'env.kwargs.backend=spring',
        'env.collector_env_num=256',
        'policy.collect.n_step=32',
        'policy.collect.discount_factor=0.97',
        'policy.learn.batch_size=1024',
        'policy.learn.epoch_per_collect=4',
        'policy.learn.learning_rate=1e-3',
        'policy.learn.value_norm=true',
        'policy.model.log_std_init=-0.5',
        'max_env_step=600_000',
        'policy.eval.eval_freq=100_000',
        'policy.eval.n_episode=16',
    ],
    'mujoco_playground': [
        'mujoco_playground:CartpoleBalance',
        'env.collector_env_num=128',
        'policy.collect.n_step=32',
        'policy.learn.batch_size=512',
        'policy.learn.epoch_per_collect=4',
        'policy.learn.value_norm=true',
        'max_env_step=400_000',
        'policy.eval.eval_freq=100_000',
        'policy.eval.n_episode=16',
    ],
}
"""Package -> what follows `zoo train --env`."""


def train(name: str, seed: int, core: int, folder: str) -> dict[str, Any]:
    """Trains a row of RUNS, and returns its record. Args: core: that the process is bound to; folder: for its run folder."""
    words = ['train', '--env', *RUNS[name], f'seed={seed}']
    quiet = ['logger.console=off', 'logger.tensorboard=false', f'logger.root={folder}']
    env = {**one_thread_env(REPO, HERE), 'JAX_COMPILATION_CACHE_DIR': f'{folder}/compiled'}
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-m', 'zoo', *words, *quiet],
        capture_output=True,
        text=True,
        env=env,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    if done.returncode:
        raise SystemExit(f'{name}: {done.stderr[-2000:]}')
    runs = [path.parent for path in Path(folder).rglob('metrics.jsonl')]
    rows = metric_rows(max(runs, key=lambda path: path.stat().st_mtime))
    walls = dict(metric_curve(rows, 'wall_s'))
    curve = metric_curve(rows, 'eval/return_mean')
    return {
        'command': ' '.join(('zoo', *words)),
        'seed': seed,
        'evaluations': [{'env_step': step, 'wall_s': walls[step], 'return_mean': mean} for step, mean in curve],
        'first_line_s': rows[0]['wall_s'],  # the compiler's time and a rollout
        'machine': machine(),
        'versions': versions(('torch', 'numpy', 'jax', 'gymnax', 'brax', 'playground', 'mujoco')),
        'commit': git_commit(('zoo',)),
        'date': today(),
    }


def write_table() -> None:
    """Writes the page from the records."""
    rows = []
    found: dict[str, str] = {}
    for name, words in RUNS.items():
        records = [json.loads(path.read_text()) for path in sorted(RAW.glob(f'{name}-*.json'))]
        if not records:
            continue
        found.update(records[-1]['versions'])
        firsts, lasts = ([record['evaluations'][at] for record in records] for at in (0, -1))
        rows.append(
            [
                words[0],
                len(records),
                f'{lasts[0]["env_step"]:,}',
                ', '.join(f'{row["return_mean"]:,.0f}' for row in firsts),
                ', '.join(f'{row["return_mean"]:,.0f}' for row in lasts),
                f'{statistics.median(row["wall_s"] for row in lasts):,.0f}',
            ]
        )
    columns = ['env', 'seeds', 'env steps', 'return of the first evaluation', 'return of the last policy', 'seconds']
    text = (
        '# Learning in simulators written in JAX\n\n'
        'Each run on one core, next to other work; seconds are the median, with the compiler and the evaluations. `python benchmarks/simulator_runs.py` '
        'has the settings, simulator_runs_raw the commands and all evaluations.\n\n'
        f'{today()}, {machine()}; {versions_line(found)}.\n\n' + table(columns, rows)
    )
    (RESULTS / 'simulator_runs.md').write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--only', nargs='+', choices=RUNS, default=list(RUNS))
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--core', type=int, default=0, help='the only core that a run may use')
    parser.add_argument('--table', action='store_true', help='only write the page')
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            for seed in range(1, args.seeds + 1):
                path = RAW / f'{name}-{seed}.json'
                if args.table or path.exists():
                    continue
                record = train(name, seed, args.core, folder)
                write_json(path, record)
                print(name, seed, record['evaluations'][-1], flush=True)
    write_table()


if __name__ == '__main__':
    main()
