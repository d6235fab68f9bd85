"""What the bundled configs learn: trains each with several seeds and writes benchmarks/results/learning.md.

    python benchmarks/learning.py [--only cartpole_ppo ...] [--repeats 5] [--jobs 2] [--quick] [--force] [--table]

A run is one process with one thread: it trains the whole budget (no early stop), then evaluates the last policy, not
the best, greedily over 20 episodes whose seeds no training env ever saw. Its raw numbers stay in results/learning_raw/;
a run with the same config is not repeated unless --force. --quick trains one seed for a tenth of the env steps.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from report import (
    IN_CHECKOUT,
    REPO,
    RESULTS,
    git_commit,
    holds,
    last_json_line,
    last_words,
    machine,
    metric_curve,
    metric_rows,
    one_thread_env,
    results_folder,
    settings,
    table,
    today,
    versions,
    versions_line,
    write_json,
)

RAW = RESULTS / 'learning_raw'
N_EPISODE = 20
EVAL_SEED = 1_000_000  # root of the final evaluation's seed streams; training uses roots 0 .. n_seed - 1
COLUMNS = (
    'config',
    'env',
    'target',
    'seeds passed',
    'greedy return of each seed (mean +- std of 20 episodes)',
    'interquartile mean [95% interval]',
    'env steps',
    'wall time of a run',
)

log = logging.getLogger('learning')


class Target(NamedTuple):
    """The mean return a seed has to reach, and how many of how many seeds have to; None: measured only."""

    value: float | None
    n_seed: int
    n_pass: int
    env_step: int


TARGETS = {
    'cartpole_ppo': Target(475, 5, 5, 100_000),
    'acrobot_ppo': Target(-90, 3, 3, 500_000),
    'pendulum_ppo': Target(-200, 3, 3, 200_000),
    'mountaincar_continuous_ppo': Target(None, 3, 0, 300_000),
    'lunarlander_ppo': Target(200, 3, 2, 1_000_000),
    'lunarlander_continuous_ppo': Target(None, 3, 0, 1_000_000),
    'halfcheetah_ppo': Target(2500, 3, 2, 1_000_000),
    'hopper_ppo': Target(2000, 3, 2, 1_000_000),
    'walker2d_ppo': Target(None, 3, 0, 1_000_000),
    'bipedalwalker_ppo': Target(290, 3, 2, 5_000_000),
    'swimmer_ppo': Target(None, 3, 0, 1_000_000),
    'ant_ppo': Target(None, 3, 0, 1_000_000),
    'humanoid_ppo': Target(None, 3, 0, 1_000_000),
    'taxi_ppo': Target(7, 5, 5, 500_000),
    'pendulum_bins_ppo': Target(-200, 3, 3, 200_000),
    'remember_cue_ppo': Target(0.95, 3, 3, 100_000),
    'remember_cue_ppo policy.model.recurrent.cell=mingru': Target(0.95, 3, 3, 100_000),
    'remember_cue_ppo policy.model.recurrent=null policy.learn.sequence.len=16': Target(None, 3, 0, 100_000),
    'cartpole_no_velocity_ppo policy.model.recurrent=null': Target(None, 3, 0, 300_000),
    'cartpole_no_velocity_ppo': Target(450, 3, 3, 300_000),
    'cartpole_no_velocity_ppg': Target(450, 3, 3, 300_000),
    'cartpole_no_velocity_window_ppo': Target(450, 5, 5, 200_000),
    'minigrid_doorkey_6x6_ppo': Target(0.9, 3, 3, 300_000),
    'minigrid_memory_s7_ppo': Target(0.9, 3, 3, 500_000),
    'minigrid_memory_s7_ppo policy.model.recurrent=null policy.learn.sequence.len=16': Target(None, 3, 0, 500_000),
    'cartpole_ppg': Target(475, 5, 5, 100_000),
    'cartpole_ppo_ewma': Target(None, 5, 0, 100_000),
    'cartpole_ppg_ewma': Target(None, 5, 0, 100_000),
    'acrobot_ppg': Target(None, 3, 0, 500_000),
    'pendulum_ppg': Target(-250, 3, 2, 300_000),
    'lunarlander_ppg': Target(200, 3, 2, 1_000_000),
    'cartpole_ppo policy.learn.precision=bf16': Target(475, 3, 3, 100_000),
    'cartpole_ppo policy.learn.penalties=[{"type":"kl","weight":0.2,"target":0.01}]': Target(475, 5, 4, 100_000),
    'cartpole_a2c': Target(475, 3, 3, 100_000),
    'cartpole_impala': Target(475, 3, 3, 150_000),
    'cartpole_pg': Target(475, 3, 3, 100_000),
    'cartpole_dqn': Target(475, 3, 3, 50_000),
    'cartpole_ppo_offpolicy': Target(475, 5, 4, 100_000),
    'cartpole_ppg_offpolicy': Target(475, 5, 4, 100_000),
}


PARTS = {
    name: f'return {target.value:g} in {target.env_step:,} env steps' if target.value is not None else 'no target'
    for name, target in TARGETS.items()
}
"""What --only chooses from, with the target of each."""


def bench_config(name: str, scale: float = 1.0) -> dict[str, Any]:
    """The bundled config without its early stop, with the overrides that follow its name; scale: of its env steps."""
    from zoo.run.config import resolve_config
    from zoo.run.config_check import without_derived_values

    bundled, *overrides = name.split()
    resolved = resolve_config(bundled, [*overrides, 'policy.eval.stop_value=null'])
    config = without_derived_values(resolved.to_dict())
    if scale != 1.0:
        config['max_env_step'] = max(round(config['max_env_step'] * scale), 1)
    return config


def train_one(name: str, seed: int, scale: float = 1.0) -> dict[str, Any]:
    """One run, in this process: trains, evaluates the last policy, returns the raw record."""
    import torch

    from zoo import serial_pipeline
    from zoo.run.config import resolve_config
    from zoo.worker.evaluator import evaluate

    torch.set_num_threads(1)
    config = bench_config(name, scale)
    resolved = resolve_config(config, seed=seed)
    result = serial_pipeline(config, seed=seed)
    returns = np.asarray(evaluate(result.policy, resolved.env, N_EPISODE, EVAL_SEED + seed).returns)
    return {
        'config': name,
        'env': resolved.env.game or resolved.env.id,
        'seed': seed,
        'env_step': result.env_step,
        'wall_s': round(result.wall_s, 1),
        'return_mean': float(returns.mean()),
        'return_std': float(returns.std()),
        'returns': returns.tolist(),
        'curve': metric_curve(metric_rows(result.run_dir), 'eval/return_mean'),
        'commit': git_commit(),
        'date': today(),
        'machine': machine(),
        'versions': versions(),
        'resolved': resolved.to_dict(),
    }


def raw_path(name: str, seed: int, folder: Path = RAW) -> Path:
    """The file of a run's record; `folder` has those of one benchmark."""
    return folder / f'{re.sub(r"[^a-zA-Z0-9_.=-]+", "-", name.replace(" ", "__"))}_seed{seed}.json'


