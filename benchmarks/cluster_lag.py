"""Effect of old weights on the return, with and without a correction; writes benchmarks/results/cluster_lag.md.

    python benchmarks/cluster_lag.py [--only 'ppo, vtrace, 4 updates old' ...] [--seeds 5] [--workers 2] [--force] [--table]

A run has two runners in its own process (engine inline) and one thread. Inline runners would always use the newest weights, so
this engine collects each rollout with the weights of the time of its request: cluster.max_lag updates old, equal in every run.
`zoo train` refuses the configs without a correction; here that check is off. A run trains its whole budget, then its
last policy acts greedily for 20 episodes. Raw numbers stay in results/cluster_lag_raw/; --force repeats the runs.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from report import (
    REPO,
    RESULTS,
    git_commit,
    last_json_line,
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

RAW = RESULTS / 'cluster_lag_raw'
N_EPISODE, EVAL_SEED, GOAL = 20, 1_000_000, 475.0
PPO, IMPALA = 'cartpole_ppo', 'cartpole_impala'
ROWS: dict[str, tuple[str, int, str]] = {
    'ppo, new samples': (PPO, 0, 'none'),
    'ppo, none, 4 updates old': (PPO, 4, 'none'),
    'ppo, decoupled, 4 updates old': (PPO, 4, 'decoupled'),
    'ppo, vtrace, 4 updates old': (PPO, 4, 'vtrace'),
    'impala, new samples': (IMPALA, 0, 'vtrace'),
    'impala without its correction, 4 updates old': (IMPALA, 4, 'none'),
    'impala, 4 updates old': (IMPALA, 4, 'vtrace'),
    'ppo, none, 16 updates old': (PPO, 16, 'none'),
    'ppo, decoupled, 16 updates old': (PPO, 16, 'decoupled'),
    'ppo, vtrace, 16 updates old': (PPO, 16, 'vtrace'),
}
"""Label of a table row -> bundled config, cluster.max_lag, policy.learn.correction."""
COLUMNS = (
    'run',
    'age of the weights, mean (updates)',
    f'seeds at {GOAL:g} or more',
    'greedy return of the last policy, by seed',
    f'env steps to an evaluation of {GOAL:g}, by seed',
    'mean return of all evaluations',
    'env steps',
)

log = logging.getLogger('cluster_lag')


def train_one(label: str, seed: int) -> dict[str, Any]:
    """Trains one run in this process; returns its record."""
    import torch

    from zoo import serial_pipeline
    from zoo.run.config import resolve_config, without_derived_values
    from zoo.worker.evaluator import evaluate

    torch.set_num_threads(1)
    allow_old_samples()
    delay_weights()
    name, max_lag, correction = ROWS[label]
    overrides = ['cluster.runner_num=2', 'cluster.engine=inline', f'cluster.max_lag={max_lag}', 'logger.freq=1']
    overrides += [f'policy.learn.correction={correction}', 'policy.eval.stop_value=null', 'logger.console=off']
    resolved = resolve_config(name, overrides, seed=seed)
    result = serial_pipeline(without_derived_values(resolved.to_dict()), seed=seed)
    returns = np.asarray(evaluate(result.policy, resolved.env, N_EPISODE, EVAL_SEED + seed).returns)
    rows = metric_rows(result.run_dir)
    lags = [lag for _, lag in metric_curve(rows, 'collect/lag_mean')]
    return {
        'label': label,
        'seed': seed,
        'env_step': result.env_step,
        'lag_mean': float(np.mean(lags)) if lags else 0.0,
        'return_mean': float(returns.mean()),
        'returns': returns.tolist(),
        'curve': metric_curve(rows, 'eval/return_mean'),
        'commit': git_commit(),
        'date': today(),
        'machine': machine(),
        'versions': versions(),
        'resolved': resolved.to_dict(),
    }


def allow_old_samples() -> None:
    """Turns off the check that refuses cluster.max_lag above 1 without a correction."""
    from zoo.cluster import config

    def nothing(job: object) -> Iterator[str]:
        yield from ()

    config.age_problems = nothing


def delay_weights() -> None:
    """Makes inline runners collect a rollout with the weights that were newest when it was requested."""
    from zoo.cluster import engine

    class Delayed(engine.InlineEngine):
        """An inline engine that fixes the weights of a request at once: the newest, unless it names a version."""

        def ask(self, order: engine.Request) -> None:
            super().ask(order if order.version is not None else order._replace(version=max(self._weights)))

    engine.InlineEngine = Delayed  # type: ignore[misc]


def raw_path(label: str, seed: int) -> Path:
    """The file of a run's record."""
    return RAW / f'{label.replace(", ", "_").replace(" ", "-")}_seed{seed}.json'


