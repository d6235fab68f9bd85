"""Returns of PPO that starts from an imitated policy; writes benchmarks/results/pretrain.md.

    python benchmarks/pretrain.py [--seeds 5] [--only cartpole_ppo]

For each seed: an expert is trained, and at most 5,000 of its steps are recorded. A new policy with another seed imitates them
(`zoo pretrain`), without env steps. Then ppo trains that policy further, with the settings of its config. For comparison, ppo
also starts from the actor's parameters alone, with a new critic; from a new policy; and, for continuous actions, from a policy
with the imitated standard deviation (`--keep-std`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from report import (
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

QUIET = ('logger.console=off', 'logger.tensorboard=false')
EVALUATED = ('policy.eval.stop_value=null', 'policy.eval.n_episode=20')
ACTOR = 'init_from_keys=[actor_*, policy_*]'


class Case(NamedTuple):
    """A config, its env steps after the imitation and between evaluations, its recorded episodes and other overrides."""

    config: str
    n_step: int
    eval_freq: int
    n_episode: int
    keys: tuple[str, ...] = ()
    is_continuous: bool = False


CASES = (
    Case('cartpole_ppo', 20_000, 1_000, 10),
    # value_norm: returns are about -1000, which a critic without it takes long to reach
    Case('pendulum_ppo', 60_000, 4_000, 25, ('policy.learn.value_norm=true',), True),
)
ARMS = {
    'whole': 'all that was imitated',
    'keep_std': 'with the imitated deviation',
    'actor': 'actor alone, new critic',
    'nothing': 'nothing',
}


def zoo(folder: Path, *words: str) -> dict[str, Any]:
    """Runs a command of zoo; returns the JSON that it prints. Raises: RuntimeError if it fails."""
    done = subprocess.run(
        [sys.executable, '-m', 'zoo', *words, '--json'],
        cwd=folder,
        env=one_thread_env(),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def one(case: Case, seed: int, folder: Path) -> dict[str, Any]:
    """Trains, imitates and trains again with one seed; returns all numbers."""
    begin, other = time.perf_counter(), seed + 100
    expert = zoo(folder, 'train', case.config, f'seed={seed}', *QUIET, '--run-dir', 'expert')
    words = ('--episodes', str(case.n_episode), '--seed', str(seed), '-o', 'demos.npz')
    shown = zoo(folder, 'eval', 'expert', *words)
    imitate = ('pretrain', case.config, f'seed={other}', *case.keys, '--demos', 'demos.npz', '--run-dir')
    pretrained = zoo(folder, *imitate, 'whole')
    imitated = zoo(folder, 'eval', 'whole', '--episodes', '20', '--seed', str(other))
    starts = {'whole': ['init_from=whole'], 'actor': ['init_from=whole', ACTOR], 'nothing': []}
    if case.is_continuous:
        zoo(folder, *imitate, 'keep_std', '--keep-std')
        starts['keep_std'] = ['init_from=keep_std']
    for arm, start in starts.items():
        words = (f'max_env_step={case.n_step}', f'policy.eval.eval_freq={case.eval_freq}', *EVALUATED, *QUIET)
        zoo(folder, 'train', case.config, f'seed={other}', *case.keys, *words, *start, '--run-dir', f'from_{arm}')
    return {
        'config': case.config,
        'seed': seed,
        'expert': expert['last_return'],
        'n_step': shown['steps'],
        'expert_shown': shown['return_mean'],
        'epoch': pretrained['epoch'],
        'imitated': imitated['return_mean'],
        'arms': {arm: returns(folder / f'from_{arm}') for arm in starts},
        'wall_s': round(time.perf_counter() - begin, 1),
    }


def returns(run: Path) -> dict[str, list[float]]:
    """Mean returns of a run's evaluations ('eval') and of its training episodes ('collect')."""
    rows = metric_rows(run)
    return {kind: [value for _, value in metric_curve(rows, f'{kind}/return_mean')] for kind in ('eval', 'collect')}


def page(records: Sequence[Mapping[str, Any]], n_seed: int) -> str:
    """The results as Markdown."""
    lines = [
        '# Imitation, then PPO',
        '',
        'How it was done: `benchmarks/pretrain.py`. Returns of an evaluation are means of 20',
    ]
    lines += [
        'greedy episodes; returns in training are means of the last 100 episodes, with actions drawn at random.',
        '',
    ]
    for case in CASES:
        mine = [record for record in records if record['config'] == case.config]
        if not mine:
            continue
        arms = [arm for arm in ARMS if arm in mine[0]['arms']]
        lines += [f'## {case.config}', '', 'Without an env step:', '']
        head = ('seed', 'steps shown', 'return of these', 'epochs', 'return after the imitation')
        rows = [
            (r['seed'], f'{r["n_step"]:,}', f'{r["expert_shown"]:.1f}', r['epoch'], f'{r["imitated"]:.1f}')
            for r in mine
        ]
        lines += [table(head, rows), f'Then {case.n_step:,} env steps of ppo, beginning with:', '']
        head = ('seed', 'numbers', *(ARMS[arm] for arm in arms))
        body = [
            (r['seed'], name, *(f'{find(r["arms"][arm]):.1f}' for arm in arms))
            for r in mine
            for name, find in NUMBERS.items()
        ]
        lines += [table(head, body)]
    facts = (
        machine(),
        today(),
        git_commit(),
        versions_line(versions()),
        f'`python benchmarks/pretrain.py --seeds {n_seed}`',
    )
    names = ('machine', 'date', 'commit', 'versions', 'command')
    return '\n'.join([*lines, *(f'- {name}: {fact}' for name, fact in zip(names, facts, strict=True)), ''])


NUMBERS = {
    'lowest evaluation': lambda arm: min(arm['eval']),
    'lowest in training': lambda arm: min(arm['collect']),
    'last evaluation': lambda arm: arm['eval'][-1],
}


def main() -> None:
    """Runs all cases and seeds, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', type=int, default=5, help='seeds 0 .. N-1')
    parser.add_argument('--only', nargs='*', choices=[case.config for case in CASES], help='only these configs')
    args = parser.parse_args()
    records = []
    for case in CASES:
        for seed in range(args.seeds if args.only is None or case.config in args.only else 0):
            with tempfile.TemporaryDirectory() as folder:
                records.append(one(case, seed, Path(folder)))
            print(json.dumps(records[-1]), flush=True)
    if args.only is None:
        write_json(RESULTS / 'pretrain.json', {'date': today(), 'commit': git_commit(), 'records': records})
        (RESULTS / 'pretrain.md').write_text(page(records, args.seeds))
    else:
        print(page(records, args.seeds))


if __name__ == '__main__':
    main()
