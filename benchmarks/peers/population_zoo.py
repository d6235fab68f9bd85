"""Evolution of a population of PPO on CartPole by `zoo evolve`, timed as a whole; prints one JSON line."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from _population import parse_args

args = parse_args()

from zoo.config.yaml_io import save_yaml  # noqa: E402  (the thread count has to be set first)
from zoo.tools.cli import main as zoo  # noqa: E402
from zoo.tools.population import evolution  # noqa: E402, F401  (loaded before the clock starts, as the peer's modules are)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = dict(
            exp_name='cartpole',
            seed=args.seed,
            max_env_step=args.every * args.generations,
            env=dict(id='CartPole-v1', collector_env_num=args.num_envs, evaluator_env_num=args.num_envs),
            policy=dict(
                type='ppo',
                model=dict(hidden_sizes=[64, 64], activation='tanh'),
                learn=dict(learning_rate=args.lr, batch_size=args.minibatch, epoch_per_collect=args.epochs),
                collect=dict(n_step=args.rollout),
                eval=dict(eval_freq=10**9, n_episode=args.episodes),  # beside the one at the end of each stage
            ),
            logger=dict(root=folder, tensorboard=False, console='off'),
        )
        file = Path(folder) / 'cartpole.yaml'
        save_yaml(config, file)
        words = ['policy.learn.learning_rate=log(1e-6,1)', '--how', 'evolution', '--name', 'population']
        numbers = {'pop': args.pop, 'every': args.every, 'generations': args.generations, 'jobs': args.jobs}
        # the words of the command itself: its processes are then copies of this one, as a user's are
        sys.argv = ['zoo', 'evolve', str(file), *words]
        sys.argv += [word for name, value in numbers.items() for word in (f'--{name}', str(value))]
        start = time.perf_counter()
        with open(os.devnull, 'w') as nowhere, contextlib.redirect_stdout(nowhere):
            code = zoo()
        wall_s = time.perf_counter() - start
        if code:
            sys.exit(code)
        lineage = (Path(folder) / 'population' / 'lineage.jsonl').read_text().splitlines()
        members = json.loads(lineage[-1])['members']
        env_step = sum(member['env_step'] for member in members)
        best = max(member['fitness'] for member in members if member['fitness'] is not None)
    print(
        json.dumps(
            {
                'library': 'zoo',
                'env_step': env_step,
                'wall_s': wall_s,
                'best': best,
                'env_step_per_s': env_step / wall_s,
            }
        )
    )


if __name__ == '__main__':
    main()
