"""The stable-baselines3 half of `benchmarks/imports/lander.py`: PPO on LunarLander, saved midway, and the same model continued.

Run it in an environment of its own, without zoo:

    python -m venv /tmp/sb3 && /tmp/sb3/bin/pip install torch==2.13.0
    /tmp/sb3/bin/pip install stable-baselines3==2.9.2 'gymnasium[box2d]==1.4.0'
    /tmp/sb3/bin/python benchmarks/imports/lander_sb3.py FOLDER --seed 0

It writes FOLDER/seed_0.zip after 200,000 env steps unless that is there, and FOLDER/sb3_0.json with the returns of greedy
episodes of that model, and of itself after so many more env steps. `--draw 1` continues the same zip with other random numbers,
and writes sb3_0_1.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from lander_episodes import ENV, EPISODES, MORE, SAMPLED_EPISODES, result_name, returns_of
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

BEFORE = 200_000


def both_returns(model: PPO) -> dict[str, list[float]]:
    """Returns of greedy episodes, and of some whose actions are drawn."""
    greedy = returns_of(lambda obs: int(model.predict(obs, deterministic=True)[0]))
    sampled = returns_of(lambda obs: int(model.predict(obs, deterministic=False)[0]), SAMPLED_EPISODES)
    return {'returns': greedy, 'sampled': sampled}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--draw', type=int, default=0, help='number of the continuation')
    parser.add_argument('--steps', type=int, nargs='*', default=MORE)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    venv = make_vec_env(ENV, n_envs=8, seed=args.seed)
    settings = {'n_steps': 256, 'batch_size': 64, 'n_epochs': 4, 'gamma': 0.999, 'gae_lambda': 0.98, 'ent_coef': 0.01}
    path = args.folder / f'seed_{args.seed}.zip'
    if not path.exists():
        model = PPO('MlpPolicy', venv, seed=args.seed, device='cpu', **settings)
        model.learn(BEFORE)
        model.save(path)
    later = args.seed + 100 * (args.draw + 1)
    model = PPO.load(path, make_vec_env(ENV, n_envs=8, seed=later), device='cpu')
    model.set_random_seed(later)
    start = model.num_timesteps
    points = []
    for steps in args.steps:
        missing = start + steps - model.num_timesteps
        if missing > 0:
            model.learn(missing, reset_num_timesteps=False)
        points.append({'env_steps': model.num_timesteps - start, **both_returns(model)})
        print(
            args.seed,
            args.draw,
            points[-1]['env_steps'],
            sum(points[-1]['returns']) / EPISODES,
            sum(points[-1]['sampled']) / SAMPLED_EPISODES,
            flush=True,
        )
        (args.folder / result_name('sb3', args.seed, args.draw)).write_text(json.dumps(points) + '\n')


if __name__ == '__main__':
    main()
