"""PPO on envs without a tuned config: its defaults with and without normalised observations and rewards.

    python benchmarks/any_env.py [--seeds 3]       # writes benchmarks/results/any_env.md and any_env.json

The results are the reason why `zoo train --env ID` turns both on for an env without a bundled config.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from zoo import serial_pipeline

RESULTS = Path(__file__).parent / 'results'
STEPS = 100_000
ENVS = ('Acrobot-v1', 'Pendulum-v1', 'LunarLander-v3', 'MountainCarContinuous-v0', 'Hopper-v5', 'CartPole-v1')
VARIANTS: dict[str, dict[str, Any]] = {
    'defaults': {},
    'normalised': {'model': {'obs_norm': True}, 'learn': {'reward_norm': True}},
}


def last_return(env: str, variant: str, seed: int) -> float:
    """Mean greedy return of the last policy, over 10 episodes."""
    with tempfile.TemporaryDirectory() as root:
        config = {
            'max_env_step': STEPS,
            'env': {'id': env},
            'policy': {'type': 'ppo', **VARIANTS[variant]},
            'logger': {'console': 'off', 'tensorboard': False, 'root': root},
        }
        returned = serial_pipeline(config, seed=seed).last_return
    assert returned is not None, 'a run ends with an evaluation'
    return returned


def table(rows: list[dict[str, Any]]) -> str:
    """The results as a Markdown page."""
    lines = [
        '# An env without a config',
        '',
        f'Greedy return of the last policy after {STEPS:,} env steps of ppo, for each seed; nothing was tuned.',
        '`python benchmarks/any_env.py` makes this table.',
        '',
        '| env | defaults | policy.model.obs_norm and policy.learn.reward_norm |',
        '|---|---|---|',
    ]
    for env in ENVS:
        cells = [
            ', '.join(f'{row["return"]:.4g}' for row in rows if (row['env'], row['variant']) == (env, variant))
            for variant in VARIANTS
        ]
        lines.append(f'| {env} | {" | ".join(cells)} |')
    return '\n'.join([*lines, ''])


def main() -> None:
    """Trains every env, variant and seed, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--seeds', type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for env in ENVS:
        for variant in VARIANTS:
            for seed in range(args.seeds):
                rows.append({'env': env, 'variant': variant, 'seed': seed, 'return': last_return(env, variant, seed)})
                print(json.dumps(rows[-1]), flush=True)
    (RESULTS / 'any_env.json').write_text(json.dumps(rows, indent=1))
    (RESULTS / 'any_env.md').write_text(table(rows))


if __name__ == '__main__':
    main()
