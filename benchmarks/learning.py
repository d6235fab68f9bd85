"""Returns that the bundled configs reach, next to published ones; writes benchmarks/results/learning.md.

    python benchmarks/learning.py [--only cartpole_ppo ...] [--seeds N] [--jobs 2] [--quick] [--force] [--table]
    python benchmarks/learning.py --tune 'lunarlander_ppo policy.learn.value_norm=true' ... [--seeds 5]

A run is one process with one thread. It trains the whole budget (no early stop); then the last policy, not the best, plays
100 episodes (MuJoCo: 20, Pendulum: 500, Taxi: 2,000) greedily and as many with drawn actions. All seeds of a run play with the
same seeds of the env, which training never had: from the same starts, unless the env draws numbers in its steps, too, as
LunarLander and Taxi do. Raw numbers are kept in results/learning_raw/. A run with a record there is not
repeated, so an interrupted table continues. All rows of a table are of one commit of the training code (CODE). Each row is of
the bundled config as it is now; if a config changes, only its rows are trained again.
--tune trains a config with chosen overrides on seeds 100, 101, ..., which no row of the table has, and writes
results/learning_tuning.md, with every setting that was ever tried. --quick trains one seed for a tenth of the env steps.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import logging
import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from learning_rows import ROWS, TUNING_SEED, Row

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
TUNING = RESULTS / 'learning_tuning_raw'
EVAL_SEED = 1_000_000  # root of the final evaluation's seed streams; training uses much smaller roots
CODE = ('zoo', ':!zoo/tools', 'setup.py', 'constraints.txt', 'benchmarks/learning.py')
"""Git pathspecs of the code that trains and evaluates."""
COLUMNS = (
    'config',
    'env',
    'env steps',
    'published',
    'verdict',
    'greedy: interquartile mean [95% interval]',
    'target',
    'greedy return of each seed',
    'drawn actions',
    'on the way',
    'steps to what is published',
    'wall time of a run',
)

OF_TARGET = {'ahead': 'reached', 'level': 'level', 'behind': 'missed'}
"""Name of a `verdict` about a target."""

log = logging.getLogger('learning')

PARTS = {
    name: f'return {row.target:g} is the target' if row.target is not None else 'no target'
    for name, row in ROWS.items()
}
"""Choices of --only, with the target of each."""


def bench_config(name: str, scale: float = 1.0) -> dict[str, Any]:
    """The bundled config without early stop. name: its name and overrides; scale: factor of its env steps.

    A word --import=FILE in the name imports a file of the checkout first, as `zoo train` does.
    """
    from zoo.config.source import import_module_or_file
    from zoo.run.config import resolve_config, without_derived_values

    bundled, *words = name.split()
    overrides = [word for word in words if not word.startswith('--import=')]
    for word in words:
        if word not in overrides:
            import_module_or_file(str(REPO / word.partition('=')[2]))
    resolved = resolve_config(bundled, [*overrides, 'policy.eval.stop_value=null'])
    config = without_derived_values(resolved.to_dict())
    if scale != 1.0:
        config['max_env_step'] = max(round(config['max_env_step'] * scale), 1)
    return config


def train_one(name: str, seed: int, scale: float = 1.0) -> dict[str, Any]:
    """Trains one run in this process, lets its last policy play, and returns the raw record."""
    import torch

    from zoo import serial_pipeline
    from zoo.run.config import resolve_config
    from zoo.worker.evaluator import evaluate

    torch.set_num_threads(1)
    config = bench_config(name, scale)
    resolved = resolve_config(config, seed=seed)
    result = serial_pipeline(config, seed=seed)
    n_episode = row_of(name).n_episode

    def returns(deterministic: bool) -> list[float]:
        played = evaluate(result.policy, resolved.env, n_episode, EVAL_SEED, deterministic=deterministic)
        rounded = [float(f'{value:.6g}') for value in played.returns]
        return [int(value) if value.is_integer() else value for value in rounded]  # most of a record is returns

    greedy = returns(deterministic=True)
    drawn = returns(deterministic=False) if result.policy.eval_mode.sample else None
    return {
        'config': name,
        'env': resolved.env.game or resolved.env.id,
        'seed': seed,
        'env_step': result.env_step,
        'wall_s': round(result.wall_s, 1),
        'return_mean': float(np.mean(greedy)),
        'return_std': float(np.std(greedy)),
        'returns': greedy,
        'drawn_mean': None if drawn is None else float(np.mean(drawn)),
        'drawn': drawn,
        'curve': metric_curve(metric_rows(result.run_dir), 'eval/return_mean'),
        'commit': git_commit(CODE),
        'date': today(),
        'machine': machine(),
        'versions': versions(),
        'resolved': resolved.to_dict(),
    }


def row_of(name: str) -> Row:
    """The row of a name; for a name without a row, as in tuning, the first row of its bundled config."""
    bundled = name.split()[0]
    return ROWS.get(name) or next((row for key, row in ROWS.items() if key.split()[0] == bundled), Row())


def raw_path(name: str, seed: int, folder: Path = RAW) -> Path:
    """The file of a run's record; `folder` has the records of one benchmark."""
    words = re.sub(r'[^a-zA-Z0-9_.=-]+', '-', name.replace(' ', '__'))
    if len(words) > 200:  # a file's name has at most 255 bytes
        words = f'{words[:180]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}'
    return folder / f'{words}_seed{seed}.json'


