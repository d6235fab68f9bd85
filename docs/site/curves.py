"""The curves on the pages of policies, drawn from the raw records under benchmarks/results/.

python docs/site/curves.py          writes docs/policies/curves/<policy>.svg, each with the lines that SHOWN names
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from zoo.tools.results.plot import figure, save
from zoo.tools.results.read import Run

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / 'benchmarks' / 'results'
CURVES = ROOT / 'docs' / 'policies' / 'curves'
sys.path.insert(0, str(ROOT / 'benchmarks'))
from learning import raw_path  # noqa: E402
from learning_rows import HOPPER_BEFORE  # noqa: E402

METRIC = 'eval/return_mean'
OLD = 'lunarlander_ppo buffer.size=10240 buffer.max_staleness=4'
OLD_REST = (
    'policy.type=ppo_offpolicy policy.collect.n_step=128 buffer.n_sample=2048 buffer.update_per_collect=4 '
    'max_env_step=300000'
)


class Shown(NamedTuple):
    """The lines of one picture: {label: config with its overrides}, in a folder of raw records."""

    folder: str
    lines: dict[str, str]
    title: str


LEARNING, BEFORE, VARIANTS, LAG = 'learning_raw', 'learning_before_raw', 'variants_raw', 'cluster_lag_raw'
SHOWN = {
    'ppo': Shown(LEARNING, {'ppo': 'halfcheetah_ppo'}, 'HalfCheetah-v5'),
    'ppg': Shown(LEARNING, {'ppg': 'lunarlander_ppg', 'ppo': 'lunarlander_ppo'}, 'LunarLander-v3'),
    'ppo_offpolicy': Shown(LEARNING, {'ppo_offpolicy': 'cartpole_ppo_offpolicy'}, 'CartPole-v1'),
    'ppg_offpolicy': Shown(LEARNING, {'ppg_offpolicy': 'cartpole_ppg_offpolicy'}, 'CartPole-v1'),
    'spo': Shown(VARIANTS, {'spo': f'{HOPPER_BEFORE} policy.learn.surrogate=spo', 'ppo': HOPPER_BEFORE}, 'Hopper-v5'),
    'dna': Shown(
        VARIANTS,
        {name: f'tiny_bricks_{name} max_env_step=500000' for name in ('dna', 'ppg', 'ppo')},
        'Tiny bricks',
    ),
    'ppo_ewma': Shown(LEARNING, {'ppo_ewma': 'cartpole_ppo_ewma', 'ppo': 'cartpole_ppo'}, 'CartPole-v1'),
    'ppo_ewma_offpolicy': Shown(
        VARIANTS,
        {
            'proximal ewma': f'{OLD} policy.learn.proximal={{"type":"ewma","decay":0.992}} {OLD_REST}',
            'proximal behaviour (ppo)': f'{OLD} {OLD_REST}',
        },
        'LunarLander-v3, samples up to 4 rollouts old',
    ),
    'ppg_ewma': Shown(LEARNING, {'ppg_ewma': 'cartpole_ppg_ewma', 'ppg': 'cartpole_ppg'}, 'CartPole-v1'),
    'ppg_reloaded': Shown(
        VARIANTS,
        {name: f'lunarlander_{name} max_env_step=500000' for name in ('ppg_reloaded', 'ppg')},
        'LunarLander-v3',
    ),
    'a2c': Shown(LEARNING, {'a2c': 'cartpole_a2c'}, 'CartPole-v1'),
    'pg': Shown(LEARNING, {'pg': 'cartpole_pg'}, 'CartPole-v1'),
    'dqn': Shown(LEARNING, {'dqn': 'cartpole_dqn'}, 'CartPole-v1'),
    'trpo': Shown(VARIANTS, {name: f'cartpole_{name}' for name in ('trpo', 'npg', 'ppo')}, 'CartPole-v1'),
    'npg': Shown(VARIANTS, {name: f'cartpole_{name}' for name in ('npg', 'trpo', 'ppo')}, 'CartPole-v1'),
    'impala': Shown(LEARNING, {'impala': 'cartpole_impala'}, 'CartPole-v1'),
}


def record_paths(folder: str, name: str) -> list[Path]:
    """The raw records of all seeds of one line; of a row that the table has not yet, those of the table before."""
    stem = raw_path(name, 0).name.removesuffix('_seed0.json')
    for path in (RESULTS / folder, RESULTS / BEFORE):
        if found := sorted(file for file in path.glob(f'{stem}_seed*') if file.name.rpartition('_seed')[0] == stem):
            return found
    raise FileNotFoundError(f'{RESULTS / folder} has no record {stem}_seed*.json; run the benchmark that makes it')


def run_of(path: Path) -> Run:
    """A raw record as a run: its curve of evaluations, and what names it."""
    record = json.loads(path.read_text())
    steps, returns = np.array(record['curve'], dtype=np.float64).T
    config = {
        'exp_name': record['config'],
        'seed': record['seed'],
        'env': {'id': record['env']},
        'policy': {'type': ''},
    }
    return Run(path, config, {'env_step': steps, 'wall_s': np.full(len(steps), np.nan), METRIC: returns})


def draw(name: str, path: Path) -> None:
    """Draws the picture of one policy."""
    shown = SHOWN[name]
    groups = {label: [run_of(path) for path in record_paths(shown.folder, line)] for label, line in shown.lines.items()}
    save(figure(groups, METRIC, title=shown.title), path)


def main() -> None:
    CURVES.mkdir(exist_ok=True)
    for name in SHOWN:
        draw(name, CURVES / f'{name}.svg')


if __name__ == '__main__':
    main()