def run_child(job: tuple[str, int]) -> bool:
    """Trains one run in its own process and stores its record; False if it failed."""
    label, seed = job
    command = [sys.executable, str(Path(__file__).resolve()), '--one', label, str(seed)]
    done = subprocess.run(command, cwd=REPO, env=one_thread_env(), capture_output=True, text=True, check=False)
    record = last_json_line(done.stdout)
    if done.returncode or record is None:
        log.error('%s seed %d failed (exit code %d):\n%s', label, seed, done.returncode, done.stderr[-2000:])
        return False
    write_json(raw_path(label, seed), record)
    log.info('%s seed %d: %.1f, lag %.2f', label, seed, record['return_mean'], record['lag_mean'])
    return True


def table_row(label: str, runs: list[dict[str, Any]]) -> list[str]:
    """Cells of one table row; runs: by seed."""
    first = [next((step for step, value in run['curve'] if value >= GOAL), None) for run in runs]
    finals = [run['return_mean'] for run in runs]
    return [
        label,
        f'{np.mean([run["lag_mean"] for run in runs]):.2f}',
        f'{sum(value >= GOAL for value in finals)} of {len(runs)}',
        ', '.join(f'{value:.0f}' for value in finals),
        ', '.join('never' if step is None else f'{step:,}' for step in first),
        f'{np.mean([value for run in runs for _, value in run["curve"]]):.0f}',
        f'{max(run["env_step"] for run in runs):,}',
    ]


def write_table() -> None:
    """Rebuilds cluster_lag.md from the raw files."""
    records = [json.loads(path.read_text()) for path in sorted(RAW.glob('*.json'))]
    groups = {label: sorted((r for r in records if r['label'] == label), key=lambda r: r['seed']) for label in ROWS}
    facts = {key: sorted({str(record[key]) for record in records}) for key in ('machine', 'date', 'commit')}
    text = [
        '# CartPole with old weights\n',
        'Two runners; every rollout is collected with the weights of `cluster.max_lag` updates ago. An update of cartpole_ppo is '
        '10 passes over 1,024 samples, one of cartpole_impala a single step on 160. The learning rate falls to 0 over the run. '
        'A run trains its whole budget; then its last policy, not the best, acts greedily for 20 episodes on seeds that training '
        'never saw.\n',
        table(COLUMNS, [table_row(label, runs) for label, runs in groups.items() if runs]),
        *(f'- {key}: {"; ".join(values)}' for key, values in facts.items()),
        f'- versions: {"; ".join(sorted({versions_line(record["versions"]) for record in records}))}',
        '- command: `python benchmarks/cluster_lag.py`; raw numbers and curves: `cluster_lag_raw/`',
    ]
    (RESULTS / 'cluster_lag.md').write_text('\n'.join(text) + '\n', encoding='utf-8')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', choices=ROWS, metavar='ROW', default=list(ROWS), help='rows to run')
    parser.add_argument('--seeds', type=int, default=5, help='seeds 0 .. N-1')
    parser.add_argument('--workers', type=int, default=2, help='processes at a time')
    parser.add_argument('--force', action='store_true', help='run again what is there')
    parser.add_argument('--table', action='store_true', help='only rebuild cluster_lag.md from the raw files')
    parser.add_argument('--one', nargs=2, metavar=('ROW', 'SEED'), help='one run; its record goes to stdout')
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    if args.one:
        sys.stdout.write('\n' + json.dumps(train_one(args.one[0], int(args.one[1]))) + '\n')
        return 0
    RAW.mkdir(parents=True, exist_ok=True)
    jobs = [(label, seed) for label in args.only for seed in range(args.seeds)]
    todo = [] if args.table else [job for job in jobs if args.force or not raw_path(*job).exists()]
    with ThreadPoolExecutor(args.workers) as pool:
        done = list(pool.map(run_child, todo))
    write_table()
    return 0 if all(done) else 1


if __name__ == '__main__':
    sys.path.insert(0, str(REPO))
    sys.exit(main())
