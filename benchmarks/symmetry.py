"""Samples that a mirror saves: CartPole with and without mirrored samples, greedy returns after few env steps.

    python benchmarks/symmetry.py run --seeds 3      # one run after the other; a raw file for each
    python benchmarks/symmetry.py table

'more passes' takes as many gradient steps as mirrored samples do, without a mirror.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / 'results'
RAW = RESULTS / 'symmetry_raw'
EVERY = 4_096
N_STEP = 24_576
MIRROR = {'obs': {'sign': [-1, -1, -1, -1]}, 'action': {'index': [1, 0]}}
KINDS: dict[str, dict[str, Any]] = {
    'plain': {},
    'more passes': {'epoch_per_collect': 8},
    'mirrored samples': {'symmetry': MIRROR},
}


def run(kind: str, seed: int) -> None:
    """Trains one run, unless its raw file is there."""
    import zoo

    path = RAW / f'{kind.replace(" ", "_")}_seed{seed}.json'
    if path.exists():
        return
    learn = {'batch_size': 256, 'epoch_per_collect': 4, 'learning_rate': 1e-3, **KINDS[kind]}
    found = []
    with tempfile.TemporaryDirectory() as root:
        zoo.serial_pipeline(
            {
                'exp_name': 'symmetry',
                'seed': seed,
                'max_env_step': N_STEP,
                'logger': {'root': root, 'console': 'off'},
                'env': {'id': 'CartPole-v1', 'collector_env_num': 8, 'evaluator_env_num': 10},
                'policy': {
                    'type': 'ppo',
                    'collect': {'n_step': 128},
                    'learn': learn,
                    'eval': {'eval_freq': EVERY, 'n_episode': 20},
                },
            },
            on_evaluation=lambda env_step, evaluation: found.append(evaluation.return_mean),
        )
    RAW.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({'kind': kind, 'seed': seed, 'every': EVERY, 'returns': found}) + '\n')
    print(kind, seed, [round(x) for x in found], flush=True)


def table() -> str:
    """The page of the results."""
    found = [json.loads(path.read_text()) for path in sorted(RAW.glob('*.json'))]
    n = min(len(each['returns']) for each in found)
    steps = [EVERY * (i + 1) for i in range(n)]
    lines = [
        '# Mirrored samples',
        '',
        'CartPole-v1, ppo, 8 envs x 128 steps, minibatches of 256, 4 passes; median greedy return of 20 episodes over seeds.',
        '',
        '    python benchmarks/symmetry.py run --seeds 3',
        '    python benchmarks/symmetry.py table',
        '',
        '| | seeds | ' + ' | '.join(f'{step:,}' for step in steps) + ' | mean over these |',
        '|---' * (n + 3) + '|',
    ]
    for kind in KINDS:
        of_kind = [each['returns'][:n] for each in found if each['kind'] == kind]
        if not of_kind:
            continue
        medians = [f'{statistics.median(each[i] for each in of_kind):.0f}' for i in range(n)]
        means = [statistics.mean(each) for each in of_kind]
        lines.append(f'| {kind} | {len(of_kind)} | ' + ' | '.join(medians) + f' | {statistics.mean(means):.0f} |')
    return '\n'.join(lines) + '\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('what', choices=['run', 'table'])
    parser.add_argument('--seeds', type=int, default=3)
    args = parser.parse_args()
    if args.what == 'run':
        logging.disable(logging.WARNING)
        for seed in range(args.seeds):
            for kind in KINDS:
                run(kind, seed)
    (RESULTS / 'symmetry.md').write_text(table())


if __name__ == '__main__':
    main()
