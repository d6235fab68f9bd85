"""Gain of a sweep: learning rate and clip on CartPole, then the default and the best config on new seeds; writes sweep.md.

    python benchmarks/sweep.py [--n 20] [--seeds 3] [--jobs 2] [--fresh 5] [--folder FOLDER] [--out FOLDER]

The sweep is the command `zoo sweep`; started again with the same --folder it continues. Results: sweep.md and sweep.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from report import REPO, RESULTS, git_commit, machine, one_thread_env, table, today, write_json
from zoo import serial_pipeline

CONFIG = 'cartpole_ppo'
SPACES = ['policy.learn.learning_rate=log(1e-4,1e-2)', 'policy.learn.clip_ratio=uniform(.1,.4)']
FIXED = ['policy.eval.eval_freq=1_000', 'logger.tensorboard=false']  # each rollout has 1024 env steps
FRESH_SEED = 1000  # the sweep never saw these seeds
TARGET, N_FRESH = 0.5, 5


def sweep(folder: Path, n: int, seeds: int, jobs: int) -> tuple[list[str], dict[str, Any]]:
    """Runs `zoo sweep`; returns the words of the command and the JSON that it prints."""
    words = ['sweep', CONFIG, *SPACES, *FIXED, '--n', str(n), '--seeds', str(seeds), '--jobs', str(jobs)]
    command = [sys.executable, '-m', 'zoo', *words, f'logger.root={folder}', '--json']
    done = subprocess.run(command, cwd=REPO, env=one_thread_env(), stdout=subprocess.PIPE, text=True, check=True)
    return words, json.loads(done.stdout)


def solved_at(config: str, seed: int, folder: Path) -> int | None:
    """Trains a config; returns the env steps at the first evaluation that reached stop_value, None if none did."""
    overrides = [*FIXED, f'logger.root={folder}', 'logger.console=off', f'seed={seed}']
    result = serial_pipeline(config, overrides=overrides)
    return result.env_step if 'stop_value' in result.stop_reason else None


def page(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    default, best = found['fresh']['default'], found['fresh']['best']
    trials = [
        [t['number'], t['state'], *t['values'].values(), f'{t["value"]:,.0f}' if t['value'] is not None else '-']
        for t in found['trials']
    ]
    ratio = _ratio(default, best)
    if len(default) > N_FRESH:
        ratio += f'; of the first {N_FRESH} seeds alone {_ratio(default[:N_FRESH], best[:N_FRESH])}'
    return f"""# What a sweep finds

`python benchmarks/sweep.py` made this page on {today()} (commit {found['commit']}; {found['machine']}).
The sweep was

    zoo {' '.join(found['words'])}

Then the config as it is and best.yaml were trained with {len(default)} seeds that the sweep had not seen, also evaluated \
every 1,000 env steps (10 episodes; solved: a mean of 475). The env steps of all trials
together: {found['env_step']:,}.

Env steps until CartPole is solved, best divided by default: {ratio}. The target is at most
{TARGET}.

{table(['config', 'env steps of each seed', 'mean', 'median'], [_line('default', default), _line('best of the sweep', best)])}

The trials: the value is the mean number of env steps over the seeds; above 100,000 not all seeds solved it.

{table(['trial', 'state', *found['keys'], 'value'], trials)}
"""


def _ratio(default: Sequence[int | None], best: Sequence[int | None]) -> str:
    """Best divided by default, as text: of the means and of the medians."""
    few, many = ([step for step in steps if step is not None] for steps in (best, default))
    if len(few) + len(many) < len(best) + len(default):
        return 'none, not all runs were solved'
    return f'{np.mean(few) / np.mean(many):.2f} of the means, {np.median(few) / np.median(many):.2f} of the medians'


def _line(name: str, steps: Sequence[int | None]) -> list[str]:
    known = [step for step in steps if step is not None]
    mean, median = (f'{f(known):,.0f}' if len(known) == len(steps) else '-' for f in (np.mean, np.median))
    return [name, ', '.join('-' if step is None else f'{step:,}' for step in steps), mean, median]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--n', type=int, default=20)
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--jobs', type=int, default=2)
    parser.add_argument('--fresh', type=int, default=N_FRESH, help='seeds for default and best')
    parser.add_argument('--folder', type=Path, help='for the runs; a new one, removed at the end, without it')
    parser.add_argument('--out', type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).absolute()
        words, found = sweep(folder, args.n, args.seeds, args.jobs)
        configs = {'default': CONFIG, 'best': found['best_file']}
        seeds = range(FRESH_SEED, FRESH_SEED + args.fresh)
        fresh = {name: [solved_at(config, seed, folder) for seed in seeds] for name, config in configs.items()}
    record = {
        'words': words,
        'commit': git_commit(),
        'machine': machine(),
        'keys': [text.partition('=')[0] for text in SPACES],
        'fresh': fresh,
        'env_step': sum(run['env_step'] for trial in found['trials'] for run in trial['runs']),
        'trials': found['trials'],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / 'sweep.json', record)
    (args.out / 'sweep.md').write_text(page(record))
    print(page(record))


if __name__ == '__main__':
    main()
