"""Evolution of a population of PPO on CartPole by zoo, timed as a whole; prints one JSON line."""

from __future__ import annotations

import json
import tempfile
import time

from _population import parse_args

args = parse_args()

from zoo.tools.population import evolve  # noqa: E402  (the thread count has to be set first)


def main() -> None:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        config = dict(
            exp_name='cartpole',
            seed=args.seed,
            max_env_step=args.every * args.generations,
            env=dict(id='CartPole-v1', collector_env_num=args.num_envs),
            policy=dict(
                type='ppo',
                model=dict(hidden_sizes=[64, 64], activation='tanh'),
                learn=dict(learning_rate=args.lr, batch_size=args.minibatch, epoch_per_collect=args.epochs),
                collect=dict(n_step=args.rollout),
                eval=dict(eval_freq=10**9, n_episode=args.episodes),  # beside the one at the end of each stage
            ),
            logger=dict(root=folder, tensorboard=False, console='off'),
        )
        population = evolve(
            config,
            ['policy.learn.learning_rate=log(1e-6,1)'],
            pop=args.pop,
            every=args.every,
            generations=args.generations,
            how='evolution',
            jobs=args.jobs,
        )
        wall_s = time.perf_counter() - start
        env_step = sum(member.env_step for member in population.members)
        record = {'library': 'zoo', 'env_step': env_step, 'wall_s': wall_s, 'best': population.best.fitness}
    print(json.dumps({**record, 'env_step_per_s': env_step / wall_s}))


if __name__ == '__main__':
    main()
