"""Whether a policy of stable-baselines3 that zoo imports keeps its return and trains on, beside the same one continued there.

    python benchmarks/imports/lander_sb3.py FOLDER --seed 0             # in an environment of its own, for each seed
    python benchmarks/imports/lander.py FOLDER --seed 0                 # imports FOLDER/seed_0.zip, writes zoo_0.json
    python benchmarks/imports/lander.py FOLDER --seed 0 --draw 1        # the same with other random numbers
    python benchmarks/imports/lander.py FOLDER --write                  # writes benchmarks/results/lander.md and its raw files

Both halves play the same greedy episodes: after the import, and after so many more env steps. `--steps 0` compares the import.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from lander_episodes import ENV, EPISODES, MORE, SAMPLED_EPISODES, result_name, returns_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import zoo
from report import RESULTS, machine, table, today


def both_returns(policy: Any) -> dict[str, list[float]]:
    """Returns of greedy episodes, and of some whose actions are drawn."""
    greedy = returns_of(lambda obs: int(np.asarray(policy.act(obs[None]))[0]))
    generator = torch.Generator().manual_seed(0)
    sampled = returns_of(
        lambda obs: int(np.asarray(policy.act(obs[None], deterministic=False, generator=generator))[0]),
        SAMPLED_EPISODES,
    )
    return {'returns': greedy, 'sampled': sampled}


def train_on(folder: Path, seed: int, draw: int, points: tuple[int, ...]) -> None:
    """Imports a model, trains it on to each point, and writes the returns there. Args: draw: number of the continuation."""
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / 'run'
        policy = zoo.import_policy(folder / f'seed_{seed}.zip', run, env=ENV, overrides=[f'seed={seed + 100 * draw}'])
        start = zoo.load_policy(run).run.env_step
        for steps in points:
            done = 0
            if steps:
                overrides = [
                    f'max_env_step={start + steps}',
                    f'policy.eval.eval_freq={10 * steps}',
                    'logger.console=off',
                ]
                result = zoo.serial_pipeline(resume=run, overrides=overrides)
                done = result.env_step - start
                policy = zoo.load_policy(run)
            found.append({'env_steps': done, **both_returns(policy)})
            print(seed, draw, done, mean(found[-1]['returns']), mean(found[-1]['sampled']), flush=True)
            (folder / result_name('zoo', seed, draw)).write_text(json.dumps(found) + '\n')


def write(folder: Path) -> None:
    """Writes the tables of all continuations that both halves have."""
    raw = RESULTS / 'lander_raw'
    raw.mkdir(exist_ok=True)
    rows = []
    changes: dict[str, list[float]] = {'zoo': [], 'sb3': []}
    starts: dict[str, tuple[Any, Any]] = {}
    drawn = []
    for path in sorted(folder.glob('zoo_*.json')):
        name = path.stem.removeprefix('zoo_')
        other = folder / f'sb3_{name}.json'
        halves = [json.loads(file.read_text()) for file in (path, other)]
        for file in (path, other):
            shutil.copy(file, raw / file.name)
        seed, _, draw = name.partition('_')
        if not draw:
            for ours, theirs in zip(*halves, strict=True):
                rows.append(
                    [seed, f'{ours["env_steps"]:,}', *(f'{mean(half["returns"]):.1f}' for half in (ours, theirs))]
                )
            continue
        if len(halves[0]) == 2:
            starts[seed] = (halves[0][0], halves[1][0])
        ends = [half[-1] for half in halves]
        before = [mean(half['sampled']) for half in starts[seed]]
        after = [mean(half['sampled']) for half in ends]
        for library, a, b in zip(changes, before, after, strict=True):
            changes[library].append(b - a)
        drawn.append([seed, draw, *(f'{a:.1f} to {b:.1f}' for a, b in zip(before, after, strict=True))])
    words = [
        f'{library} {mean(found):+.1f} (standard error {stdev(found) / len(found) ** 0.5:.1f})'
        for library, found in changes.items()
    ]
    text = (
        '# A policy of stable-baselines3, imported and trained on\n\n'
        f'PPO on {ENV}, saved by stable-baselines3 after 200,000 env steps. `benchmarks/imports/lander.py` and `lander_sb3.py` make '
        f'these numbers; returns of all episodes are in lander_raw/. {today()}, {machine()}.\n\n'
        f'## As in training: actions drawn from the policy\n\n'
        f'Mean return of {SAMPLED_EPISODES} episodes at the import and {MORE[1]:,} env steps later, of continuations with different '
        f'random numbers. Mean change over all {len(drawn)}: {", ".join(words)}.\n\n'
        + table(['seed', 'continuation', 'zoo', 'stable-baselines3'], drawn)
        + f'\n## Greedy\n\nMean return of the same {EPISODES} greedy episodes. These policies still have most of the entropy that is '
        'possible, so the mode of their actions may hover to the time limit or land, and changes from one to the other.\n\n'
        + table(['seed', 'env steps after the import', 'zoo', 'stable-baselines3'], rows)
        + '\n'
    )
    (RESULTS / 'lander.md').write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument(
        '--draw', type=int, default=0, help='number of the continuation, with random numbers of its own'
    )
    parser.add_argument('--steps', type=int, nargs='*', default=MORE)
    parser.add_argument('--write', action='store_true')
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.write:
        write(args.folder)
    else:
        train_on(args.folder, args.seed, args.draw, tuple(args.steps))


if __name__ == '__main__':
    main()
