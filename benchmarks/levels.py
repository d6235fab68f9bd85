"""Prioritized level replay against uniform draws: 4,000 mazes, returns on mazes that training has not seen.

    python benchmarks/levels.py run --seeds 5     # one run after the other; writes a raw file for each
    python benchmarks/levels.py run --seeds 5 --task alike --steps 150000
    python benchmarks/levels.py table                            # levels.md, from the raw files

Task 'mixed': half of the levels have no way to the goal, some are trivial, some are long. Task 'alike': every level can be
solved, most by walking towards the goal. Both draws have the same levels, env steps and settings. A run is evaluated at its end on
2,000 episodes of other seeds, in mazes that can be solved, with actions drawn from the policy.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / 'results'
RAW = RESULTS / 'levels_raw'
N_LEVEL = 4_000
TASKS: dict[str, dict[str, Any]] = {  # env.kwargs
    'mixed': {'size': 13, 'limit': 100, 'most_walls': 0.9, 'solvable': False},
    'alike': {},
}
DRAWS: dict[str, dict[str, Any]] = {
    'uniform': {'draw': 'uniform'},
    'plr': {'draw': 'plr', 'score': 'positive_value_loss', 'priority': 'score', 'staleness': 0.1},
    'plr by rank': {'draw': 'plr'},
    'robust plr': {'draw': 'plr', 'train_on_new': False, 'replay': 0.5},
}
NOTE = """In the task mixed, 52% of the levels have no way to the goal and cost 100 steps each, 7% are one to three moves long. plr plays
fewer of the former: the return in training is 0.7 at the end, with uniform 0.3. In the task alike, every level can be solved, and in
82% the shortest way has no detour: a policy that walks to the goal is right nearly everywhere, and plr has nothing to leave out.

plr has `score: positive_value_loss`, `priority: score` and `staleness: 0.1`, chosen among six settings by the seeds 10 and 11;
plr by rank has the defaults. Both were run on seeds 0 to 4 after that. robust plr learns from no new level, and its env steps count
like those of the others: in the paper it has as many updates, so more env steps. The rows of alike but that of plr were run
when the score of a level was that of the last part of its episode.
"""
T_95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def config_of(task: str, draw: str, seed: int, n_step: int, root: str) -> dict[str, Any]:
    return {
        'exp_name': 'levels',
        'seed': seed,
        'max_env_step': n_step,
        'logger': {'root': root, 'console': 'off'},
        'env': {
            'id': 'mazes',
            'kwargs': TASKS[task],
            'collector_env_num': 32,
            'evaluator_env_num': 16,
            'levels': {'n_level': N_LEVEL, **DRAWS[draw]},
        },
        'policy': {
            'type': 'ppo',
            'collect': {'n_step': 64, 'discount_factor': 0.97},
            'learn': {'batch_size': 512, 'learning_rate': 1e-3, 'entropy_weight': 0.01},
            'eval': {
                'eval_freq': 10**9,
                'n_episode': 2_000,
                'deterministic': False,
                'env': {'kwargs': {**TASKS[task], 'solvable': True}},
            },
        },
    }


def run(task: str, draw: str, seed: int, n_step: int) -> None:
    """Trains one run, unless its raw file is there."""
    import zoo

    path = RAW / f'{task}_{draw.replace(" ", "_")}_{n_step}_seed{seed}.json'
    if path.exists():
        return
    start = time.process_time()
    with tempfile.TemporaryDirectory() as root:
        result = zoo.serial_pipeline(config_of(task, draw, seed, n_step, root))
        lines = (result.run_dir / 'metrics.jsonl').read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    returns = [row['collect/return_mean'] for row in rows if row.get('collect/return_mean') is not None]
    seen = [row['env/levels/seen'] for row in rows if row.get('env/levels/seen') is not None]
    found = {
        'task': task,
        'draw': draw,
        'seed': seed,
        'env_step': result.env_step,
        'unseen_return': result.last_return,
        'training_return': returns[-1],
        'levels_seen': int(seen[-1]) if seen else None,
        'cpu_s': round(time.process_time() - start, 1),
    }
    RAW.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + '\n')
    print(found, flush=True)


def interval(numbers: list[float]) -> str:
    """The mean with its 95% interval by Student's t."""
    mean = statistics.mean(numbers)
    if len(numbers) < 2:
        return f'{mean:.4f}'
    half = T_95[len(numbers)] * statistics.stdev(numbers) / len(numbers) ** 0.5
    return f'{mean:.4f} +- {half:.4f}'


def table() -> str:
    """The page of the results."""
    found = [json.loads(path.read_text()) for path in sorted(RAW.glob('*.json'))]
    lines = [
        '# Levels by regret',
        '',
        f'{N_LEVEL:,} mazes (`env.id: mazes`), ppo; return on 2,000 episodes of mazes that training has not seen and that can be',
        "solved, mean over seeds and its 95% interval by Student's t. Difference: of pairs with the same seed.",
        '',
        '    python benchmarks/levels.py run --seeds 5',
        '    python benchmarks/levels.py run --seeds 5 --task alike --steps 150000 --draws uniform "plr by rank"',
        '    python benchmarks/levels.py table',
        '',
        '| task | env steps | draw | seeds | return on unseen mazes | minus uniform | seeds better |',
        '|---|---|---|---|---|---|---|',
    ]
    for task, n_step in sorted({(each['task'], each['env_step']) for each in found}, reverse=True):
        of_length = [each for each in found if (each['task'], each['env_step']) == (task, n_step)]
        uniform = {each['seed']: each['unseen_return'] for each in of_length if each['draw'] == 'uniform'}
        for draw in DRAWS:
            by_seed = {each['seed']: each['unseen_return'] for each in of_length if each['draw'] == draw}
            if not by_seed:
                continue
            differences = [by_seed[seed] - uniform[seed] for seed in by_seed if seed in uniform]
            shown = better = ''
            if draw != 'uniform' and differences:
                shown = interval(differences)
                better = f'{sum(x > 0 for x in differences)} of {len(differences)}'
            numbers = f'{len(by_seed)} | {interval(list(by_seed.values()))} | {shown} | {better}'
            lines.append(f'| {task} | {n_step:,} | {draw} | {numbers} |')
    return '\n'.join([*lines, '', NOTE])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('what', choices=['run', 'table'])
    parser.add_argument('--seeds', type=int, default=5)
    parser.add_argument('--steps', type=int, default=300_000)
    parser.add_argument('--task', default='mixed', choices=list(TASKS))
    parser.add_argument('--draws', nargs='+', default=['uniform', 'plr'], choices=list(DRAWS))
    args = parser.parse_args()
    if args.what == 'run':
        logging.disable(logging.WARNING)
        for seed in range(args.seeds):
            for draw in args.draws:
                run(args.task, draw, seed, args.steps)
    (RESULTS / 'levels.md').write_text(table())


if __name__ == '__main__':
    main()