def is_done(name: str, seed: int, folder: Path = RAW, scale: float = 1.0, commit: str | None = None) -> bool:
    """Whether a run with this config has a record; commit: it must also be of this code and have its row's n_episode."""
    path = raw_path(name, seed, folder)
    if not path.exists():
        return False
    record = json.loads(path.read_text())
    if commit is not None and (commit, row_of(name).n_episode) != (record['commit'], len(record['returns'])):
        return False
    resolved = record['resolved']
    learn = resolved['policy']['learn']
    if 'aux_freq' in learn and learn['value_weight'] == 0.5:  # older records of ppg: the value had no effect then
        learn['value_weight'] = None
    recorded = settings(resolved)
    return holds({**_resolved(name, scale), 'seed': seed}, recorded)


@functools.cache
def _resolved(name: str, scale: float) -> dict[str, Any]:
    """The config of a row, of which only the key `seed` differs between its records."""
    from zoo.run.config import resolve_config

    return resolve_config(bench_config(name, scale)).to_dict()


def run_child(job: tuple[str, int], folder: Path = RAW, scale: float = 1.0) -> bool:
    """Trains one (config, seed) in its own process and stores its record; False if it failed.

    Run folders are made in runs/ of the checkout; if zoo is an installed wheel, in runs/ next to the results.
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
    write_json(raw_path(name, seed, folder), record, indent=None)
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


def verdict(low: float, high: float, wanted: float) -> str:
    """'ahead' if the whole interval lies above `wanted`, 'level' if `wanted` lies in it, else 'behind'."""
    rounding = 1e-9 * abs(wanted)  # means of equal returns may differ in their last digit
    return 'ahead' if low > wanted + rounding else 'level' if high >= wanted - rounding else 'behind'


def steps_to(runs: Sequence[dict[str, Any]], value: float) -> str:
    """Median over seeds of the env steps until an evaluation first reached `value`."""
    first = [next((step for step, mean in run['curve'] if mean >= value), math.inf) for run in runs]
    middle = float(np.median(first))
    if math.isfinite(middle):
        return f'{middle:,.0f}'
    return f'{sum(map(math.isfinite, first))} of {len(runs)} seeds get there'


def table_row(name: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    from zoo.tools.results.statistics import center, interval
    from zoo.tools.results.table import number_text

    row = row_of(name)

    def summary(values: Sequence[float]) -> tuple[str, float, float]:
        low, high = (float(end) for end in interval(values))
        return f'{number_text(float(center(values)))} [{number_text(low)}, {number_text(high)}]', low, high

    means = [run['return_mean'] for run in runs]
    greedy, low, high = summary(means)
    drawn = [run['drawn_mean'] for run in runs]
    steps, walls = [run['env_step'] for run in runs], [run['wall_s'] for run in runs]
    anchor = row.anchor
    return [
        f'`{name}`',
        runs[0]['env'],
        f'{max(steps):,}',
        '-' if anchor is None else f'{anchor.value:g}: {anchor.source}',
        '-' if anchor is None else verdict(low, high, anchor.value),
        greedy,
        '-' if row.target is None else f'{row.target:g}: {OF_TARGET[verdict(low, high, row.target)]}',
        ', '.join(map(number_text, means)),
        '-' if None in drawn else summary(drawn)[0],
        summary([float(np.mean([mean for _, mean in run['curve']])) for run in runs])[0],
        '-' if anchor is None else steps_to(runs, anchor.value),
        f'{min(walls):.0f} to {max(walls):.0f} s',
    ]


def records_of(folder: Path) -> dict[str, dict[str, Any]]:
    """{file name: record} of a folder."""
    return {path.name: json.loads(path.read_text()) for path in sorted(folder.glob('*.json'))}


def refuse_mixed(records: Sequence[Mapping[str, Any]], *own: str) -> None:
    """Raises SystemExit if a table would mix commits or has a run on a tuning seed. own: commits of the runs to come."""
    commits = sorted({*own, *(record['commit'] for record in records)})
    if len(commits) > 1:
        raise SystemExit(
            f'learning: the records are of the commits {", ".join(commits)}, but a table is of one: check out one of them, or '
            'remove the files of the others'
        )
    tuned = sorted({record['seed'] for record in records if record['seed'] >= TUNING_SEED})
    if tuned:
        raise SystemExit(
            f'learning: the records have seed {tuned[0]}, but seeds from {TUNING_SEED} on are for tuning and no row of the '
            'table: remove those files'
        )


def write_table(results: Path, program: str, scale: float = 1.0) -> None:
    """Rebuilds learning.md from the raw files. Raises: SystemExit, see `refuse_mixed`."""
    raw = results / RAW.name
    records = list(records_of(raw).values())
    refuse_mixed(records)
    groups = {name: sorted((r for r in records if r['config'] == name), key=lambda r: r['seed']) for name in ROWS}
    groups = {name: runs for name, runs in groups.items() if runs}
    stale = [
        f'{r["config"]} seed {r["seed"]}'
        for runs in groups.values()
        for r in runs
        if not is_done(r['config'], r['seed'], raw, scale)
    ]
    rows = [table_row(name, runs) for name, runs in groups.items()]
    said = [row[4] for row in rows if row[4] != '-']
    text = [
        '# What the bundled configs learn\n',
        *([f'**A look: with {scale:g} of the env steps, too few for most targets.**\n'] if scale < 1 else []),
        'A run trains its whole budget in one process with one thread. Then the last policy (not the best) plays 100 episodes '
        '(MuJoCo: 20, Pendulum: 500, Taxi: 2,000) greedily, and as many with drawn actions, with the same seeds of the env for '
        'all seeds of a run, which training never had (the same starts, unless the env draws numbers in its steps, too, as '
        'LunarLander and Taxi do). Means over seeds are interquartile, with a bootstrap interval of 95% over seeds. '
        '*ahead*: the interval lies above the published number; *level*: the number lies in it; *behind* else. *on the way* is '
        'the mean of all evaluations during training. Wall times include these, with other runs on the same machine.\n',
        f'Of {len(said)} rows with a published number, {said.count("ahead")} are ahead, {said.count("level")} level, '
        f'{said.count("behind")} behind.\n',
        table(COLUMNS, rows),
        *facts(records),
        f"- command: `{program}`; one row's seed 0 again: `{program} --only CONFIG --seeds 1 -o again`; raw numbers and "
        'curves: `learning_raw/`; settings that were tried: `learning_tuning.md`',
        *([f'- measured with an older config, or other env steps: {", ".join(stale)}'] if stale else []),
    ]
    write(results / 'learning.md', text)


def write_tuning(results: Path, program: str) -> None:
    """Rebuilds learning_tuning.md: all settings that were tried, the best of each env first, failures included."""
    from zoo.tools.results.statistics import center
    from zoo.tools.results.table import number_text

    records = records_of(results / TUNING.name).values()
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record['env'], record['config'], record['commit']), []).append(record)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], -float(center([r['return_mean'] for r in item[1]]))))
    rows = [
        (
            env,
            f'`{name}`',
            f'{max(run["env_step"] for run in runs):,}',
            number_text(float(center([run['return_mean'] for run in runs]))),
            ', '.join(
                f'{number_text(run["return_mean"])} ({run["seed"]})'
                for run in sorted(runs, key=lambda run: run['seed'])
            ),
            commit,
        )
        for (env, name, commit), runs in ordered
    ]
    text = [
        '# Settings that were tried\n',
        'Greedy return of the last policy on seeds for tuning, which no row of the table of `benchmarks/learning.py` has: '
        "interquartile mean, and each seed's mean (seed). Best first on each env; what did not help stands here too.\n",
        table(('env', 'config and overrides', 'env steps', 'mean', 'each seed', 'commit'), rows),
        f"- command: `{program} --tune 'CONFIG KEY=VALUE ...'`; raw numbers and curves: `{TUNING.name}/`",
    ]
    write(results / 'learning_tuning.md', text)


def facts(records: Sequence[dict[str, Any]]) -> list[str]:
    """Lines with the machine, dates, commit and versions of all records."""
    found = {key: sorted({str(record[key]) for record in records}) for key in ('machine', 'date', 'commit')}
    used = sorted({versions_line(record['versions']) for record in records})
    return [*(f'- {key}: {"; ".join(values)}' for key, values in found.items()), f'- versions: {"; ".join(used)}']


def write(path: Path, text: Sequence[str]) -> None:
    path.write_text('\n'.join(text) + '\n', encoding='utf-8')
    log.info('written: %s', path)


def parse_args(argv: Sequence[str], program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', choices=PARTS, default=list(PARTS), metavar='NAME', help=', '.join(PARTS))
    parser.add_argument(
        '--repeats',
        '--seeds',
        type=int,
        metavar='N',
        help='seeds 0 .. N-1; default: as many as the row asks for, mostly 10',
    )
    parser.add_argument('--jobs', '--workers', type=int, default=2, metavar='N', help='processes at a time')
    parser.add_argument('--scale', type=float, default=1.0, help='factor of the env steps of every run')
    parser.add_argument('-o', '--results', type=Path, metavar='FOLDER', help='of learning.md and learning_raw/')
    parser.add_argument(
        '--quick', action='store_true', help='a look: one seed, a tenth; into the temporary folder unless --results'
    )
    parser.add_argument('--force', action='store_true', help='run again what is there')
    parser.add_argument('--table', action='store_true', help='only rebuild learning.md from the raw files')
    parser.add_argument(
        '--tune',
        nargs='+',
        metavar='NAME',
        help=f"'CONFIG KEY=VALUE ...': try settings on seeds {TUNING_SEED}, {TUNING_SEED + 1}, ... (5 unless --seeds)",
    )
    parser.add_argument('--one', nargs=2, metavar=('CONFIG', 'SEED'), help='one run; its record goes to stdout')
    args = parser.parse_args(argv)
    args.results = results_folder(args.results, args.quick)
    if args.quick:
        args.repeats, args.scale = args.repeats or 1, min(args.scale, 0.1)
    return args


def main(argv: Sequence[str] | None = None, program: str = 'python benchmarks/learning.py') -> int:
    """Trains and writes; 1 if a run failed. program: the command's name in the results."""
    args = parse_args(sys.argv[1:] if argv is None else argv, program)
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    if args.one:
        sys.stdout.write('\n' + json.dumps(train_one(args.one[0], int(args.one[1]), args.scale)) + '\n')
        return 0
    raw = args.results / (TUNING if args.tune else RAW).name
    raw.mkdir(parents=True, exist_ok=True)
    if args.tune:
        jobs = [(name, TUNING_SEED + k) for name in args.tune for k in range(args.repeats or 5)]
    else:
        jobs = [(name, seed) for name in args.only for seed in range(args.repeats or ROWS[name].n_seed)]
    commit = git_commit(CODE)
    todo = [] if args.table else [job for job in jobs if args.force or not is_done(*job, raw, args.scale, commit)]
    if commit.endswith('+') and todo and args.results == RESULTS:
        raise SystemExit(
            'learning: the code differs from its commit, so nobody could repeat these runs: commit first, or write elsewhere '
            'with --results FOLDER'
        )
    if todo and not args.tune:  # checked now, not after hours of training
        again = {raw_path(*job, raw).name for job in jobs}
        refuse_mixed([record for file, record in records_of(raw).items() if file not in again], commit)
    log.info('%d runs to do, %d are there, %d at a time', len(todo), len(jobs) - len(todo), args.jobs)
    with ThreadPoolExecutor(args.jobs) as pool:
        done = list(pool.map(lambda job: run_child(job, raw, args.scale), todo))
    if args.tune:
        write_tuning(args.results, program)
    elif any(raw.glob('*.json')):
        write_table(args.results, program, args.scale)
    return 0 if all(done) else 1


if __name__ == '__main__':
    if IN_CHECKOUT:
        sys.path.insert(0, str(REPO))
    sys.exit(main())