def is_done(name: str, seed: int, folder: Path = RAW, scale: float = 1.0) -> bool:
    """Whether there is a record of a run with this very config."""
    path = raw_path(name, seed, folder)
    if not path.exists():
        return False
    from zoo.run.config import resolve_config

    resolved = json.loads(path.read_text())['resolved']
    learn = resolved['policy']['learn']
    if 'aux_freq' in learn and learn['value_weight'] == 0.5:  # of ppg it had no effect then
        learn['value_weight'] = None
    recorded = settings(resolved)
    return holds(resolve_config(bench_config(name, scale), seed=seed).to_dict(), recorded)


def run_child(job: tuple[str, int], folder: Path = RAW, scale: float = 1.0) -> bool:
    """Trains one (config, seed) in a process of its own and stores its record; False if it failed.

    Run folders are made in runs/ of the checkout; where zoo is an installed wheel, in runs/ beside the results.
    """
    name, seed = job
    command = [sys.executable, str(Path(__file__).resolve()), '--one', name, str(seed), '--scale', str(scale)]
    cwd = REPO if IN_CHECKOUT else folder.parent
    done = subprocess.run(command, cwd=cwd, env=one_thread_env(), capture_output=True, text=True, check=False)
    record = last_json_line(done.stdout)
    if done.returncode or record is None:
        log.error('%s seed %d failed (exit code %d): %s', name, seed, done.returncode, last_words(done.stderr))
        log.debug('%s', done.stderr)
        return False
    write_json(raw_path(name, seed, folder), record)
    log.info(
        '%s seed %d: %.1f +- %.1f after %d env steps in %.0f s',
        name,
        seed,
        record['return_mean'],
        record['return_std'],
        record['env_step'],
        record['wall_s'],
    )
    return True


