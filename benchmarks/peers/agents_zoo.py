"""zoo PPO in an env of several agents, one iteration per line of stdin."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from _turns import in_turns, parse_args

args = parse_args()

from zoo.run.config import resolve_config  # noqa: E402  (the thread count has to be set first)
from zoo.run.job import SerialJob  # noqa: E402

NEVER = 10**12  # env steps: no evaluation and no checkpoint, since the matched work has none


def matched_config() -> dict[str, Any]:
    return {
        'exp_name': 'bench_agents',
        'seed': args.seed,
        'max_env_step': NEVER,
        'env': {'id': args.env, 'collector_env_num': args.copies},
        'policy': {
            'type': 'ppo',
            'model': {'type': 'vac', 'hidden_sizes': [64, 64], 'activation': 'tanh', 'shared_encoder': False},
            'learn': {
                'epoch_per_collect': args.epochs,
                'batch_size': args.minibatch,
                'learning_rate': 2.5e-4,
                'value_weight': 0.5,
                'entropy_weight': 0.01,
                'clip_ratio': 0.2,
                'grad_clip': 0.5,
                'adv_norm': 'minibatch',
                'value_clip': False,
            },
            'collect': {'n_step': args.rollout, 'discount_factor': 0.99, 'gae_lambda': 0.95},
            'eval': {'eval_freq': NEVER, 'stop_value': None},
        },
        'checkpoint': {'freq': NEVER},
        'logger': {'tensorboard': False, 'console': 'off'},
    }


def main() -> None:
    job = SerialJob(resolve_config(matched_config(), args.set))

    def counts() -> tuple[int, int]:
        return job.env_step * args.agents, job.train_iter

    in_turns(args, job.iteration, counts, lambda: job.clocks().seconds['learn'])
    job.close()


with tempfile.TemporaryDirectory() as folder:  # the run folder is part of the work, but nobody reads it
    os.chdir(folder)
    main()
