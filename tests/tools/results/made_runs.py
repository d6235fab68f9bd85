"""Runs of one experiment and of a sweep, with given returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.real_runs import made_run
from zoo.config.section import plain
from zoo.run.config import resolve_config
from zoo.tools.results.read import Run
from zoo.tools.results.sweep_file import SweptTrial, SweptTrials, write_trials

METRIC = 'eval/return_mean'


def whole_run(seed: int = 0, name: str = 'made', values: Any = (1.0, 3.0, 2.0), *overrides: str, **more: Any) -> Run:
    """A run with a complete config and a known curve, at 1,000, 2,000 and 4,000 env steps."""
    run = made_run([1000, 2000, 4000], values, seed=seed, **more)
    words = [f'seed={seed}', f'exp_name={name}', 'max_env_step=4096', *overrides]
    config = plain(resolve_config({'env': {'id': more.get('env', 'CartPole-v1')}}, words))
    return Run(run.path, config, run.columns)


def swept(folder: Path, n: int, **changes: Any) -> list[Run]:
    """Runs of a sweep over the clip ratio, whose later trials are better, although their last returns are lower."""
    runs, trials = [], []
    for i in range(n):
        run = whole_run(0, f'trial_{i:03d}_seed_0', (1, 2, 500 - i), f'policy.learn.clip_ratio=0.{i + 1}')
        runs.append(Run(folder / run.exp_name / 'run', run.config, run.columns))
        label, values = f'trial_{i:03d}', {'policy.learn.clip_ratio': f'0.{i + 1}'}
        value = 1000.0 * (n - i)
        words = f'{value:,.0f} steps to 450'
        trials.append(SweptTrial(label=label, state='complete', values=values, value=value, result=words, reason=''))
    rules: dict[str, Any] = dict(name='made_sweep', metric='env steps until the goal', result_name='steps to the goal')
    rules |= dict(minimises=True, n_trial=n, n_seed=1, n_tied=1, keys=['policy.learn.clip_ratio'], trials=trials[::-1])
    write_trials(folder, SweptTrials(**rules | changes))
    return runs