def table_row(name: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    from zoo.tools.results.statistics import interval, iqm

    target = TARGETS[name]
    means = np.array([run['return_mean'] for run in runs])
    low, high = interval(means)
    passed = '-'
    if target.value is not None:
        good = [run['return_mean'] >= target.value and run['env_step'] <= target.env_step for run in runs]
        passed = f'{sum(good)} of {len(runs)} (wanted {target.n_pass} of {target.n_seed})'
    each = ', '.join(f'{run["return_mean"]:.1f} +- {run["return_std"]:.1f}' for run in runs)
    steps, walls = [run['env_step'] for run in runs], [run['wall_s'] for run in runs]
    aim = f'>= {target.value:g} in {target.env_step:,}' if target.value is not None else '-'
    return [
        name,
        runs[0]['env'],
        aim,
        passed,
        each,
        f'{iqm(means):.1f} [{low:.1f}, {high:.1f}]',
        f'{max(steps):,}',
        f'{min(walls):.0f} to {max(walls):.0f} s',
    ]


def write_table(results: Path, program: str, scale: float = 1.0) -> None:
    """Rebuilds learning.md from the raw files."""
    raw = results / RAW.name
    records = [json.loads(path.read_text()) for path in sorted(raw.glob('*.json'))]
    groups = {name: sorted((r for r in records if r['config'] == name), key=lambda r: r['seed']) for name in TARGETS}
    groups = {name: runs for name, runs in groups.items() if runs}
    stale = [
        f'{r["config"]} seed {r["seed"]}'
        for runs in groups.values()
        for r in runs
        if not is_done(r['config'], r['seed'], raw, scale)
    ]
    facts = {key: sorted({str(r[key]) for r in records}) for key in ('machine', 'date', 'commit')}
    used = sorted({versions_line(r['versions']) for r in records})
    text = [
        '# What the bundled configs learn\n',
        *([f'**A look: with {scale:g} of the env steps, too few for most targets.**\n'] if scale < 1 else []),
        'A run trains its whole budget in one process with one thread. Then the last policy (not the best) acts '
        f'greedily for {N_EPISODE} episodes on seeds that training never saw. Interquartile mean over seeds; the '
        'interval is a stratified bootstrap over seeds: a rough one, with so few. Wall times include the evaluations '
        'of the curve, with other runs on the same machine.\n',
        table(COLUMNS, [table_row(name, runs) for name, runs in groups.items()]),
        *(f'- {key}: {"; ".join(values)}' for key, values in facts.items()),
        f'- versions: {"; ".join(used)}',
        f'- command: `{program}`; raw numbers and curves: `learning_raw/`',
        *([f'- measured with an older config, or other env steps: {", ".join(stale)}'] if stale else []),
    ]
    (results / 'learning.md').write_text('\n'.join(text) + '\n', encoding='utf-8')
    log.info('written: %s', results / 'learning.md')


def parse_args(argv: Sequence[str], program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', choices=PARTS, default=list(PARTS), metavar='NAME', help=', '.join(PARTS))
    parser.add_argument(
        '--repeats', '--seeds', type=int, metavar='N', help='seeds 0 .. N-1; default: as many as the target asks for'
    )
    parser.add_argument('--jobs', '--workers', type=int, default=2, metavar='N', help='processes at a time')
    parser.add_argument('--scale', type=float, default=1.0, help='factor of the env steps of every run')
    parser.add_argument('-o', '--results', type=Path, metavar='FOLDER', help='of learning.md and learning_raw/')
    parser.add_argument(
        '--quick', action='store_true', help='a look: one seed, a tenth; into the temporary folder unless --results'
    )
    parser.add_argument('--force', action='store_true', help='run again what is there')
    parser.add_argument('--table', action='store_true', help='only rebuild learning.md from the raw files')
    parser.add_argument('--one', nargs=2, metavar=('CONFIG', 'SEED'), help='one run; its record goes to stdout')
    args = parser.parse_args(argv)
    args.results = results_folder(args.results, args.quick)
    if args.quick:
        args.repeats, args.scale = args.repeats or 1, min(args.scale, 0.1)
    return args


def main(argv: Sequence[str] | None = None, program: str = 'python benchmarks/learning.py') -> int:
    """Trains and writes; 1 if a run failed. program: what the command is called in the results."""
    args = parse_args(sys.argv[1:] if argv is None else argv, program)
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    if args.one:
        sys.stdout.write('\n' + json.dumps(train_one(args.one[0], int(args.one[1]), args.scale)) + '\n')
        return 0
    raw = args.results / RAW.name
    raw.mkdir(parents=True, exist_ok=True)
    jobs = [(name, seed) for name in args.only for seed in range(args.repeats or TARGETS[name].n_seed)]
    todo = [] if args.table else [job for job in jobs if args.force or not is_done(*job, raw, args.scale)]
    log.info('%d runs to do, %d are there, %d at a time', len(todo), len(jobs) - len(todo), args.jobs)
    with ThreadPoolExecutor(args.jobs) as pool:
        done = list(pool.map(lambda job: run_child(job, raw, args.scale), todo))
    if any(raw.glob('*.json')):
        write_table(args.results, program, args.scale)
    return 0 if all(done) else 1


if __name__ == '__main__':
    if IN_CHECKOUT:
        sys.path.insert(0, str(REPO))
    sys.exit(main())
